"""Chooses the visibility timeout that is expected to cost least, and says how sure that is. Pure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from reaper.pipeline.advice.costs import Expected, OfBare, OfExtending
from reaper.pipeline.advice.crashes import CrashRate, crash_rate
from reaper.pipeline.advice.drift import drift
from reaper.pipeline.advice.histogram import Histogram, merged
from reaper.pipeline.advice.model import (
    ENOUGH,
    LONGEST_MS,
    MOST_STALLS,
    SHORTEST_MS,
    Advice,
    GroupAdvice,
    GroupRecord,
    Interval,
    Record,
    Verdict,
    Weights,
    Workers,
)
from reaper.pipeline.advice.outlook import outlook

DRAWS = 100
"""Records that are made up to see how far an advice depends on chance."""
_LEFT_OUT = 5
"""Of these, on each side of an interval: nine in ten are in it."""
GOES_ON = 1.5
"""From the middle of the later half it is so many times as far to that of what comes next as from the earlier one."""
POINTS_PER_OCTAVE = 2
"""Of the curve."""


@dataclass(frozen=True, slots=True)
class _Basis:
    """What an advice is made of."""

    expected: Expected
    rate: CrashRate
    work_s: float

    def crashes(self, share: float | None = None) -> float:
        """Return how many crashes are expected in as much work again, or are exceeded with 1 - ``share``."""
        return self.work_s * (self.rate.mean if share is None else self.rate.quantile(share))


def advise(record: GroupRecord, weights: Weights, *, intervals: bool = True) -> Advice:
    """Advise on one timeout for all jobs of the record. Without ``intervals``, which take time, they are left open.

    At least one delivery must be known, or one that was cut off.
    """
    held = merged(kind.held for kind in record.kinds)
    cut_off = merged(kind.cut_off for kind in record.kinds)
    bare = record.workers is Workers.BARE
    change = drift(*record.halves) if record.halves and bare else None
    expected = _of_bare(record, held, cut_off, change, weights) if bare else _of_extending(record, weights)
    work_s = (held.total_ms + cut_off.total_ms + 1) / 1000
    basis = _Basis(expected, crash_rate(sum(kind.crashes for kind in record.kinds), work_s), work_s)
    verdict = _verdict(record, held, cut_off)
    fair = expected.fair(basis.crashes())
    timeout_ms = fair.best(basis.crashes())
    if verdict is Verdict.TOO_SHORT:
        timeout_ms = max(timeout_ms, 2 * (record.configured_ms or 0), 2 * cut_off.longest_ms)
    best = fair.cost(min(round_up(math.ceil(timeout_ms)), LONGEST_MS), basis.crashes())
    timeouts, costs = _intervals(basis, best.timeout_ms, verdict) if intervals else (Interval(low=0, high=None),) * 2
    rules = {"2 x p95": 2 * held.quantile(0.95), "3 x worst": 3 * held.longest_ms, "configured": record.configured_ms}
    return Advice(
        verdict=verdict,
        best=best,
        timeout_ms=timeouts,
        cost_s=costs,
        curve=tuple(fair.cost(ms, basis.crashes()) for ms in _curve(record, weights, held, best.timeout_ms)),
        rules={name: fair.cost(ms, basis.crashes()) for name, ms in rules.items() if ms},
        drift=change,
        notes=(*_floor(record, weights, timeout_ms), *_notes(record, basis, verdict, change)),
    )


def _of_bare(
    record: GroupRecord, held: Histogram, cut_off: Histogram, change: float | None, weights: Weights
) -> OfBare:
    """Expect what was seen; where deliveries take longer and longer, what was seen lately, and that it goes on."""
    deliveries = held.count + cut_off.count
    if change and change > 1 and record.halves:
        held = record.halves[1].scaled(change**GOES_ON)
    return OfBare(outlook(held.scaled(weights.headroom), cut_off), deliveries, weights)


def _of_extending(record: GroupRecord, weights: Weights) -> OfExtending:
    silences = [(kind.silences, kind.silent_runs_ms / max(1, kind.silences.count)) for kind in record.kinds]
    return OfExtending([each for each in silences if each[0].count], record.process_s, weights)


def _verdict(record: GroupRecord, held: Histogram, cut_off: Histogram) -> Verdict:
    if record.workers is Workers.EXTENDING:
        return Verdict.ADVISED
    doubtful = record.doubtful
    if doubtful > MOST_STALLS * (held.count + doubtful):
        return Verdict.TOO_SHORT
    return Verdict.ADVISED if held.count + cut_off.count >= ENOUGH else Verdict.TOO_FEW


def _intervals(basis: _Basis, timeout_ms: int, verdict: Verdict) -> tuple[Interval, Interval]:
    """Make records up that this one may have come from, and see what is best for each of them.

    Where too little is known, only a lower bound can be given: what is longest may be missing. A few more of the
    extremes are kept than nine in ten would need: that a tail is of the family which is fitted is only nearly true.
    """
    random = Random(DRAWS)
    shares = [(number + 0.5) / DRAWS for number in range(DRAWS)]
    random.shuffle(shares)
    best, costs = [], []
    for share in shares:
        drawn, crashes = basis.expected.drawn(random), basis.crashes(share)
        best.append(drawn.best(crashes))
        costs.append(drawn.cost(timeout_ms, crashes).total_s)
    if verdict is Verdict.ADVISED:
        return _between(best), _between(costs)
    return Interval(low=sorted(best)[_LEFT_OUT], high=None), Interval(low=sorted(costs)[_LEFT_OUT], high=None)


def _between(values: list[float]) -> Interval:
    ordered = sorted(values)
    return Interval(low=ordered[_LEFT_OUT], high=ordered[-1 - _LEFT_OUT])


def _curve(record: GroupRecord, weights: Weights, held: Histogram, timeout_ms: int) -> Iterator[int]:
    """Return timeouts that are shown, ascending: from the shortest to four times what is long."""
    bare = record.workers is Workers.BARE
    low = min(SHORTEST_MS if bare else weights.floor_ms, timeout_ms)
    highest = 4 * max(timeout_ms, held.longest_ms if bare else 0)
    for number in range(math.ceil(math.log2(highest / low) * POINTS_PER_OCTAVE) + 1):
        yield round(low * 2 ** (number / POINTS_PER_OCTAVE))


def _floor(record: GroupRecord, weights: Weights, timeout_ms: float) -> Iterator[str]:
    """Say why a shorter timeout is not advised, although its cost in the table is lower."""
    if record.workers is Workers.EXTENDING and timeout_ms <= weights.floor_ms:
        yield (
            f"{weights.floor_ms / 1000:g} s is the floor, 1.5 times --pause ({weights.pause_ms / 1000:g} s). With less "
            "a worker that is silent for that long loses its jobs. Shorter timeouts look cheaper in the table because "
            "the journal does not show silences that cost nothing so far"
        )


def _notes(record: GroupRecord, basis: _Basis, verdict: Verdict, change: float | None) -> Iterator[str]:
    known = record.deliveries
    if verdict is Verdict.TOO_FEW:
        missed = 0.99**known * 100
        yield (
            f"not enough to say: of {known} deliveries, a kind of job that is one in a hundred is missing with a "
            f"probability of {missed:.0f} %; {ENOUGH} are enough"
        )
    if verdict is Verdict.TOO_SHORT:
        share = record.doubtful / (known + record.doubtful)
        yield (
            f"the timeout is too short to tell: {share:.0%} of the deliveries reached it, and nothing shows whether "
            "their workers had died or were slow; raise it to at least what is said here, and ask again"
        )
    if change:
        yield (
            f"deliveries of the later half were held {change:.2g} times as long as those of the earlier one"
            + ("; the advice expects that to go on" if change > 1 else "; the advice is for both")
        )
    crashes = sum(kind.crashes for kind in record.kinds)
    if crashes < 1:
        yield (
            f"no crash is recorded in {basis.work_s:,.0f} s of work: {basis.crashes():.2g} are expected in as much more"
        )


def advise_group(record: GroupRecord, weights: Weights) -> GroupAdvice:
    """Advise a group: one timeout for all its jobs, and for comparison one for each type by itself."""
    by_type: dict[str, Advice] = {}
    if len(record.kinds) > 1:
        total_ms = sum(kind.held.total_ms for kind in record.kinds) or 1
        for kind in record.kinds:
            if kind.held.count:
                by_type[kind.type] = advise(_of_type(record, kind, total_ms), weights, intervals=False)
    return GroupAdvice(record=record, advice=advise(record, weights), by_type=by_type)


def _of_type(record: GroupRecord, kind: Record, total_ms: int) -> GroupRecord:
    return GroupRecord(
        stream=record.stream,
        group=record.group,
        workers=record.workers,
        kinds=(kind,),
        process_s=record.process_s * kind.held.total_ms / total_ms,
        configured_ms=record.configured_ms,
    )


def round_up(timeout_ms: int) -> int:
    """Return the next duration that people would write: at most three digits, the first two whole, halved or fifths."""
    unit = 10 ** max(1, len(str(timeout_ms)) - 2)
    leading = timeout_ms // unit
    step = max(10, unit // 5 if leading < 20 else unit // 2 if leading < 50 else unit)
    return int(-(-timeout_ms // step) * step)
