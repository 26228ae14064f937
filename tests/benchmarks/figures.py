"""The result of a benchmark. Each row has a number, the bare loop's number from the same run, and the demand. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

NOT_APPLICABLE = "-"


class Spread(NamedTuple):
    """How values are spread."""

    p50: float
    p99: float
    max: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile, which is the smallest value that ``share`` (0 … 1) of all values do not
    exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> Spread:
    """Return p50, p99 and max of at least one value."""
    return Spread(percentile(values, 0.5), percentile(values, 0.99), max(values))


def median_ratio(ours: Sequence[float], bare: Sequence[float]) -> float:
    """Return the median ratio of pairs that were measured one right after the other."""
    return median(one / other for one, other in zip(ours, bare, strict=True))


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand on a number, or on its ratio to the bare one."""

    kind: Literal["at most", "at least"]
    limit: float
    of_ratio: bool = False

    def holds(self, value: float) -> bool:
        """Tell whether ``value`` (or the ratio) satisfies it."""
        return value <= self.limit if self.kind == "at most" else value >= self.limit


def at_most(limit: float) -> Demand:
    """Demand that the value is not above ``limit``, in the row's unit."""
    return Demand("at most", limit)


def at_least_ratio(limit: float) -> Demand:
    """Demand that the value is at least ``limit`` times its bare counterpart."""
    return Demand("at least", limit, of_ratio=True)


def at_most_ratio(limit: float) -> Demand:
    """Demand that the value is at most ``limit`` times its bare counterpart."""
    return Demand("at most", limit, of_ratio=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    ours: float
    unit: str = ""
    bare: float | None = None
    demand: Demand | None = None
    ratio_of_pairs: float | None = None
    """Where pairs were measured in turn: the median of their ratios, instead of the ratio of the two numbers shown."""

    @property
    def ratio(self) -> float | None:
        """Ours divided by bare."""
        if self.ratio_of_pairs is not None:
            return self.ratio_of_pairs
        return self.ours / self.bare if self.bare else None

    @property
    def met(self) -> bool | None:
        """Return whether the demand is met, or None without a demand."""
        if self.demand is None:
            return None
        value = self.ratio if self.demand.of_ratio else self.ours
        return value is not None and self.demand.holds(value)

    def cells(self) -> tuple[str, str, str, str, str, str]:
        """Return the table's cells, which are the subject, ours, bare, ratio, demand and met."""
        return (
            self.what,
            shown(self.ours, self.unit),
            NOT_APPLICABLE if self.bare is None else shown(self.bare, self.unit),
            NOT_APPLICABLE if self.ratio is None else f"{self.ratio:.2f}",
            self._demanded(),
            {True: "met", False: "NOT met", None: ""}[self.met],
        )

    def _demanded(self) -> str:
        if self.demand is None:
            return ""
        if self.demand.of_ratio:
            return f"ratio {self.demand.kind} {self.demand.limit:g}"
        return f"{self.demand.kind} {shown(self.demand.limit, self.unit)}"


HEADER = ("what", "stream-reaper", "bare", "ratio", "demand", "")


def shown(value: float, unit: str) -> str:
    """Format a number with three significant digits below 100, and with separated thousands."""
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}{'' if unit.startswith('/') or not unit else ' '}{unit}"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one benchmark."""

    rows: tuple[Row, ...]
