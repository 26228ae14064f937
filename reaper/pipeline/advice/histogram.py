"""Histograms of durations whose bins grow with the duration, so that a few hundred hold milliseconds and days. Pure."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

BINS_PER_OCTAVE = 16
"""A bin's upper end is 4.4 % above its lower one."""


def bin_of(duration_ms: int) -> int:
    """Return the number of the bin that holds ``duration_ms``; what is below a millisecond counts as one."""
    return math.floor(math.log2(max(1, duration_ms)) * BINS_PER_OCTAVE)


@dataclass(frozen=True, slots=True)
class Bin:
    """Durations of about the same length."""

    number: int
    count: int
    total_ms: int
    longest_ms: int

    def plus(self, other: "Bin") -> "Bin":
        """Return both together."""
        longest_ms = max(self.longest_ms, other.longest_ms)
        return Bin(self.number, self.count + other.count, self.total_ms + other.total_ms, longest_ms)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Bins in order, each once and none empty."""

    bins: tuple[Bin, ...] = ()

    @property
    def count(self) -> int:
        """How many durations there are."""
        return sum(each.count for each in self.bins)

    @property
    def total_ms(self) -> int:
        """Their sum."""
        return sum(each.total_ms for each in self.bins)

    @property
    def longest_ms(self) -> int:
        """The longest; 0 where there is none."""
        return self.bins[-1].longest_ms if self.bins else 0

    def quantile(self, share: float) -> int:
        """Return the quantile by nearest rank, as the longest duration of its bin: up to 4.4 % above; 0 of nothing."""
        rank, seen = math.ceil(share * self.count), 0
        for each in self.bins:
            seen += each.count
            if seen >= rank:
                return each.longest_ms
        return 0

    def scaled(self, factor: float) -> "Histogram":
        """Return it as it were if everything took ``factor`` times as long."""
        if factor == 1:
            return self
        longer = ((each.count, round(each.total_ms * factor), round(each.longest_ms * factor)) for each in self.bins)
        return of_bins(Bin(bin_of(longest_ms), n, total_ms, longest_ms) for n, total_ms, longest_ms in longer)

    def above(self, duration_ms: float) -> "Histogram":
        """Return the bins that reach ``duration_ms``, whole: where it lies within a bin, a little too much."""
        return Histogram(tuple(each for each in self.bins if each.longest_ms >= duration_ms))


def of_bins(bins: Iterable[Bin]) -> Histogram:
    """Put bins in order, those of the same number together. What took no time counts as a millisecond."""
    found: dict[int, Bin] = {}
    for each in bins:
        known = found.get(each.number, Bin(each.number, 0, 0, 1))
        found[each.number] = known.plus(each)
    return Histogram(tuple(found[number] for number in sorted(found)))


def of_durations(durations: Iterable[int]) -> Histogram:
    """Count durations in ms."""
    return of_bins(Bin(bin_of(ms), n, n * ms, ms) for ms, n in Counter(durations).items())


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """Put histograms together."""
    return of_bins(each for histogram in histograms for each in histogram.bins)
