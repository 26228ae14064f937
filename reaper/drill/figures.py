"""Measures spreads, and the throughput and latency of jobs that no fault hit, in all and during faults. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from reaper.drill.evidence import Evidence
from reaper.drill.executions import Cause, SecondStart
from reaper.drill.faults import LONG_JOBS, FaultKind
from reaper.drill.records import Step
from workers.protocol.events import EventName
from workers.protocol.messages import entry_ms

HIT = frozenset({Cause.WORKER_KILLED, Cause.POISON, Cause.WORKER_ENDED})
"""Causes of second starts after the end of the process that ran the job."""
COPING_TIMEOUTS = 2
"""Visibility timeouts after a fault that belong to its time, one to notice it and one to run the jobs again."""

Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, 99th percentile and maximum. None without values."""

    p50: float | None = None
    p99: float | None = None
    max: float | None = None


def spread(values: Iterable[float]) -> Spread:
    """Measure ``values`` by nearest rank, so every figure is one of them."""
    ordered = sorted(values)
    if not ordered:
        return Spread()

    def rank(share: float) -> float:
        return ordered[math.ceil(share * len(ordered)) - 1]

    return Spread(rank(0.5), rank(0.99), ordered[-1])


@dataclass(frozen=True, slots=True)
class Healthy:
    """Jobs during faults that are no poison, and that were not pending in a process when it died.

    The time of a fault lasts for two visibility timeouts after it, or for poison until its last run would be over.
    Without faults, it is from the first job to the last completion.
    """

    jobs: int = 0
    """In the whole act."""
    seconds: float = 0.0
    latency_s: Spread = field(default_factory=Spread)
    """From enqueueing to first start, of the jobs that were enqueued in this time."""
    throughput_per_s: float | None = None
    """Jobs that were completed a second, for the first time. None for no time at all."""


def healthy_jobs(evidence: Evidence, starts: Sequence[SecondStart]) -> Healthy:
    """Measure the jobs that no fault hit. ``starts`` are all second starts."""
    hit = {start.n for start in starts if start.cause in HIT} | _read_by_the_dead(evidence)
    enqueued = {
        job.n: entry_ms(job.entry_id) / 1000 - evidence.clock_ahead_s
        for job in evidence.enqueued
        if not job.poison and job.n not in hit
    }
    if not enqueued:
        return Healthy()
    started = {n: lines[0].at for n, lines in evidence.lines_of(Step.START).items() if n in enqueued}
    done = {n: lines[0].at for n, lines in evidence.lines_of(Step.DONE).items() if n in enqueued}
    first, last = min(enqueued.values()), max([*enqueued.values(), *done.values()])
    clipped = ((max(start, first), min(end, last)) for start, end in fault_windows(evidence))
    windows = [(start, end) for start, end in clipped if start < end] or [(first, last)]
    seconds = sum(end - start for start, end in windows)
    return Healthy(
        jobs=len(enqueued),
        seconds=seconds,
        latency_s=spread(max(0.0, at - enqueued[n]) for n, at in started.items() if _within(enqueued[n], windows)),
        throughput_per_s=sum(_within(at, windows) for at in done.values()) / seconds if seconds else None,
    )


def fault_windows(evidence: Evidence) -> list[Window]:
    """Return the times of faults, without overlaps."""
    found: list[Window] = []
    for fault in evidence.faults:
        timeouts = evidence.max_deliveries + 1 if fault.kind == FaultKind.POISON else COPING_TIMEOUTS
        if fault.kind != LONG_JOBS:
            found.append((fault.at, (fault.until or fault.at) + timeouts * evidence.visibility_s))
    windows: list[Window] = []
    for start, end in sorted(found):
        if windows and start <= windows[-1][1]:
            windows[-1] = windows[-1][0], max(end, windows[-1][1])
        else:
            windows.append((start, end))
    return windows


def _read_by_the_dead(evidence: Evidence) -> set[int]:
    """Return the jobs that were recovered from a process that had died, though it may not have started them."""
    hit: set[int] = set()
    for event in evidence.named(EventName.RECOVERED, EventName.QUARANTINED, EventName.DEAD_LETTERED):
        run = evidence.process_named(str(event.data.get("consumer", "")))
        if run and run.ended_at is not None and run.ended_at <= evidence.local(event):
            hit.add(evidence.numbers.get(event.job, 0))
    return hit


def _within(at: float, windows: Sequence[Window]) -> bool:
    return any(start <= at <= end for start, end in windows)
