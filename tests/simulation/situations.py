"""The situations that the stories of a run have to reach, each at least once.

A run that never reached one of them shows less than it seems to. For example, in no story a lease was taken by
another replica while a recovery call was on its way. `tests.simulation.reached` notes them,
`tests.simulation.conjunctions` causes most.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, Any

from reaper.sharing.ranking import ranked
from tests.simulation.places import KEYS
from tests.simulation.reached import Moment, Situation, While
from tests.simulation.story import EMBEDDED, IN_PLACE
from tests.simulation.tenancy import FREED, KEPT, OFFER, OFFERED, TAKEN

if TYPE_CHECKING:
    from tests.simulation.actors.replica import Replica
    from tests.simulation.world import World

# ---- circumstances


def lately(*kinds: str, part: float = 1.0) -> While:
    """A fault of one of these kinds began at most ``part`` of a visibility timeout ago."""

    def is_so(world: "World", _: Moment) -> bool:
        since = max((world.course.befell.get(kind, -inf) for kind in kinds), default=-inf)
        return world.loop.now - since <= part * world.story.setting.visibility_s

    return is_so


def unserved(*causes: str) -> While:
    """One of ``causes`` keeps the server from serving heartbeats."""
    return lambda world, _: any(cause in world.unserved.causes for cause in causes)


def denied(world: "World", _: Moment) -> bool:
    """A command is denied to all users."""
    return bool(world.server.denied)


def full(world: "World", _: Moment) -> bool:
    """The server's memory is full."""
    return world.server.is_full


def by(role: str) -> While:
    """A process of this role does it."""
    return lambda _, moment: moment.by.startswith(role)


def by_a_dead_process(world: "World", moment: Moment) -> bool:
    """The process that sent the command has ended since."""
    name = moment.by.partition(" ")[0]
    return bool(name) and all(
        actor.process is None or actor.process.dead or actor.process.name != name
        for actor in world.actors.values()
        if actor.role == name.partition("#")[0]
    )


def by_a_paused_process(world: "World", moment: Moment) -> bool:
    """The process that sent the command stands still."""
    name = moment.by.partition(" ")[0]
    return any(
        actor.process is not None and actor.process.name == name and _is_paused(actor.process)
        for actor in world.actors.values()
    )


def paused(role: str) -> While:
    """A process of this role stands still."""
    return lambda world, _: any(
        _is_paused(actor.process) for actor in world.actors.values() if actor.role.startswith(role)
    )


def _is_paused(process: Any) -> bool:
    return process is not None and process.closed and not process.dead


def out_of_sight(role: str) -> While:
    """No other process can tell one of this role from a dead one."""
    return lambda world, _: any(times and one.startswith(role) for one, times in world.ledger.out_of_sight.items())


def none_lives(role: str) -> While:
    """All processes of this role have ended."""
    return lambda world, _: all(
        actor.process is None or actor.process.dead for actor in world.actors.values() if actor.role.startswith(role)
    )


def released(world: "World", _: Moment) -> bool:
    """A quarantined job is released, and has not settled."""
    return bool(world.server.keys.values.get(KEYS.quarantine.encode()))


def says(*words: bytes) -> While:
    """The script's answer, or the error, begins with one of ``words``."""
    return lambda _, moment: any(word in moment.said[:60] for word in words)


def starts(word: bytes) -> While:
    """The script's whole answer begins with ``word``."""
    return lambda _, moment: moment.said.startswith(word)


def with_data(**data: Any) -> While:
    """The event has these fields."""
    return lambda _, moment: moment.event is not None and all(moment.event.data.get(k) == v for k, v in data.items())


def holder(role: str, is_so: Callable[[Any], bool] = lambda _: True) -> While:
    """The event names a consumer whose process is of this role, lives, and is as asked for."""

    def check(world: "World", moment: Moment) -> bool:
        consumer = str(moment.event.data.get("consumer", "")) if moment.event else ""
        return any(
            actor.role.startswith(role) and is_so(actor.process)
            for actor in world.actors.values()
            if actor.process is not None
            and not actor.process.dead
            and consumer in (actor.consumer.decode(), actor.process.name)
        )

    return check


def generation(at_least: int) -> While:
    """The event's job was redriven so often."""
    return lambda _, moment: moment.event is not None and (moment.event.number("generation") or 0) >= at_least


def setting(**wanted: Any) -> While:
    """The story has these settings."""
    return lambda world, _: all(getattr(world.story.setting, name) == value for name, value in wanted.items())


def after(event: str) -> While:
    """The journal has this event of the same job."""
    return lambda world, moment: (
        moment.event is not None and any(one.event == event for one in world.witness.events_of(moment.event.job)[:-1])
    )


def changed_mode(world: "World", _: Moment) -> bool:
    """Recovery is not by those who had it when the story began."""
    return world.recovery != world.story.setting.recovery


# ---- leases


def after_an_offer(world: "World", moment: Moment) -> bool:
    """The lease was offered to the replica that takes it."""
    return any(one.process.name == moment.by for one in _offered(world, moment) if one.process)


def after_an_offer_to_another(world: "World", moment: Moment) -> bool:
    """The lease was offered to another replica than the one that takes it."""
    return moment.said.startswith(OFFER) and not after_an_offer(world, moment)


def _offered(world: "World", moment: Moment) -> list["Replica"]:
    return [one for one in world.replicas() if OFFER + one.replica_id.encode() == moment.said]


def after_an_expiry(_: "World", moment: Moment) -> bool:
    """The holder before has neither offered nor freed the lease."""
    return bool(moment.said) and moment.said != FREED and not moment.said.startswith(OFFER)


def went_on_lately(world: "World", moment: Moment) -> bool:
    """The process that sent the command has been paused until just now."""
    since = world.went_on.get(moment.by, -inf)
    return world.loop.now - since <= world.story.setting.visibility_s / 4


def second_in_rank(world: "World", moment: Moment) -> bool:
    """Another replica that lives comes first for the group."""
    living = {one.replica_id: one.process.name for one in world.replicas() if one.process and not one.process.dead}
    order = [living[one] for one in ranked(filter(None, living), KEYS.name)]
    return order[1:2] == [moment.by]


# ---- the list

RECOVERS, RELEASES = "ran recover", "ran move_due"
SETTLES, BEATS = "ran settle", "ran extend"
FENCED, WAITS, NOT_OURS = says(b"fenced"), says(b"waits"), starts(b":0")
FAILED_OVER = lately("failover", "loss", part=2)


def _one(name: str, moment: str, *circumstances: While) -> Situation:
    return Situation(name, moment, circumstances)


SITUATIONS = (
    # leases
    _one("a stale holder tried to recover", RECOVERS, FENCED, by("reaper")),
    _one("a stale holder tried to recover after a failover", RECOVERS, FENCED, FAILED_OVER),
    _one("a stale holder tried to recover while a quarantined job was released", RECOVERS, FENCED, released),
    _one("a stale holder tried to release a quarantined job", RELEASES, FENCED, by("reaper")),
    _one("a stale holder ticked", "ran tick", NOT_OURS),
    _one("a holder's recovery ran after the holder's death", RECOVERS, by_a_dead_process, by("reaper")),
    _one("a paused holder wrote late, while another replica held the lease", RECOVERS, FENCED, went_on_lately),
    _one("a lease was taken while a quarantined job was released", TAKEN, released),
    _one("a lease was taken after the server's clock was set", TAKEN, lately("clock")),
    _one("a lease was taken while a worker was out of sight", TAKEN, out_of_sight("worker")),
    _one("a lease was taken while a command was denied", TAKEN, denied),
    _one("a lease was taken after a failover", TAKEN, lately("failover")),
    _one("a lease was handed over because its holder was drained", TAKEN, after_an_offer, lately("drain", part=0.5)),
    _one("a lease was handed over because its holder stopped", TAKEN, after_an_offer, lately("stop")),
    _one("a lease was handed over while a quarantined job was released", TAKEN, after_an_offer, released),
    _one("a lease was handed over while a worker was out of sight", TAKEN, after_an_offer, out_of_sight("worker")),
    _one("a lease was offered while a quarantined job was released", OFFERED, released),
    _one("an offer was not taken, and another replica took the lease", TAKEN, after_an_offer_to_another),
    _one("a lease expired while its holder was paused", TAKEN, after_an_expiry, paused("reaper")),
    _one("a lease expired while a quarantined job was released", TAKEN, after_an_expiry, released),
    _one(
        "a lease expired while the server was frozen or away",
        TAKEN,
        after_an_expiry,
        lately("freeze", "restart", "load"),
    ),
    _one("a lease expired because its holder was killed", TAKEN, after_an_expiry, lately("kill", "power-off")),
    _one("a lease was taken by the second in rank", TAKEN, second_in_rank),
    _one("a holder took its lease again", KEPT),
    # recovery
    _one("a leader recovered a job by policy stream", "event recovered", setting(redelivery="stream")),
    _one("a leader recovered a job by policy retry-stream", "event recovered", setting(redelivery="retry-stream")),
    _one("a leader recovered a job by policy in-place", "event recovered", setting(redelivery=IN_PLACE)),
    _one("an embedded worker recovered a job", "event recovered", with_data(mode=EMBEDDED)),
    _one("a job was recovered after recovery had changed sides", "event recovered", changed_mode),
    _one("a job was recovered from a paused worker", "event recovered", holder("worker", _is_paused)),
    _one("a job was recovered from a worker out of sight", "event recovered", holder("worker"), out_of_sight("worker")),
    _one("a job was recovered from a bare worker", "event recovered", holder("bare")),
    _one("a job was recovered twice", "event recovered", after("recovered")),
    _one("a job was recovered after a failover", "event recovered", lately("failover", part=3)),
    _one("a job was recovered after a restart that lost writes", "event recovered", lately("loss", part=3)),
    _one("a job was recovered after the clock was set", "event recovered", lately("clock", part=2)),
    _one("a job was recovered after the timeout was changed", "event recovered", lately("visibility", part=2)),
    _one("a job was recovered after the policy was changed", "event recovered", lately("policy", part=2)),
    _one("a job was recovered while memory was full", "event recovered", full),
    _one("a job was recovered while a command was denied", "event recovered", denied),
    _one("a job was recovered while a quarantined job was released", "event recovered", released),
    _one("recovery was denied", "failed recover", says(b"NOPERM")),
    _one("recovery met a server without replicas", "failed recover", says(b"NOREPLICAS")),
    _one("recovery met a group that an operator had paused", RECOVERS, says(b"paused")),
    # the beat
    _one("recovery waited after a gap", RECOVERS, WAITS, by("reaper")),
    _one("recovery by workers waited after a gap", RECOVERS, WAITS, by("worker")),
    _one("recovery waited after a failover", RECOVERS, WAITS, FAILED_OVER),
    _one("recovery waited after the clock was set", RECOVERS, WAITS, lately("clock")),
    _one("recovery waited after a command had been denied", RECOVERS, WAITS, lately("deny", part=2)),
    _one("recovery waited while a quarantined job was released", RECOVERS, WAITS, released),
    # quarantine
    _one("a job was quarantined while another one was released", "event quarantined", released),
    _one("a job was quarantined by an embedded worker", "event quarantined", with_data(mode=EMBEDDED)),
    _one("a job was released while a worker was out of sight", RELEASES, released, out_of_sight("worker")),
    _one("a job was dead-lettered after quarantine", "event dead_lettered", after("quarantined")),
    _one("a job succeeded after quarantine", "event acked", after("quarantined")),
    _one("a redriven job was dead-lettered again", "event dead_lettered", generation(1)),
    _one("a job was dead-lettered after the limit was changed", "event dead_lettered", lately("limit", part=2)),
    _one("a leader was killed while a quarantined job was released", "killed", by("reaper"), released),
    _one("a worker was killed while a quarantined job was released", "killed", by("worker"), released),
    # settlement
    _one("a settlement was rejected: the job had been recovered", "event rejected", after("recovered")),
    _one("a process called settle twice for an entry", "again settle"),
    _one("a process called settle twice for an entry, and a failover came in between", "again settle", FAILED_OVER),
    _one("a settlement ran after its sender's death", SETTLES, by_a_dead_process),
    _one("a settlement ran while its sender was paused", SETTLES, by_a_paused_process),
    _one("a settlement ran while memory was full", SETTLES, full),
    _one("a settlement was denied", "failed settle", says(b"NOPERM")),
    _one("a settlement met a server without replicas", "failed settle", says(b"NOREPLICAS")),
    _one("a job was handed back", "event handed_back"),
    # heartbeats
    _one("a heartbeat was denied while a replica was out of sight", "failed extend", out_of_sight("reaper")),
    _one("a heartbeat met a server without replicas", "failed extend", says(b"NOREPLICAS")),
    _one("a heartbeat ran after its worker's death", BEATS, by_a_dead_process),
    _one("a heartbeat ran while its worker was paused", BEATS, by_a_paused_process),
    _one("a heartbeat came after a failover", BEATS, lately("failover", part=0.3)),
    _one("a worker held again a job whose consumer was deleted", "ran hold"),
    # producers, membership, the server
    _one("a job was enqueued twice by the same call", "again enqueue"),
    _one("a producer met a full memory", "failed enqueue", says(b"OOM")),
    _one("a worker joined while a command was denied", "failed join_group", says(b"NOPERM")),
    _one("a worker joined after everything was deleted", "ran join_group", lately("flush")),
    _one("a named worker adopted its entries", "ran adopt", setting(named=True)),
    _one("a server that loaded its data was asked", "error LOADING"),
    _one("a server took no more clients", "error MAX"),
    _one("no replica lived as the clock was set", "fault clock", none_lives("reaper")),
    _one("a process was killed while the server was frozen or away", "killed", unserved("frozen", "away")),
)
"""In about the order of a job's life."""


def never_reached(runs: Iterable[Iterable[str]]) -> list[str]:
    """Return the names of the situations that no story has reached. ``runs`` has the reached names of each story."""
    reached = {name for run in runs for name in run}
    return [situation.name for situation in SITUATIONS if situation.name not in reached]
