"""How long tomorrow's deliveries may be held, of what was recorded: counted where many were, extrapolated beyond. Pure.

Below a threshold what was counted is expected again. Beyond it, where few were, stands a fitted `tail`. Ages that were
cut off (the delivery was taken away, and would have gone on) are no durations: by the estimator of Kaplan and Meier
they count for what is longer than they.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from random import Random

from reaper.pipeline.advice.histogram import Bin, Histogram
from reaper.pipeline.advice.tail import Excesses, Tail, fit

FEWEST = 10
"""A tail is fitted to no fewer durations."""
_MOST_SHARE = 0.65
"""The largest share of all deliveries that a tail is tried on: it describes few of the short ones."""
_SMALLER = 1.5
"""If it does not fit, one of so many times fewer is tried."""
_ALIKE = 0.85
"""Kolmogorov's distance of a tail that fits, times the root of how many were seen."""
_UNLIKELY = 0.02
"""So unlikely must the longest ones be by a tail that it does not fit them."""
_LONGEST_ONES = 16
_ALONE = ((0.3, 0.1), (0.4, 0.2), (0.3, 0.3))
"""Weights and shapes ``ξ`` beyond the longest, where no tail fits: a few slow jobs among many others, say."""
_FINENESS = 8
"""Timeouts that are looked at in each octave, before the best is looked for around the best of them."""
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class Prices:
    """What counts in the choice of a timeout, in seconds of waiting for each delivery."""

    wait: float
    """A millisecond of timeout: for the deliveries whose workers crash."""
    cut: float
    """A delivery that reaches the timeout."""
    held_ms: float
    """A millisecond that such a delivery is held."""


@dataclass(frozen=True)
class Outlook:
    """Shares of deliveries by how long they are held, in ms."""

    body: tuple[tuple[int, float, float], ...]
    """Below the threshold: the longest of a bin, the share of deliveries in it, and the ms they are held, for each of
    all deliveries. Ascending."""
    threshold_ms: int
    longest_ms: int
    """The longest that was seen, or cut off."""
    beyond: float
    """The share of deliveries above the threshold."""
    tails: tuple[Tail, ...]
    seen: float
    """How many were seen beyond the threshold."""

    @cached_property
    def _suffixes(self) -> tuple[list[int], list[tuple[float, float]]]:
        """The ends of the bins, and what is in each bin and beyond: a share, and ms."""
        tail_ms = self.beyond * (self.threshold_ms + sum(each.weight * each.mean_excess(0) for each in self.tails))
        sums = accumulate(
            reversed(self.body),
            lambda sum_, bin_: (sum_[0] + bin_[1], sum_[1] + bin_[2]),
            initial=(self.beyond, tail_ms),
        )
        return [longest_ms for longest_ms, _, _ in self.body], list(sums)[::-1]

    def reach(self, timeout_ms: float) -> tuple[float, float]:
        """Return the share of deliveries that reach a timeout, and for how many ms they are held, for each of all."""
        if timeout_ms <= self.threshold_ms:
            ends, sums = self._suffixes
            return sums[bisect_left(ends, timeout_ms)]
        excess = timeout_ms - self.threshold_ms
        share = held_ms = 0.0
        for tail in self.tails:
            base = 1 + tail.theta * excess
            if base > 0:
                part = tail.weight * base ** (-1 / tail.xi)
                share += part
                held_ms += part * (timeout_ms + tail.xi / tail.theta * base / (1 - tail.xi))
        return share * self.beyond, held_ms * self.beyond

    def cost(self, timeout_ms: float, prices: Prices) -> float:
        """Return what a timeout is expected to cost, for each delivery."""
        share, held_ms = self.reach(timeout_ms)
        return prices.wait * timeout_ms + prices.cut * share + prices.held_ms * held_ms

    def best(self, prices: Prices, shortest_ms: float) -> float:
        """Return the timeout, of at least ``shortest_ms``, that is expected to cost least."""
        ends, sums = self._suffixes
        begin = bisect_left(ends, shortest_ms)
        counted = [
            (prices.wait * (end + 1) + prices.cut * share + prices.held_ms * held_ms, float(end + 1))
            for end, (share, held_ms) in zip(ends[begin:], sums[begin + 1 :], strict=True)
        ]
        return min(
            [*counted, self._best_of_tail(prices, shortest_ms), (self.cost(shortest_ms, prices), float(shortest_ms))]
        )[1]

    def _best_of_tail(self, prices: Prices, shortest_ms: float) -> tuple[float, float]:
        grid = [timeout_ms for timeout_ms in self._timeouts() if timeout_ms >= shortest_ms] or [shortest_ms]
        costs = [self.cost(timeout_ms, prices) for timeout_ms in grid]
        place = costs.index(min(costs))
        low, high = grid[max(0, place - 1)], grid[min(len(grid) - 1, place + 1)]
        return min((costs[place], grid[place]), self._between(low, high, prices))

    def _timeouts(self) -> list[float]:
        """Return timeouts beyond the threshold, ascending: some in each octave, and more near the longest."""
        low, top = max(1, self.threshold_ms), self.longest_ms
        octave = 1 / _FINENESS
        by_octaves = [low * 2 ** (n * octave) for n in range(1, math.ceil(math.log2(8 * max(2, top / low)) / octave))]
        near = [top * (1 + 0.0002 * 2 ** (n / 2)) for n in range(22)]
        ends = [self.threshold_ms + tail.end for tail in self.tails] if len(self.tails) == 1 else []
        return sorted({ms for ms in (*by_octaves, *near, *ends) if self.threshold_ms < ms < math.inf})

    def _between(self, low: float, high: float, prices: Prices) -> tuple[float, float]:
        """Look for the minimum by golden section."""
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        at_left, at_right = self.cost(left, prices), self.cost(right, prices)
        while high - low > 1e-3 * high:
            if at_left < at_right:
                high, right, at_right = right, left, at_left
                left = high - _GOLDEN * (high - low)
                at_left = self.cost(left, prices)
            else:
                low, left, at_left = left, right, at_right
                right = low + _GOLDEN * (high - low)
                at_right = self.cost(right, prices)
        return min((at_left, left), (at_right, right))

    def drawn(self, random: Random, count: int) -> "Outlook":
        """Return one that the record may just as well have come from: its bins by Rubin's bootstrap, and one tail."""
        weights = [random.gammavariate(max(share * count, 1e-3), 1.0) for _, share, _ in self.body]
        beyond = random.gammavariate(max(self.seen, 1.0), 1.0) * self.beyond * count / max(self.seen, 1.0)
        total = sum(weights) + beyond
        body = tuple(
            (end, weight / total, held_ms / share * weight / total if share else 0.0)
            for (end, share, held_ms), weight in zip(self.body, weights, strict=True)
        )
        (tail,) = random.choices(self.tails, [each.weight for each in self.tails])
        one = (Tail(1.0, tail.theta, tail.xi),)
        return Outlook(body, self.threshold_ms, self.longest_ms, beyond / total, one, self.seen)


# ---- made of a record


def outlook(held: Histogram, cut_off: Histogram) -> Outlook:
    """Return what to expect, of how long deliveries were held, and of the ages at which some were cut off.

    There must be at least one of either.
    """
    bins = list(_with_longest_apart(held))
    shares = _shares(bins, cut_off)
    count = held.count + cut_off.count
    longest_ms = max(held.longest_ms, cut_off.longest_ms)
    for begin in _begins(bins, count):
        threshold_ms = bins[begin - 1].longest_ms if begin else 0
        seen = _excesses(bins[begin:], threshold_ms)
        cut = _excesses([each for each in cut_off.bins if each.longest_ms > threshold_ms], threshold_ms)
        tails = fit(seen, cut)
        beyond = 1 - sum(shares[:begin])
        weights = [share / beyond for share in shares[begin:]] if beyond > 0 else []
        if tails and _fits(tails, bins[begin:], threshold_ms, weights):
            reached = sum(number for _, number in seen)
            return _outlook(bins[:begin], shares, threshold_ms, longest_ms, beyond, tails, reached)
    return _without_a_fit(bins, shares, cut_off, count)


def _outlook(
    body: Sequence[Bin], shares: Sequence[float], threshold_ms: int, longest_ms: int, beyond: float,
    tails: Sequence[Tail], seen: float,
) -> Outlook:  # fmt: skip
    known = tuple(
        (each.longest_ms, share, share * each.total_ms / each.count) for each, share in zip(body, shares, strict=False)
    )
    return Outlook(known, threshold_ms, longest_ms, beyond, tuple(tails), seen)


def _without_a_fit(bins: Sequence[Bin], shares: Sequence[float], cut_off: Histogram, count: int) -> Outlook:
    """Expect one more of so many beyond the longest, or as many as were cut off there."""
    longest_ms = max(bins[-1].longest_ms if bins else 1, cut_off.longest_ms)
    beyond = max(1 / (count + 1), 1 - sum(shares))
    tails = [Tail(weight, 1 / longest_ms, xi) for weight, xi in _ALONE]
    return _outlook(bins, [share * (1 - beyond) for share in shares], longest_ms, longest_ms, beyond, tails, 1.0)


def _with_longest_apart(held: Histogram) -> Iterator[Bin]:
    """Return the bins, the longest duration of all in one of its own: where a tail ends it says most."""
    if not held.bins:
        return
    yield from held.bins[:-1]
    last = held.bins[-1]
    others, rest_ms = last.count - 1, last.total_ms - last.longest_ms
    if others:
        yield Bin(last.number, others, rest_ms, last.longest_ms)
    yield Bin(last.number, 1, last.longest_ms, last.longest_ms)


def _shares(bins: Sequence[Bin], cut_off: Histogram) -> list[float]:
    """Return the share of deliveries in each bin; what is missing to 1 is longer than all of them."""
    at_risk = sum(each.count for each in bins) + cut_off.count
    waiting, left, shares = list(cut_off.bins), 1.0, []
    for each in bins:
        while waiting and waiting[0].longest_ms < each.longest_ms:
            at_risk -= waiting.pop(0).count
        share = left * each.count / at_risk
        shares.append(share)
        left -= share
        at_risk -= each.count
    return shares


def _begins(bins: Sequence[Bin], count: int) -> Iterator[int]:
    """Return where a tail may begin: the last bins that hold many, then fewer and fewer."""
    wanted, before = min(_MOST_SHARE * count, 4 * count ** (2 / 3)), -1
    while wanted >= FEWEST:
        held, begin = 0, len(bins)
        while begin and held < wanted:
            begin -= 1
            held += bins[begin].count
        if begin != before:
            yield begin
        wanted, before = wanted / _SMALLER, begin


def _excesses(bins: Sequence[Bin], threshold_ms: int) -> list[tuple[float, float]]:
    return [(max(each.total_ms / each.count - threshold_ms, 0.5), each.count) for each in bins]


def _fits(tails: Sequence[Tail], bins: Sequence[Bin], threshold_ms: int, shares: Sequence[float]) -> bool:
    """Tell whether the most likely tail lies close to what was seen, and whether the longest ones may be of it."""
    best = max(tails, key=lambda each: each.weight)
    count = sum(each.count for each in bins)
    before = distance = 0.0
    for each, share in zip(bins, shares, strict=True):
        shorter = 1 - best.survival(each.longest_ms - threshold_ms)
        # Where in its bin the shortest one lies is not known, unless it is the only one.
        distance = max(distance, abs(shorter - before - share), abs(shorter - before) if each.count == 1 else 0)
        before += share
    return distance * math.sqrt(count) < _ALIKE and _longest_may_be(tails, _excesses(bins, threshold_ms), count)


def _longest_may_be(tails: Sequence[Tail], seen: Excesses, count: float) -> bool:
    above = 0.0
    for excess, number in reversed(seen):
        above += number
        if above > _LONGEST_ONES:
            return True
        expected = count * sum(each.weight * each.survival(excess * 0.999) for each in tails)
        if _at_least(int(above), expected) < _UNLIKELY:
            return False
    return True


def _at_least(number: int, expected: float) -> float:
    """Return how likely it is that so many happen, of so many that are expected (Poisson)."""
    term = total = math.exp(-expected)
    for k in range(1, number):
        term *= expected / k
        total += term
    return 1 - total
