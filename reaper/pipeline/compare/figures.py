"""The compared figures, from the reports of the drills. Pure.

Times and costs are medians of several turns. Broken promises are sums, because a median would hide a job that was lost
in one turn of three.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from reaper.pipeline.compare.play import PlayedDrill

Report = Mapping[str, Any]


class Kind(StrEnum):
    """The property that a figure measures, from the most important on."""

    SAFETY = "safety"
    SPEED = "speed"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a drill."""

    name: str
    title: str
    read: Callable[[Report], float | None]
    unit: str = ""
    """``s``, ``/s``, ``ms`` or ``us``. Empty for a count."""
    less_is_better: bool = True
    least: float = 0.0
    """Differences up to this are ignored, even if the figures are small."""
    kind: Kind | None = None
    """None = the figure is only shown."""


def _spread(name: str, part: str) -> Callable[[Report], float | None]:
    return lambda report: (report.get(name) or {}).get(part)


def _healthy(part: str, quantile: str | None = None) -> Callable[[Report], float | None]:
    def read(report: Report) -> float | None:
        value = report["healthy"][part]
        found: float | None = value[quantile] if quantile else value
        return found

    return read


def _cpu_us(report: Report) -> float | None:
    """CPU time of all processes, workers and reapers."""
    return _total(report["cpu_us_per_job"])


def _total(by_role: Mapping[str, float | None]) -> float | None:
    known = [value for value in by_role.values() if value is not None]
    return sum(known) if known else None


def _a_second(part: str, scale: float = 1.0) -> Callable[[Report], float | None]:
    def read(report: Report) -> float | None:
        used = _total(report[part]) if isinstance(report[part], Mapping) else report[part]
        return None if used is None else used * scale / report["wall_s"]

    return read


def _innocent(report: Report) -> float:
    """Dead letters that are no poison jobs."""
    return float(max(0, report["dead_lettered"] - report["poison"]))


_DURING = "healthy jobs during faults"

FIGURES = (
    Figure("lost", "jobs lost", lambda report: report["lost"], kind=Kind.SAFETY),
    Figure("stuck", "jobs stuck at the end", lambda report: report["stuck"], kind=Kind.SAFETY),
    Figure("innocent", "jobs dead-lettered by mistake", _innocent, kind=Kind.SAFETY),
    Figure("duplicates", "jobs completed twice", lambda report: len(report["duplicates"]), least=1, kind=Kind.SAFETY),
    Figure("recovery_p50", "fault to second start, p50", _spread("recovery_s", "p50"), "s", least=0.1),
    Figure("recovery_max", "fault to second start, longest", _spread("recovery_s", "max"), "s", least=0.25,
           kind=Kind.SPEED),
    Figure("overshoot_max", "past the visibility timeout, longest", _spread("overshoot_s", "max"), "s", least=0.1),
    Figure("second_starts", "jobs started again", lambda report: len(report["second_starts"]), least=3),
    Figure("latency_p99", f"wait of {_DURING}, p99", _healthy("latency_s", "p99"), "s", least=0.05, kind=Kind.SPEED),
    Figure("latency_p50", f"wait of {_DURING}, p50", _healthy("latency_s", "p50"), "s", least=0.02),
    Figure("throughput", f"completed {_DURING}", _healthy("throughput_per_s"), "/s", less_is_better=False, least=1),
    Figure("requests", "requests to Redis a job", lambda report: report["redis_requests_per_job"], least=0.05,
           kind=Kind.COST),
    Figure("redis_cpu", "CPU of Redis a job", lambda report: report["redis_cpu_us_per_job"], "us", least=10),
    Figure("cpu", "CPU of workers and reapers a job", _cpu_us, "us", least=200, kind=Kind.COST),
    Figure("idle_requests", "requests to Redis", _a_second("redis_requests"), "/s", least=0.2, kind=Kind.COST),
    Figure("idle_redis", "CPU of Redis", _a_second("redis_cpu_s", 1000), "ms/s", least=0.2),
    Figure("idle_cpu", "CPU of workers and reapers", _a_second("cpu_s", 1000), "ms/s", least=1.0, kind=Kind.COST),
    Figure("processes", "processes to run and watch", lambda report: sum(report["processes"].values())),
)  # fmt: skip
COUNTS_OF_JOBS = ("lost", "stuck", "innocent", "duplicates", "second_starts")
NOT_WHILE_IDLE = frozenset(figure.name for figure in FIGURES if not figure.name.startswith("idle_")) - {"processes"}


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure of one mode in one scenario, of all turns."""

    value: float
    """The median of the turns, or the sum of broken promises."""
    low: float
    high: float
    turns: int = 1
    struck: int = 0
    """Turns in which it was not 0."""


Table = Mapping[str, Mapping[str, Measured]]
"""Figures by name, each by mode. A mode without the figure is left out."""


def measure(played: Iterable[PlayedDrill], scenario: str) -> dict[str, dict[str, Measured]]:
    """Return the figures of a scenario, by name and mode."""
    turns: dict[str, list[Report]] = {}
    for one in played:
        if one.scenario == scenario:
            turns.setdefault(one.mode, []).append(one.report)
    table: dict[str, dict[str, Measured]] = {}
    for figure in FIGURES:
        if (figure.name in NOT_WHILE_IDLE) == (scenario == "idle"):
            continue
        found = {mode: _of(figure, reports) for mode, reports in turns.items()}
        row = {mode: measured for mode, measured in found.items() if measured}
        if row:
            table[figure.name] = row
    return table


def _of(figure: Figure, reports: Sequence[Report]) -> Measured | None:
    values = [value for report in reports if (value := figure.read(report)) is not None]
    if not values:
        return None
    value = sum(values) if figure.kind is Kind.SAFETY else median(values)
    return Measured(value, min(values), max(values), len(values), sum(1 for turn in values if turn))
