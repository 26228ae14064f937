"""Situations that a run of 300 stories has to reach, each at least once. A run that never reached one shows less than it seems to.

A situation is a moment and circumstances: something happens while something else is true. Whoever sees a moment announces it
(`Reached.note`). Moments: ``fault <kind>``, ``event <name>``, ``error <code>``, ``ran <script>``, ``again <script>`` (the same
call once more), ``fence``, ``killed``, ``started``, ``completed``, ``late`` (a completion of a delivery that was recovered).
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.places import KEYS
from tests.simulation.server.replies import Raw, Reply, ReplyError
from workers.protocol.events import LifecycleEvent
from workers.protocol.scripts import Script

if TYPE_CHECKING:
    from tests.simulation.world import World

STORIES = 300
"""A run of so many stories reaches everything."""


class Moment(NamedTuple):
    """What happens."""

    by: str = ""
    """The process whose command runs; '' = the world."""
    said: bytes = b""
    """What the script answered, or the text of an error."""
    event: LifecycleEvent | None = None


While = Callable[["World", Moment], bool]


@dataclass(frozen=True, slots=True)
class Situation:
    """Something that happens while something else is true."""

    name: str
    moment: str
    circumstances: tuple[While, ...] = ()

    def is_reached(self, world: "World", moment: Moment) -> bool:
        """Tell whether the circumstances are as asked for."""
        return all(is_so(world, moment) for is_so in self.circumstances)


# ---- circumstances


def lately(*kinds: str, part: float = 1.0) -> While:
    """A fault of one of these kinds began at most ``part`` of a visibility timeout ago."""

    def is_so(world: "World", _: Moment) -> bool:
        since = max((world.befell.get(kind, -inf) for kind in kinds), default=-inf)
        return world.loop.now - since <= part * world.story.setting.visibility_s

    return is_so


def unserved(*causes: str) -> While:
    """One of ``causes`` keeps the server from serving heartbeats."""
    return lambda world, _: any(cause in world.unserved.causes for cause in causes)


def denied(world: "World", _: Moment) -> bool:
    return any(world.server.denied.values())


def full(world: "World", _: Moment) -> bool:
    return world.server.is_full


def by(role: str) -> While:
    return lambda _, moment: moment.by.startswith(role)


def by_a_dead_process(world: "World", moment: Moment) -> bool:
    name = moment.by.partition(" ")[0]
    return bool(name) and all(
        actor.process is None or actor.process.dead or actor.process.name != name
        for actor in world.actors.values()
        if actor.role == name.partition("#")[0]
    )


def by_a_paused_process(world: "World", moment: Moment) -> bool:
    name = moment.by.partition(" ")[0]
    return any(
        actor.process is not None and actor.process.name == name and actor.process.closed and not actor.process.dead
        for actor in world.actors.values()
    )


def paused(role: str) -> While:
    """A process of this role is paused."""
    return lambda world, _: any(
        actor.process is not None and actor.process.closed and not actor.process.dead
        for actor in world.actors.values()
        if actor.role.startswith(role)
    )


def out_of_sight(role: str) -> While:
    """Nobody can tell a process of this role from a dead one."""
    return lambda world, _: any(times and one.startswith(role) for one, times in world.ledger.out_of_sight.items())


def none_lives(role: str) -> While:
    return lambda world, _: all(
        actor.process is None or actor.process.dead for actor in world.actors.values() if actor.role.startswith(role)
    )


def released(world: "World", _: Moment) -> bool:
    """A quarantined job is released, and has not settled."""
    return bool(world.server.keys.values.get(KEYS.suspects.encode()))


def says(*words: bytes) -> While:
    return lambda _, moment: any(word in moment.said[:60] for word in words)


def with_data(**data: Any) -> While:
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


def delivery(at_least: int) -> While:
    return lambda _, moment: moment.event is not None and (moment.event.number("delivery") or 0) >= at_least


def generation(at_least: int) -> While:
    return lambda _, moment: moment.event is not None and (moment.event.number("generation") or 0) >= at_least


def setting(**wanted: Any) -> While:
    return lambda world, _: all(getattr(world.story.setting, name) == value for name, value in wanted.items())


def ran_before(event: str) -> While:
    """The journal has such an event of the same job."""
    return lambda world, moment: (
        moment.event is not None and any(one.event == event for one in world.witness.events_of(moment.event.job)[:-1])
    )


def changed_mode(world: "World", _: Moment) -> bool:
    return world.recovery != world.story.setting.recovery


# ---- the list

_RECOVER = ("recover_entries", "autoclaim")


def _situations() -> Iterator[Situation]:
    def one(name: str, moment: str, *circumstances: While) -> Situation:
        return Situation(name, moment, circumstances)

    # leadership
    stale = says(b"stale")
    yield one("a stale leader tried to recover", "ran recover_entries", stale)
    yield one(
        "a stale leader tried to recover after a failover", "ran recover_entries", stale, lately("failover", "loss")
    )
    yield one(
        "a stale leader tried to recover while a quarantined job was released", "ran recover_entries", stale, released
    )
    yield one(
        "a stale leader wrote after a failover while a quarantined job was released",
        "ran recover_entries",
        stale,
        released,
        lately("failover", "loss"),
    )
    yield one("a stale leader tried to release a quarantined job", "ran release_suspects", stale)
    yield one(
        "a leader recovered after it had been paused: its call was on its way",
        "ran recover_entries",
        by_a_paused_process,
    )
    yield one("a recovery ran after its leader's death", "ran recover_entries", by_a_dead_process)
    yield one("a term began while a quarantined job was released", "fence", released)
    yield one("a term began after the server's clock had been set back", "fence", lately("clock"))
    yield one("a term began because an operator asked for it", "fence", lately("step-down", part=0.5))
    yield one("a term began while a replica was paused", "fence", paused("reaper"))
    yield one("a term began while a replica was cut off", "fence", out_of_sight("reaper"))
    yield one("a term began while a worker was out of sight", "fence", out_of_sight("worker"))
    yield one("a term began while a command was denied", "fence", denied)
    yield one("a term began after a failover", "fence", lately("failover"))
    yield one("a term began after a power failure", "fence", lately("power-off"))
    yield one("a lease was renewed twice by the same call", "again renew_lease")
    yield one("a replica that was dead renewed its lease", "ran renew_lease", by_a_dead_process)
    # recovery
    for policy in ("stream", "retry-stream", "in-place"):
        yield one(
            f"a leader recovered a job by policy {policy}",
            "event recovered",
            with_data(mode="reaper"),
            setting(redelivery=policy),
        )
    yield one("an embedded worker recovered a job", "event recovered", with_data(mode="embedded"))
    yield one("a worker that claims recovered a job", "event recovered", with_data(mode="claim"))
    yield one("a job was recovered after recovery had changed sides", "event recovered", changed_mode)
    yield one(
        "a job was recovered from a paused worker", "event recovered", holder("worker", lambda process: process.closed)
    )
    yield one(
        "a job was recovered from a worker that is cut off", "event recovered", holder("worker"), out_of_sight("worker")
    )
    yield one("a job was recovered from a bare worker", "event recovered", holder("bare"))
    yield one("a job was recovered twice", "event recovered", ran_before("recovered"))
    yield one("a job was recovered after a failover", "event recovered", lately("failover", part=3))
    yield one("a job was recovered after a restart that lost writes", "event recovered", lately("loss", part=3))
    yield one("a job was recovered after the clock was set", "event recovered", lately("clock", part=2))
    yield one("a job was recovered after the timeout was changed", "event recovered", lately("visibility", part=1))
    yield one("a job was recovered after the policy was changed", "event recovered", lately("policy", part=1))
    yield one("a job was recovered while memory was full", "event recovered", full)
    yield one("a job was recovered while a command was denied", "event recovered", denied)
    yield one("a job was recovered while nobody may write the journal", "unwritten recovered")
    yield one("a job was recovered while a quarantined job was released", "event recovered", released)
    yield one("a job was recovered after scripts were forgotten", "event recovered", lately("scripts", part=2))
    yield one("recovery was refused: an operator had paused the group", "ran recover_entries", says(b"paused"))
    yield one("recovery was too late to be believed", "ran recover_entries", says(b"late"))
    yield one("recovery of embedded workers was too late", "ran autoclaim", says(b"late"))
    yield one("embedded workers met a group that replicas recover", "ran autoclaim", says(b"reaper"))
    yield one("recovery was denied", "failed recover_entries", says(b"NOPERM"))
    yield one("recovery met a server without replicas", "failed recover_entries", says(b"NOREPLICAS"))
    yield one("recovery met a group that was destroyed", "failed recover_entries", says(b"NOGROUP"))
    yield one("recovery of embedded workers met a group that was destroyed", "failed autoclaim", says(b"NOGROUP"))
    yield one("recovery was asked for again after a lost reply", "again recover_entries")
    # quarantine
    yield one("a job was quarantined", "event suspected")
    yield one("a job was quarantined while another one was released", "event suspected", released)
    yield one("a job was quarantined by an embedded worker", "event suspected", with_data(mode="embedded"))
    yield one(
        "a quarantined job was released while a worker was out of sight",
        "ran release_suspects",
        released,
        out_of_sight("worker"),
    )
    yield one(
        "a quarantined job was released while another settlement was denied", "ran release_suspects", released, denied
    )
    yield one("a job was dead-lettered after quarantine", "event dead_lettered", ran_before("suspected"))
    yield one("a job succeeded after quarantine", "event acked", ran_before("suspected"))
    yield one("a job asked for a retry after quarantine", "event nacked", ran_before("suspected"))
    yield one("a job was dead-lettered after recovery", "event dead_lettered", ran_before("recovered"))
    yield one("a redriven job was dead-lettered again", "event dead_lettered", generation(1))
    yield one("a job was redriven after a failover", "event redriven", lately("failover", "loss", part=5))
    yield one("a job was dead-lettered after the limit was lowered", "event dead_lettered", lately("limit", part=2))
    # settlement
    yield one("a settlement was rejected", "event refused")
    yield one("a settlement was rejected: the job had been recovered", "event refused", ran_before("recovered"))
    yield one("a settlement was sent again after a lost reply", "again settle")
    yield one("a settlement was sent again after a failover", "again settle", lately("failover", "loss"))
    yield one("a settlement ran after its sender's death", "ran settle", by_a_dead_process)
    yield one("a settlement ran while its sender was paused", "ran settle", by_a_paused_process)
    yield one("a settlement ran while memory was full", "ran settle", full)
    yield one("a settlement was denied", "failed settle", says(b"NOPERM"))
    yield one("a settlement met a server without replicas", "failed settle", says(b"NOREPLICAS"))
    yield one("a settlement met a group that was destroyed", "failed settle", says(b"NOGROUP"))
    yield one("a job was handed back", "event handed_back")
    yield one("a job was handed back after it had been recovered", "event handed_back", ran_before("recovered"))
    yield one("a job was put off", "event scheduled")
    yield one("a job was put off while memory was full", "event scheduled", full)
    yield one("a delayed job became due after the clock was set", "ran move_due", lately("clock", part=1))
    # heartbeats
    yield one("a heartbeat was denied", "failed extend_visibility", says(b"NOPERM"))
    yield one(
        "a heartbeat was denied while a leader was paused",
        "failed extend_visibility",
        says(b"NOPERM"),
        paused("reaper"),
    )
    yield one(
        "a heartbeat was denied while a leader was cut off",
        "failed extend_visibility",
        says(b"NOPERM"),
        out_of_sight("reaper"),
    )
    yield one("a heartbeat met a server without replicas", "failed extend_visibility", says(b"NOREPLICAS"))
    yield one("a heartbeat met a server that loads its data", "failed extend_visibility", says(b"LOADING"))
    yield one("a heartbeat met a group that was destroyed", "failed extend_visibility", says(b"NOGROUP"))
    yield one("a heartbeat ran after its worker's death", "ran extend_visibility", by_a_dead_process)
    yield one("a heartbeat ran while its worker was paused", "ran extend_visibility", by_a_paused_process)
    yield one("a heartbeat was sent again after a lost reply", "again extend_visibility")
    yield one("a heartbeat came after a failover", "ran extend_visibility", lately("failover", part=0.3))
    yield one("a worker held again what was deleted", "ran hold_again")
    # producers, membership
    yield one("a job was enqueued twice by the same call", "again enqueue")
    yield one("a producer met a full memory", "failed enqueue", says(b"OOM"))
    yield one("a worker joined while a command was denied", "failed join_group", says(b"NOPERM"))
    yield one("a worker joined after everything was deleted", "ran join_group", lately("flush"))
    yield one("a worker joined after a failover", "ran join_group", lately("failover"))
    yield one("a named worker adopted its entries", "ran adopt", setting(named=True))
    yield one("a group was forgotten", "ran forget_group", says(b"done"))
    yield one("a group was not forgotten: it is served", "ran forget_group", says(b"served", b"embedded"))
    # what others delete
    for event in ("lost_payload", "lost_delivery", "lost_consumer"):
        yield one(f"{event} was reported", f"event {event}")
    # the server
    for code in ("LOADING", "OOM", "NOPERM", "NOREPLICAS", "NOSCRIPT", "NOGROUP", "MAX"):
        yield one(f"the server answered {code}", f"error {code}")
    for kind in ("failover", "loss", "restart", "freeze", "clock", "deny", "clients"):
        yield one(f"{kind} while a quarantined job was released", f"fault {kind}", released)
    for kind in ("failover", "freeze", "clock", "deny"):
        yield one(f"{kind} while a worker was out of sight", f"fault {kind}", out_of_sight("worker"))
        yield one(f"{kind} while a replica was out of sight", f"fault {kind}", out_of_sight("reaper"))
    yield one("a failover while the group was paused", "fault failover", lately("brake"))
    yield one("no worker lived as the server failed", "fault failover", none_lives("worker"))
    yield one("no replica lived as the server failed", "fault failover", none_lives("reaper"))
    yield one("no replica lived as the clock was set", "fault clock", none_lives("reaper"))
    yield one("a leader was killed while a quarantined job was released", "killed", by("reaper"), released)
    yield one("a worker was killed by a quarantined job", "killed", by("worker"), released)
    yield one("a worker was killed while the server was frozen", "killed", by("worker"), unserved("frozen"))
    yield one("a worker was killed while the server was away", "killed", by("worker"), unserved("away"))
    yield one("a replica was killed while the server was away", "killed", by("reaper"), unserved("away", "frozen"))
    yield one("a job began while its worker was out of sight", "started", out_of_sight("worker"))
    yield one("a job that was recovered completed in the hands that lost it", "late")


SITUATIONS = tuple(_situations())
NAMES = frozenset(situation.name for situation in SITUATIONS)


def never_reached(runs: Iterable[Iterable[str]]) -> list[str]:
    """Return the situations that no story of a run has reached, in their order."""
    reached = {name for run in runs for name in run}
    return [situation.name for situation in SITUATIONS if situation.name not in reached]


# ---- how they are met


@cache
def script_names() -> dict[bytes, str]:
    """Return the names of the shipped scripts, by digest and by text."""
    scripts = [
        Script(package, script.stem)
        for package in ("workers.protocol", "reaper")
        for script in (Path(str(files(package))) / "lua").glob("*.lua")
    ]
    names = {script.digest.encode(): script.name for script in scripts}
    return names | {script.source.encode(): script.name for script in scripts}


SETTLES = ("settle", "enqueue")
"""Scripts that a process calls again after a lost reply."""
_ENTRY_ID = re.compile(rb"\d+-\d+|job-\d+")
DIGEST = 40
_CALL = re.compile(rb"EVAL(?:SHA)?\r\n\$(\d+)\r\n")


def script_in(data: bytes, known: Container[bytes]) -> str:
    """Return the name of the script that a request calls first; '' = none of ours, or one that the server has not loaded."""
    if (call := _CALL.search(data, 0, 100)) is None:
        return ""
    script = data[call.end() : call.end() + int(call[1])]
    return script_names().get(script, "") if len(script) > DIGEST or script in known else ""


class Reached:
    """The situations that one story has reached."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._open: dict[str, list[Situation]] = {}
        for situation in SITUATIONS:
            self._open.setdefault(situation.moment, []).append(situation)
        self._calls: set[tuple[str, bytes]] = set()
        """Which process has sent a call for which entry."""
        self.names: set[str] = set()

    def note(self, kind: str, moment: Moment) -> None:
        """Note that something happens."""
        wanted = self._open.get(kind)
        if not wanted:
            return
        met = [situation for situation in wanted if situation.is_reached(self._world, moment)]
        if met:
            self.names.update(situation.name for situation in met)
            self._open[kind] = [situation for situation in wanted if situation not in met]

    def executed(self, words: list[bytes], reply: Reply) -> None:
        """Note a command that the server has executed."""
        name = script_names().get(words[1]) if words[0] in (b"EVALSHA", b"EVAL") else None
        said = reply.wire if isinstance(reply, Raw) else b""
        if isinstance(reply, ReplyError):
            said = b"-" + reply.text
        moment = Moment(self._world.witness.caller, said)
        if said.startswith(b"-"):
            self._world.note(f"error {said[1:].split(None, 1)[0].decode()}", moment)
            if name:
                self._world.note(f"failed {name}", moment)
        elif name:
            self._world.note(f"ran {name}", moment)
            if name in SETTLES:
                self._note_calls(name, moment, words)

    def _note_calls(self, name: str, moment: Moment, words: list[bytes]) -> None:
        for word in set(words[3:]):
            if _ENTRY_ID.fullmatch(word):
                if (moment.by, word) in self._calls:
                    self._world.note(f"again {name}", moment)
                self._calls.add((moment.by, word))
