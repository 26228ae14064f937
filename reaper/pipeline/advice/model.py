"""What a visibility timeout would have cost on what was recorded, and which would have cost least. Pure.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from reaper.pipeline.advice.histogram import BINS_PER_OCTAVE, Histogram, bin_of, merged

SHORTEST_MS = 100
"""No timeout below it is advised: scans, clocks and networks need their time."""
LONGEST_OF_EXTENDING_MS = 600_000
"""Beyond it, fewer extensions are no gain worth speaking of."""
EXTENSIONS_PER_TIMEOUT = 3
"""How often our workers show life within a visibility timeout."""
FEW = 200
"""With fewer deliveries than this the tail of their durations is not known."""


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
        return math.ceil(self.pause_ms * EXTENSIONS_PER_TIMEOUT / (EXTENSIONS_PER_TIMEOUT - 1))


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
    """Deliveries whose worker was gone."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one timeout would have cost."""

    timeout_ms: int
    waiting_s: float
    """Jobs of dead workers waited."""
    twice_s: float
    """Work was done more often than once."""
    taken: int
    """Deliveries were taken from live workers."""
    dead_letters: int
    """Jobs were given up although their work was done."""
    requests: float
    """Extensions were sent."""
    total_s: float
    """All of it, weighted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The timeout that would have cost least, and how others compare."""

    best: Cost
    curve: tuple[Cost, ...]
    """Every candidate, ascending."""
    rules: dict[str, Cost]
    """Rules of thumb, and what is configured, by name."""
    notes: tuple[str, ...] = ()
    """What to know before trusting it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdvice:
    """Advice for a group, and for each type of its jobs by itself."""

    record: GroupRecord
    advice: Advice
    by_type: dict[str, Advice]


def cost_of(
    timeout_ms: int, kinds: Iterable[Record], workers: Workers, weights: Weights, *, process_s: float = 0.0
) -> Cost:
    """Return what ``timeout_ms`` would have cost the deliveries of ``kinds``."""
    kinds = list(kinds)
    bare = workers is Workers.BARE
    taken = again_ms = dead = 0
    for kind in kinds:
        if bare:
            slow = kind.held.above(timeout_ms / weights.headroom)
            taken += slow.count * weights.max_deliveries
            again_ms += slow.total_ms * (weights.max_deliveries - 1)
            dead += slow.count
        else:  # It happens once: the next delivery of the job is seldom silent, too.
            silent = kind.silences.above(timeout_ms)
            taken += silent.count
            again_ms += kind.silent_runs_ms * silent.count // max(1, kind.silences.count)
    waiting_s = sum(kind.crashes for kind in kinds) * timeout_ms / 1000
    requests = 0.0 if bare else process_s * 1000 * EXTENSIONS_PER_TIMEOUT / timeout_ms
    twice_s = again_ms / 1000
    return Cost(
        timeout_ms=timeout_ms,
        waiting_s=waiting_s,
        twice_s=twice_s,
        taken=taken,
        dead_letters=dead,
        requests=requests,
        total_s=waiting_s + weights.rerun * twice_s + weights.dead_letter_s * dead + weights.request_s * requests,
    )


def candidates(kinds: Iterable[Record], workers: Workers, weights: Weights) -> list[int]:
    """Return the timeouts worth looking at, ascending: a grid, and what is just long enough for each bin."""
    histograms = [histogram for kind in kinds for histogram in (kind.held, kind.silences)]
    everything = merged(histograms)
    lowest, highest = SHORTEST_MS, 4 * everything.longest_ms
    if workers is Workers.EXTENDING:
        lowest, highest = weights.floor_ms, max(highest, LONGEST_OF_EXTENDING_MS)
    octave = range(2 * bin_of(lowest) // BINS_PER_OCTAVE, 2 * bin_of(highest) // BINS_PER_OCTAVE + 2)
    grid = {round(2 ** (half / 2)) for half in octave}
    just_enough = {math.floor(each.longest_ms * weights.headroom) + 1 for each in everything.bins}
    just_enough |= {each.longest_ms + 1 for each in everything.bins}
    return sorted({lowest, *(ms for ms in grid | just_enough if lowest < ms <= highest)})


def advise(
    kinds: Sequence[Record],
    workers: Workers,
    weights: Weights,
    *,
    process_s: float = 0.0,
    configured_ms: int | None = None,
) -> Advice:
    """Choose the candidate that would have cost least; of equals the longest, which is the safer one."""
    kinds = [*kinds, _one_crash_at_least(kinds)]

    def cost(timeout_ms: int) -> Cost:
        return cost_of(timeout_ms, kinds, workers, weights, process_s=process_s)

    curve = tuple(map(cost, candidates(kinds, workers, weights)))
    best = min(reversed(curve), key=lambda each: each.total_s)
    held = merged(kind.held for kind in kinds)
    rules = {"2 x p95": 2 * held.quantile(0.95), "3 x worst": 3 * held.longest_ms, "configured": configured_ms or 0}
    return Advice(
        best=cost(round_up(best.timeout_ms)),
        curve=curve,
        rules={name: cost(timeout_ms) for name, timeout_ms in rules.items() if timeout_ms},
        notes=tuple(_notes(kinds, held)),
    )


def _one_crash_at_least(kinds: Sequence[Record]) -> Record:
    """Return what is missing to one crash: where none happened, nothing else would speak for a short timeout."""
    return Record(crashes=max(0.0, 1.0 - sum(kind.crashes for kind in kinds)))


def _notes(kinds: Sequence[Record], held: Histogram) -> Iterable[str]:
    if held.count < FEW:
        yield f"only {held.count} deliveries are known: the longest ones are probably not among them"
    crashes = sum(kind.crashes for kind in kinds)
    if crashes <= 1:
        yield "no crash, or one, is recorded: one is assumed"


def advise_group(record: GroupRecord, weights: Weights) -> GroupAdvice:
    """Advise a group: one timeout for all its jobs, and for comparison one for each type by itself."""
    process_s, configured_ms = record.process_s, record.configured_ms
    together = advise(record.kinds, record.workers, weights, process_s=process_s, configured_ms=configured_ms)
    by_type: dict[str, Advice] = {}
    if len(record.kinds) > 1:
        total_ms = sum(kind.held.total_ms for kind in record.kinds) or 1
        for kind in record.kinds:
            share = kind.held.total_ms / total_ms
            by_type[kind.type] = advise(
                [kind], record.workers, weights, process_s=process_s * share, configured_ms=configured_ms
            )
    return GroupAdvice(record=record, advice=together, by_type=by_type)


def round_up(timeout_ms: int) -> int:
    """Return the next duration that people would write: two digits, and whole tens of milliseconds."""
    step = 10 ** max(1, len(str(timeout_ms)) - 2)
    return int(-(-timeout_ms // step) * step)
