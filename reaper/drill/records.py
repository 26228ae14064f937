"""What the drill writes down while it plays: plain facts, judged later by `ledger`.

Every ``…_at`` is seconds of the wall clock of this machine (all processes of a drill run here); instants of the
server's clock are converted when they are read.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Flag, StrEnum, auto


class Role(StrEnum):
    """What a process of the drill is."""

    WORKER = "worker"
    BARE_WORKER = "bare worker"
    """A plain redis-py loop that knows nothing of us."""
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
    """As Python says it: negative = ended by that signal."""
    killed_at: float | None = None
    """When a fault killed it."""
    stopped: bool = False
    """Told to stop in order, at the end of the act."""
    cpu_s: float = 0.0
    """CPU time in seconds: what it used in all, or until it was measured last."""

    @property
    def slot(self) -> str:
        """The slot it fills."""
        return self.name.partition("-")[0]

    def lived_at(self, at: float) -> bool:
        """Tell whether the process ran at ``at``."""
        return self.started_at <= at and (self.ended_at is None or at <= self.ended_at)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job the producer put in. ``entry_id`` is its first entry, and so its job ID."""

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
    """What a job's handler writes down."""

    START = "start"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Line:
    """One line that a job's handler wrote: the truth about executions, whatever Redis says."""

    step: Step
    n: int
    entry_id: str
    pid: int
    at: float
    digest: str = ""
    """SHA-256 of the payload as it arrived (start lines)."""


def read_lines(text: str) -> Iterable[Line]:
    """Read whole lines ``start <n> <entry> <pid> <time> <digest>``, or any other step without the digest.

    Raises ValueError for anything else: a worker that prints something else is no worker of the drill.
    """
    for line in text.splitlines():
        step, n, entry_id, pid, at, *digest = line.split()
        yield Line(Step(step), int(n), entry_id, int(pid), float(at), digest[0] if digest else "")


class Effect(Flag):
    """What a fault does to Redis from its beginning to its end."""

    NONE = 0
    CUTS = auto()
    """Connections break."""
    AWAY = auto()
    """Redis does not answer, or takes no writes."""
    FORGETS = auto()
    """Redis may forget deliveries and settlements that it has acknowledged."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was injected: what, on whom, when."""

    kind: str
    target: str
    at: float
    holder: str = ""
    """The lease's holder, for faults that hit a leader."""
    until: float | None = None
    """When a paused process went on, or killed ones were started again."""
    in_flight: int = 0
    """Jobs the target held, or jobs that were put in."""
    jobs: tuple[int, ...] = ()
    """Jobs that Redis has forgotten because of this fault."""
    effect: Effect = Effect.NONE


@dataclass(frozen=True, slots=True)
class MissedFault:
    """A fault that could not be injected, and why."""

    kind: str
    why: str
