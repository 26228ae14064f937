"""The facts that the drill collects while it plays. `ledger` judges them later.

Every ``…_at`` is in seconds of the wall clock of this machine, where all processes of a drill run. Times of the
server's clock are converted when they are read.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Flag, StrEnum, auto


class Role(StrEnum):
    """The kind of a process."""

    WORKER = "worker"
    BARE_WORKER = "bare worker"
    """A plain redis-py loop without stream-reaper."""
    REAPER = "reaper"


WORKERS = (Role.WORKER, Role.BARE_WORKER)


@dataclass(slots=True)
class ProcessRun:
    """One process from its start to its end. The next process of the same slot has a name of its own."""

    name: str
    role: Role
    pid: int
    started_at: float
    ended_at: float | None = None
    exit_code: int | None = None
    """Negative if a signal ended it, as in `subprocess`."""
    killed_at: float | None = None
    """The time at which a fault killed it."""
    stopped: bool = False
    """The drill has stopped it, at the end of the act."""
    cpu_s: float = 0.0
    """CPU time in seconds, at its end or at the latest reading."""

    @property
    def slot(self) -> str:
        """The slot it fills."""
        return self.name.partition("-")[0]

    def lived_at(self, at: float) -> bool:
        """Tell whether the process ran at ``at``."""
        return self.started_at <= at and (self.ended_at is None or at <= self.ended_at)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job of the producer. ``entry_id`` is the ID of its first entry, which is also the ID of the job."""

    n: int
    entry_id: str
    at: float
    fields: Sequence[tuple[bytes, bytes]] = ()

    @property
    def poison(self) -> bool:
        """Whether it kills the process that runs it."""
        return b"poison" in dict(self.fields)

    @property
    def digest(self) -> str:
        """SHA-256 of the payload."""
        return hashlib.sha256(dict(self.fields)[b"payload"]).hexdigest()


class Step(StrEnum):
    """A step of a job that its handler writes down."""

    START = "start"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a job's handler. The lines are the truth about executions, independent of Redis."""

    step: Step
    n: int
    entry_id: str
    pid: int
    at: float
    digest: str = ""
    """SHA-256 of the payload as it arrived (start lines)."""


def read_lines(text: str) -> Iterable[Line]:
    """Read whole lines ``start <n> <entry> <pid> <time> <digest>``, or any other step without the digest.

    Raises ValueError for any other line.
    """
    for line in text.splitlines():
        step, n, entry_id, pid, at, *digest = line.split()
        yield Line(Step(step), int(n), entry_id, int(pid), float(at), digest[0] if digest else "")


class Effect(Flag):
    """The effect of a fault on Redis, from its beginning to its end."""

    NONE = 0
    CUTS = auto()
    """Connections break."""
    AWAY = auto()
    """Redis does not answer, or takes no writes."""
    FORGETS = auto()
    """Redis may forget deliveries and settlements that it has acknowledged."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was injected, with its kind, target and time."""

    kind: str
    target: str
    at: float
    holder: str = ""
    """The lease's holder, for faults that hit its holder."""
    until: float | None = None
    """The time at which a paused process continued, or killed ones were started again."""
    in_flight: int = 0
    """Jobs that the target had in flight, or jobs that were added."""
    jobs: tuple[int, ...] = ()
    """Jobs that Redis has forgotten because of this fault."""
    effect: Effect = Effect.NONE


@dataclass(frozen=True, slots=True)
class MissedFault:
    """A fault that could not be injected, with the reason."""

    kind: str
    why: str
