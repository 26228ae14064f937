"""What is known of a group's deliveries, what things are worth, and what an advice says. Pure.

A short timeout lets jobs of dead workers wait less; it also takes jobs from workers that are alive. Both are put into
one unit, seconds that a job waits (`Weights` says what the rest is worth in it):

* Each crash makes a job wait for the timeout: counted whole, though a part of it passes before the crash.
* *Bare* workers prove no life. A job that takes longer than the timeout is run again while it runs still, and again,
  until its deliveries are used up: then it is a dead letter although its work was done.
* *Extending* workers (ours) keep what they hold for as long as they show life, so the length of a job does not matter.
  A short timeout costs extensions, one for each third of it and each process; and a worker that is silent for longer
  (paused, blocked, cut off) loses what it holds. The record shows silences only where they were too long for the
  timeout in force; so no timeout below what `Weights.pause_ms` needs is advised.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from reaper.pipeline.advice.histogram import Histogram
from workers.runtime.settings import LONGEST, to_ms

SHORTEST_MS = 100
"""No timeout below it is advised: scans, clocks and networks need their time."""
LONGEST_MS = to_ms(LONGEST)
"""No setting may be longer: what is advised is to be read as settings."""
LONGEST_OF_EXTENDING_MS = 600_000
"""Beyond it, fewer extensions are no gain worth speaking of."""
EXTENSIONS_PER_TIMEOUT = 3
"""How often our workers show life within a visibility timeout."""
ENOUGH = 300
"""Of fewer deliveries, more than one record in twenty misses a kind of job that is one in a hundred."""
MOST_STALLS = 0.05
"""Where more stall and nothing shows that they crashed, the timeout is too short to tell crashes from slow jobs."""


class Workers(StrEnum):
    """How a group's workers keep what they hold."""

    EXTENDING = "extending"
    """They extend it while they work on it: ours do."""
    BARE = "bare"
    """They do not: a job must be done within the visibility timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What things are worth, in seconds of waiting; and what is to be expected of tomorrow."""

    rerun: float = 1.0
    """A second of work that is done twice."""
    dead_letter_s: float = 60.0
    """A job that is given up although its work was done."""
    request_s: float = 0.001
    """A request to Redis (an extension)."""
    pause_ms: int = 5_000
    """Extending workers may be silent for so long and lose nothing."""
    headroom: float = 1.0
    """Tomorrow's slow jobs may take so many times as long as those that are known."""
    max_deliveries: int = 3

    @property
    def floor_ms(self) -> int:
        """The shortest timeout of extending workers: a pause may begin just before an extension was due."""
        return max(SHORTEST_MS, math.ceil(self.pause_ms * EXTENSIONS_PER_TIMEOUT / (EXTENSIONS_PER_TIMEOUT - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known of the deliveries of one kind of job."""

    type: str = ""
    """Type of the jobs; empty where workers journal none."""
    held: Histogram = field(default_factory=Histogram)
    """How long deliveries of live workers were held, from delivery to settlement."""
    silences: Histogram = field(default_factory=Histogram)
    """How long deliveries that were taken from live workers had shown no life until they were settled, too late."""
    silent_runs_ms: int = 0
    """How long those deliveries ran in all, which was work done twice."""
    crashes: float = 0.0
    """Deliveries whose worker was gone, or is taken for that."""
    cut_off: Histogram = field(default_factory=Histogram)
    """Ages at which slow jobs were taken from bare workers, one a job: it takes longer, nobody knows how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """What is known of one group."""

    stream: str
    group: str
    workers: Workers
    kinds: tuple[Record, ...]
    """One for each type of job."""
    mode: str = "reaper"
    """Who recovers: ``reaper`` or ``embedded``."""
    process_s: float = 0.0
    """For how long processes worked, summed up over them."""
    configured_ms: int | None = None
    """The visibility timeout that was last in force, where an event tells."""
    bounded: bool = False
    """Durations are upper bounds from a leader's scans: the workers journal nothing."""
    doubtful: int = 0
    """Deliveries of bare workers that stalled, where nothing shows that their worker was gone and no slow job's."""
    halves: tuple[Histogram, Histogram] | None = None
    """How long deliveries were held in the earlier and the later half; None where no time is told."""

    @property
    def deliveries(self) -> int:
        """How many deliveries are known."""
        return sum(kind.held.count for kind in self.kinds)


class Verdict(StrEnum):
    """What an advice is worth."""

    ADVISED = "advised"
    TOO_FEW = "not enough to say"
    """Too few deliveries are known: the longest jobs may not be among them."""
    TOO_SHORT = "too short to tell"
    """The timeout in force cuts off what would have to be known: it has to be raised, and then looked at again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one timeout is expected to cost on as many deliveries again."""

    timeout_ms: int
    waiting_s: float
    """Jobs of dead workers wait."""
    twice_s: float
    """Work is done more often than once."""
    taken: float
    """Deliveries are taken from live workers."""
    dead_letters: float
    """Jobs are given up although their work was done."""
    requests: float
    """Extensions are sent."""
    total_s: float
    """All of it, weighted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where something lies with a probability of nine in ten, by what was recorded."""

    low: float
    high: float | None
    """None = nobody can say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The timeout that is expected to cost least, and how others compare."""

    verdict: Verdict
    best: Cost
    timeout_ms: Interval
    """Where the timeout lies that would really cost least."""
    cost_s: Interval
    """Where the cost of the advised one lies."""
    curve: tuple[Cost, ...]
    """Candidates, ascending."""
    rules: dict[str, Cost]
    """Rules of thumb, and what is configured, by name."""
    drift: float | None = None
    """How many times as long deliveries were held in the later half, where the halves differ."""
    notes: tuple[str, ...] = ()
    """What to know before trusting it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdvice:
    """Advice for a group, and for each type of its jobs by itself."""

    record: GroupRecord
    advice: Advice
    by_type: dict[str, Advice]
