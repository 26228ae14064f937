"""Faults and their times, as written on the command line: ``kill-worker@4``, ``pause-redis@5+10``. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from workers.protocol.address import Topology
from workers.protocol.errors import ConfigurationError
from workers.runtime.settings_errors import did_you_mean


class FaultKind(StrEnum):
    """What can be broken, and what can be put into the queue."""

    KILL_WORKER = "kill-worker"
    """Kill -9 of a worker with jobs in flight."""
    KILL_WORKERS = "kill-workers"
    """Kill -9 of so many workers at once, the first ones, whatever they hold."""
    PAUSE_WORKER = "pause-worker"
    """A worker with jobs in flight is stopped (SIGSTOP) for a while, and goes on as if nothing had happened."""
    KILL_LEADER = "kill-leader"
    """Kill -9 of the reaper that leads."""
    PAUSE_LEADER = "pause-leader"
    """A worker is killed and, when its jobs are due, the leader is stopped between deciding and writing, past its
    lease; then it goes on."""
    KILL_REAPERS = "kill-reapers"
    """Kill -9 of all reapers; none is started again for a while, or none at all."""
    PAUSE_REDIS = "pause-redis"
    """Redis is stopped (SIGSTOP) for a while, and goes on."""
    RESTART_REDIS = "restart-redis"
    """Kill -9 of Redis, which is started again after a while, with all that it had answered for."""
    FILL_REDIS = "fill-redis"
    """Redis is full for a while: it refuses every write that could need memory."""
    CUT_CONNECTIONS = "cut-connections"
    """Every connection to Redis is cut at once, whatever is under way on it; new ones are let in."""
    SHORTEN_VISIBILITY = "shorten-visibility"
    """The group's visibility timeout becomes a quarter of what it was: by a reload of the reapers, or, where there are
    none, in the agreement itself."""
    DESTROY_GROUP = "destroy-group"
    """Somebody destroys the group (XGROUP DESTROY), while jobs run and wait."""
    DELETE_CONSUMER = "delete-consumer"
    """Somebody deletes a consumer with jobs in flight (XGROUP DELCONSUMER): a live worker's, or a killed one's."""
    CLOCK_STEP = "clock-step"
    """The clock of the Redis server is set back, or ahead, by an hour, and stays so."""
    KILL_MASTER = "kill-master"
    """Kill -9 of the master that has the stream; a replica is promoted, and it is started again, to follow. `behind`:
    the replicas have heard nothing of it for a second."""
    PAUSE_MASTER = "pause-master"
    """The master is stopped (SIGSTOP) until a replica is promoted, and a while longer; then it goes on."""
    MOVE_SLOT = "move-slot"
    """The stream's slot moves to another master of the cluster, and is half moved for a while."""
    POISON = "poison"
    """Jobs that kill every worker that takes them."""
    LONG_JOBS = "long-jobs"
    """No fault: so many more jobs at once, each of which takes so long."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a kind is written: ``kind[:amount]@seconds[+seconds]``."""

    example: str
    amount: bool = False
    """It takes a number; what it counts can be left out, and is 1 then."""
    half: bool = False
    """The number may also be ``half`` or ``all``, or names of workers: ``w1,w3``."""
    words: tuple[str, ...] = ()
    """What stands in place of a number; the first is meant where nothing does."""
    lasts: bool = False
    lasts_required: bool = False


FORMS = {
    FaultKind.KILL_WORKER: Form("kill-worker@4"),
    FaultKind.KILL_WORKERS: Form("kill-workers:half@4", amount=True, half=True),
    FaultKind.PAUSE_WORKER: Form("pause-worker@4+6", lasts=True, lasts_required=True),
    FaultKind.KILL_LEADER: Form("kill-leader@4"),
    FaultKind.PAUSE_LEADER: Form("pause-leader@4"),
    FaultKind.KILL_REAPERS: Form("kill-reapers@4+10", lasts=True),
    FaultKind.PAUSE_REDIS: Form("pause-redis@4+10", lasts=True, lasts_required=True),
    FaultKind.RESTART_REDIS: Form("restart-redis@4+2", lasts=True, lasts_required=True),
    FaultKind.FILL_REDIS: Form("fill-redis@4+5", lasts=True, lasts_required=True),
    FaultKind.CUT_CONNECTIONS: Form("cut-connections@4"),
    FaultKind.SHORTEN_VISIBILITY: Form("shorten-visibility@4"),
    FaultKind.DESTROY_GROUP: Form("destroy-group@4"),
    FaultKind.DELETE_CONSUMER: Form("delete-consumer:killed@4", words=("live", "killed")),
    FaultKind.CLOCK_STEP: Form("clock-step:ahead@4", words=("back", "ahead")),
    FaultKind.KILL_MASTER: Form("kill-master:behind@4", words=("synced", "behind")),
    FaultKind.PAUSE_MASTER: Form("pause-master@4+2", lasts=True, lasts_required=True),
    FaultKind.MOVE_SLOT: Form("move-slot@4+1", lasts=True, lasts_required=True),
    FaultKind.POISON: Form("poison@4", amount=True),
    FaultKind.LONG_JOBS: Form("long-jobs:20@4+6", amount=True, lasts=True, lasts_required=True),
}

AGAINST_LEADERS = frozenset({FaultKind.KILL_LEADER, FaultKind.PAUSE_LEADER, FaultKind.KILL_REAPERS})
FAILOVERS = frozenset({FaultKind.KILL_MASTER, FaultKind.PAUSE_MASTER})
"""A replica is promoted: what it had not received is lost."""
AGAINST_REDIS = FAILOVERS | {
    FaultKind.PAUSE_REDIS, FaultKind.RESTART_REDIS, FaultKind.FILL_REDIS, FaultKind.CUT_CONNECTIONS,
    FaultKind.MOVE_SLOT,
}  # fmt: skip
"""While they last, and some time after, nobody can be reached, or nothing written."""
OWN_SERVER = frozenset({FaultKind.CLOCK_STEP, FaultKind.RESTART_REDIS, FaultKind.FILL_REDIS, FaultKind.CUT_CONNECTIONS})
"""What would hit others, too: it is played on a server that the drill has started."""
REFRESH_S = 5.0
"""How often workers look at what is agreed, where consumers are deleted: the word of a dead one, which is waited for,
ends 5 s after this."""
SHORTENED = 4
"""A shortened visibility timeout is this part of the one before."""
AFTER_PAUSE_S = 10.0
"""How long after Redis was away processes may still fail because of it."""

SHARES = ("half", "all")
_NAMES = re.compile(r"w[1-9][0-9]{0,3}(,w[1-9][0-9]{0,3})*")
_FORM = re.compile(r"(?P<kind>[^:@+]*)(:(?P<amount>[^@]*))?(@(?P<at>[^+]*)(\+(?P<lasts>.*))?)?")
_MOST = 10_000
_LONGEST_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject.

    ``at`` counts from the first job. ``kill-worker`` and those that hit a leader may come later, when there is
    something to hit. All others come exactly then, whatever is going on.
    """

    kind: FaultKind
    at: timedelta
    amount: str = "1"
    """How many workers or jobs: a number, ``half`` or ``all``, or which; or one of the words of its form."""
    lasts: timedelta | None = None

    def __str__(self) -> str:
        amount = f":{self.amount}" if self.amount != "1" else ""
        lasts = "" if self.lasts is None else f"+{self.lasts.total_seconds():g}"
        return f"{self.kind}{amount}@{self.at.total_seconds():g}{lasts}"

    def how_many(self, of: int) -> int:
        """Return the amount, out of ``of``: no more than that; half of them is rounded up."""
        shares = {"half": (of + 1) // 2, "all": of}
        return shares[self.amount] if self.amount in shares else min(of, int(self.amount))

    def slots(self, of: int) -> set[str]:
        """Return the slots of the workers that are meant, out of ``of``: those that are named, or the first ones."""
        if _NAMES.fullmatch(self.amount):
            return set(self.amount.split(","))
        return {f"w{n}" for n in range(1, self.how_many(of) + 1)}

    @property
    def over_at(self) -> timedelta:
        """When it is over by itself."""
        return self.at + (self.lasts or timedelta(0))


def _at(kind: FaultKind, seconds: float) -> Fault:
    return Fault(kind, timedelta(seconds=seconds))


DEFAULT_FAULTS = (
    _at(FaultKind.KILL_WORKER, 1.5),
    _at(FaultKind.POISON, 5),
    _at(FaultKind.KILL_LEADER, 8),
    _at(FaultKind.PAUSE_LEADER, 12),
)
"""One of each, far enough apart for ``max_deliveries`` 3. What the killed worker held has run again before the poison
job comes (visibility timeout and longest job: 3.35 s), so that no innocent job is hit more than twice, by runs of the
poison job; then it is a suspect and runs apart from it."""

FAILOVER_FAULTS = (
    _at(FaultKind.KILL_WORKER, 1),
    Fault(FaultKind.KILL_MASTER, timedelta(seconds=3), "behind"),
    Fault(FaultKind.PAUSE_MASTER, timedelta(seconds=10), lasts=timedelta(seconds=1)),
)
"""Those that are played by default where a replica can be promoted."""

DEMO_FAULTS = (
    _at(FaultKind.KILL_WORKER, 1),
    _at(FaultKind.POISON, 4.5),
    _at(FaultKind.KILL_LEADER, 7),
    _at(FaultKind.PAUSE_LEADER, 9.5),
)
"""The same, a little closer together, so that three acts take about a minute."""


def parse_fault(text: str) -> Fault:
    """Read ``kind[:amount]@seconds[+seconds]``. Raises ConfigurationError."""
    found = _FORM.fullmatch(text.strip())
    name = found["kind"] if found else text
    kinds = {str(kind) for kind in FaultKind}
    if found is None or name not in kinds:
        raise ConfigurationError(f"there is no --fault {name!r}{did_you_mean(name, kinds)}")
    kind = FaultKind(name)
    form = FORMS[kind]
    if found["at"] is None:
        raise ConfigurationError(
            f"--fault {text!r} has no time: write '{form.example}' for 4 seconds after the first job."
        )
    at = _read_seconds(text, found["at"], form)
    return Fault(kind, at, _read_amount(text, found["amount"], form), _read_lasts(text, found["lasts"], form))


def _read_seconds(text: str, seconds: str, form: Form) -> timedelta:
    try:
        value = float(seconds)
    except ValueError:
        value = float("nan")
    if not abs(value) <= _LONGEST_S:
        raise ConfigurationError(f"--fault {text!r}: {seconds!r} is no number of seconds; write '{form.example}'.")
    return timedelta(seconds=value)


def _read_amount(text: str, amount: str | None, form: Form) -> str:
    if amount is None:
        return form.words[0] if form.words else "1"
    if amount in form.words:
        return amount
    if form.words:
        raise ConfigurationError(f"--fault {text!r}: {amount!r} is none of {', '.join(form.words)}.")
    if not form.amount:
        raise ConfigurationError(f"--fault {text!r} takes no amount: write '{form.example}'.")
    if form.half and (amount in SHARES or _NAMES.fullmatch(amount)):
        return amount
    if amount.isascii() and amount.isdigit() and 1 <= int(amount) <= _MOST:
        return str(int(amount))
    raise ConfigurationError(f"--fault {text!r}: {amount!r} is no amount; write '{form.example}'.")


def _read_lasts(text: str, seconds: str | None, form: Form) -> timedelta | None:
    if seconds is None:
        if form.lasts_required:
            raise ConfigurationError(f"--fault {text!r} does not say for how long: write '{form.example}'.")
        return None
    if not form.lasts:
        raise ConfigurationError(f"--fault {text!r} takes no '+seconds': write '{form.example}'.")
    lasts = _read_seconds(text, seconds, form)
    if lasts <= timedelta(0):
        raise ConfigurationError(f"--fault {text!r} lasts no time at all: write '{form.example}'.")
    return lasts


@dataclass(frozen=True, slots=True)
class Adapted:
    """What becomes of a fault where nobody leads."""

    asked: Fault
    played: Fault | None
    """None = left out."""
    why: str = ""


def adapt_faults(faults: Iterable[Fault], *, reapers: bool) -> list[Adapted]:
    """Return what is played of ``faults``. Without reapers those that hit leaders hit what they can, or nothing."""
    return [Adapted(fault, fault) if reapers else _without_leaders(fault) for fault in faults]


def _without_leaders(fault: Fault) -> Adapted:
    if fault.kind is FaultKind.PAUSE_LEADER:
        why = "nobody leads, so only a worker is hit"
        return Adapted(fault, replace(fault, kind=FaultKind.KILL_WORKER), why)
    if fault.kind in AGAINST_LEADERS:
        return Adapted(fault, None, "no reaper runs")
    return Adapted(fault, fault)


def objection_to(kind: FaultKind, topology: Topology) -> str:
    """Say why faults of this kind cannot be played there; empty where they can."""
    alone = topology is Topology.SINGLE
    if kind in FAILOVERS and alone:
        return "needs a replica that can be promoted: --topology sentinel or cluster."
    if kind is FaultKind.MOVE_SLOT and topology is not Topology.CLUSTER:
        return "needs slots: --topology cluster."
    return "" if alone else _ONE_SERVER.get(kind, "")


_ONE_SERVER = {
    FaultKind.PAUSE_REDIS: "is for one server: where another takes over, play pause-master.",
    FaultKind.RESTART_REDIS: "is for one server: where another takes over, play kill-master.",
    FaultKind.CLOCK_STEP: "sets the clock of one server, and here there are several: leave --topology away.",
}


def check_faults(faults: Sequence[Fault], *, reapers: int, topology: Topology = Topology.SINGLE) -> None:
    """Refuse faults that cannot be played. Raises ConfigurationError."""
    for fault in faults:
        if fault.at < timedelta(0):
            raise ConfigurationError(f"--fault '{fault}' lies before the first job: give it a time of 0 or more.")
        if objection := objection_to(fault.kind, topology):
            raise ConfigurationError(f"--fault '{fault}' {objection}")
        if fault.kind is FaultKind.PAUSE_LEADER and reapers == 1:
            raise ConfigurationError(
                f"--fault '{fault}' needs a second reaper, which leads while the first is paused: --reapers 2 or more."
            )
