"""Median, 99th percentile and maximum. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, 99th percentile and maximum; None where there is nothing to measure."""

    p50: float | None = None
    p99: float | None = None
    max: float | None = None


def spread(values: Iterable[float]) -> Spread:
    """Measure ``values`` by nearest rank: every figure is one that occurred."""
    ordered = sorted(values)
    if not ordered:
        return Spread()

    def rank(share: float) -> float:
        return ordered[math.ceil(share * len(ordered)) - 1]

    return Spread(rank(0.5), rank(0.99), ordered[-1])
