"""Recommends the visibility timeout of a group. Pure."""

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from reaper.pipeline.advice.bound import countable, enough_for, upper_bound
from workers.protocol.messages import counted
from workers.runtime.settings import LONGEST, to_ms

SHORTEST_MS = 100
LONGEST_MS: int = to_ms(LONGEST)
"""No setting may be longer."""

Durations = Counter[float]
"""Number of executions by the ms for which they were held. ``inf`` counts those that outlasted the timeout."""


class Workers(StrEnum):
    """How the workers of a group keep their executions."""

    EXTENDING = "extending"
    """Workers of stream-reaper. Their heartbeats extend an execution while it runs."""
    PLAIN = "plain"
    """Workers without heartbeats, which must settle an execution within the visibility timeout."""


class Verdict(StrEnum):
    """The kind of a recommendation."""

    RECOMMENDED = "recommended"
    TOO_SHORT = "timeout too short"
    """Executions outlast the timeout in force, so the journal does not show how long they take."""
    TOO_FEW = "not enough to say"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The promise of a recommended timeout."""

    one_in: int = 1_000
    """At most one in this number of executions is recovered from a live worker."""
    pause_ms: int = 5_000
    """A worker that sends no heartbeat for this time keeps its executions."""

    @property
    def share(self) -> float:
        """The share of executions that may be recovered from live workers."""
        return 1 / self.one_in

    @property
    def floor_ms(self) -> int:
        """The shortest recommendation, because a pause can begin a third of the timeout after a heartbeat."""
        return max(SHORTEST_MS, math.ceil(1.5 * self.pause_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """Facts about a group."""

    stream: str
    """Key of its journal."""
    group: str
    workers: Workers
    durations: Durations
    by_type: dict[str, Durations] = field(default_factory=dict)
    """The durations of each job type. Third-party workers journal no type."""
    cut_off: int = 0
    """Executions that outlasted the visibility timeout, most likely not because their worker crashed."""
    in_force_ms: int | None = None
    """The visibility timeout that was last in force, if an event names one."""

    @property
    def executions(self) -> int:
        """Number of known executions."""
        return self.durations.total()

    @property
    def longest_ms(self) -> int:
        """The longest execution with a known duration, or 0."""
        return int(max((ms for ms in self.durations if ms < math.inf), default=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The recommended visibility timeout of a group, and the reason."""

    record: GroupRecord
    verdict: Verdict
    timeout_ms: int | None
    """None if the lake has too few executions."""
    why: str
    types: dict[str, int] = field(default_factory=dict)
    """Job types that need a longer timeout than their group, in ms."""


def advise(record: GroupRecord, promise: Promise) -> Advice:
    """Recommend a visibility timeout for a group."""
    return _for_extending(record, promise) if record.workers is Workers.EXTENDING else _for_plain(record, promise)


def _for_extending(record: GroupRecord, promise: Promise) -> Advice:
    lost = f"{counted(record.cut_off, 'execution')} of {record.executions:,} were recovered from live workers"
    if record.cut_off > promise.share * record.executions:
        return _too_short(record, promise, f"{lost}, which were silent for longer than the timeout")
    if record.cut_off and record.in_force_ms and record.in_force_ms > promise.floor_ms:
        return _recommended(record, record.in_force_ms, f"{lost}, so keep at least the timeout in force")
    why = (
        "its workers extend their executions, so long jobs need no longer timeout. This is the floor, 1.5 times "
        f"--pause ({seconds(promise.pause_ms)}): with less, a worker that is silent for so long can lose its jobs"
    )
    return _recommended(record, promise.floor_ms, why)


def _for_plain(record: GroupRecord, promise: Promise) -> Advice:
    enough = enough_for(promise.share)
    if record.executions < enough:
        known = counted(record.executions, "execution")
        why = f"{known} in the lake, and a promise of 1 in {promise.one_in:,} needs {enough:,}."
        return Advice(record=record, verdict=Verdict.TOO_FEW, timeout_ms=None, why=why)
    bound = upper_bound(record.durations, promise.share)
    if math.isinf(bound):
        slow = f"{counted(record.cut_off, 'job')} of {record.executions:,} outlasted the timeout more than once"
        return _too_short(record, promise, f"{slow}, because they are slow or poison")
    if bound <= promise.floor_ms:
        why = f"this is the floor, 1.5 times --pause ({seconds(promise.pause_ms)}). Its executions need less"
        return _recommended(record, promise.floor_ms, why)
    why = (
        f"the longest of {record.executions:,} executions took {seconds(record.longest_ms)}, and with 95 % confidence "
        f"at most 1 in {promise.one_in:,} takes longer than {seconds(round(bound))}"
    )
    if record.executions < countable(promise.share):
        why += (
            f". Fewer than {countable(promise.share):,} do not show this, so a Pareto tail continues the longest tenth"
        )
    types = {
        name: _written(longer)
        for name, durations in record.by_type.items()
        if durations.total() >= enough and (longer := upper_bound(durations, promise.share)) > _written(bound)
    }
    return _recommended(record, bound, why, types)


def _recommended(record: GroupRecord, ms: float, why: str, types: dict[str, int] | None = None) -> Advice:
    return Advice(record=record, verdict=Verdict.RECOMMENDED, timeout_ms=_written(ms), why=f"{why}.", types=types or {})


def _too_short(record: GroupRecord, promise: Promise, why: str) -> Advice:
    timeout_ms = _written(max(2 * (record.in_force_ms or 0), promise.floor_ms))
    least = f"double the timeout in force, or the floor, 1.5 times --pause ({seconds(promise.pause_ms)})"
    why = f"{why}. Raise the timeout (this is {least}), and ask again when more jobs have run."
    return Advice(record=record, verdict=Verdict.TOO_SHORT, timeout_ms=timeout_ms, why=why)


def _written(ms: float) -> int:
    """Round up to two digits, and to at most the longest setting."""
    whole = math.ceil(ms)
    unit: int = 10 ** max(1, len(str(whole)) - 2)
    return min(math.ceil(whole / unit) * unit, LONGEST_MS)


def seconds(ms: int) -> str:
    """Return a duration for people, in seconds."""
    return f"{ms / 1000:.3f}".rstrip("0").rstrip(".") + " s"
