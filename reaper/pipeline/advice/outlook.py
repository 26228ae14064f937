"""How long tomorrow's deliveries may be held, of what was recorded: counted where many were, extrapolated beyond. Pure.

Below a threshold what was counted is expected again. Beyond it, where few were, stands a fitted `tail`. Ages that were
cut off (the delivery was taken away, and would have gone on) are no durations: by the estimator of Kaplan and Meier
they count for what is longer than they.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from random import Random

from reaper.pipeline.advice.families import possible, weighed
from reaper.pipeline.advice.histogram import Bin, Histogram
from reaper.pipeline.advice.tail import Pareto, Tail

FEWEST = 10
"""A tail is fitted to no fewer durations."""
_MOST_SHARE = 0.65
"""The largest share of all deliveries that a tail is tried on: it describes few of the short ones."""
_SMALLER = 1.5
"""If it does not fit, one of so many times fewer is tried."""
_ALIKE = 0.85
"""Kolmogorov's distance of a tail that fits, times the root of how many were seen."""
_NEARLY_ALIKE = 1.25
"""The same of the one that is taken where none fits: there is none better, and it is no worse than this."""
_UNLIKELY = 0.02
"""So unlikely must the longest ones be by all tails that these do not fit them: too long, or too short."""
_LONGEST_ONES = 16
_GAP = 16
"""Slow jobs are apart if the shortest takes twice as long as all others; half of that gap is tried, too."""
_FEWEST_APART, _APART_SHARE = 4, 0.2
_ALONE = ((0.3, 0.1), (0.4, 0.2), (0.3, 0.3))
"""Weights and shapes ``ξ`` beyond the longest, where no tail fits: a few slow jobs among many others, say."""
_FINENESS = 8
"""Timeouts that are looked at in each octave, before the best is looked for around the best of them."""
_OCTAVES_BEYOND = 20
"""Beyond the last of these timeouts jobs are looked at that take so many octaves longer."""
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
        tail_ms = self.beyond * self.threshold_ms + self._lasting[2][0]
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
        places, shares, lasting = self._lasting
        share, place = self._share(timeout_ms), bisect_right(places, timeout_ms)
        held_ms = timeout_ms * share
        if place < len(places):
            held_ms += lasting[place] + (places[place] - timeout_ms) * _between(share, shares[place])
        return share, held_ms

    def _share(self, timeout_ms: float) -> float:
        excess = timeout_ms - self.threshold_ms
        share = 0.0
        for tail in self.tails:
            share += tail.weight * tail.survival(excess)
        return self.beyond * share

    @cached_property
    def _lasting(self) -> tuple[list[float], list[float], list[float]]:
        """Durations from the threshold on, the share that is longer, and the integral over these beyond, in ms."""
        near = [float(self.threshold_ms), *self._timeouts()]
        places = near + [max(1.0, near[-1]) * 2**octave for octave in range(1, _OCTAVES_BEYOND)]
        shares = [self._share(place) for place in places]
        steps = (
            (end - begin) * _between(share, next_share)
            for begin, end, share, next_share in zip(places, places[1:], shares, shares[1:], strict=False)
        )
        sums = list(accumulate(reversed(list(steps)), initial=0.0))[::-1]
        return places, shares, sums

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
        grid = [
            (prices.wait * place + prices.cut * share + prices.held_ms * (place * share + lasting), place)
            for place, share, lasting in zip(*self._lasting, strict=True)
            if place >= shortest_ms
        ]
        best = grid.index(min(grid))
        low, high = grid[max(0, best - 1)][1], grid[min(len(grid) - 1, best + 1)][1]
        return min(grid[best], self._narrowed(low, high, prices))

    def _timeouts(self) -> list[float]:
        """Return timeouts beyond the threshold, ascending: some in each octave, and more near the longest."""
        low, top = max(1, self.threshold_ms), self.longest_ms
        octave = 1 / _FINENESS
        by_octaves = [low * 2 ** (n * octave) for n in range(1, math.ceil(math.log2(8 * max(2, top / low)) / octave))]
        near = [top * (1 + 0.0002 * 2 ** (n / 2)) for n in range(22)]
        ends = [self.threshold_ms + tail.end for tail in self.tails] if len(self.tails) == 1 else []
        return sorted({ms for ms in (*by_octaves, *near, *ends) if self.threshold_ms < ms < math.inf})

    def _narrowed(self, low: float, high: float, prices: Prices) -> tuple[float, float]:
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

    def fair(self, prices: Prices) -> "Outlook":
        """Return one in which a tail weighs less the more even the best timeout would cost, were it the true one.

        Divided by these costs, what is expected of a timeout would be how many times as much as the best it costs; not
        divided, how much it costs: then a tail that is unlikely and costs much whatever is done decides for all others.
        By the root of them it is between the two, since what is not enough costs more than what is too much.
        """
        timeouts = self._timeouts()[::2]
        if len(self.tails) < 2 or not timeouts or not prices.wait:
            return self
        least = [min(self._of_one(tail, each, prices) for each in timeouts) for tail in self.tails]
        weights = [tail.weight / math.sqrt(cost) for tail, cost in zip(self.tails, least, strict=True)]
        return replace(self, tails=weighed(self.tails, weights))

    def _of_one(self, tail: Tail, timeout_ms: float, prices: Prices) -> float:
        """Return about what a timeout beyond the threshold costs if this is the tail."""
        share = self.beyond * tail.survival(timeout_ms - self.threshold_ms)
        return prices.wait * timeout_ms + share * (prices.cut + prices.held_ms * timeout_ms)

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
        one = (tail.drawn(random).weighing(1.0),)
        return Outlook(body, self.threshold_ms, self.longest_ms, beyond / total, one, self.seen)


def _between(share: float, less: float) -> float:
    """Return the mean between two shares, between which they fall exponentially."""
    if less <= 0 or share <= less * 1.000001:
        return (share + less) / 2
    return (share - less) / math.log(share / less)


# ---- made of a record


def outlook(held: Histogram, cut_off: Histogram) -> Outlook:
    """Return what to expect, of how long deliveries were held, and of the ages at which some were cut off.

    There must be at least one of either.
    """
    bins = list(_with_longest_apart(held))
    shares = _shares(bins, cut_off)
    count = held.count + cut_off.count
    longest_ms = max(held.longest_ms, cut_off.longest_ms)
    best: tuple[float, Outlook] | None = None
    for begin in _begins(bins, count):
        threshold_ms = bins[begin - 1].longest_ms if begin else 0
        seen = _excesses(bins[begin:], threshold_ms)
        cut = _excesses([each for each in cut_off.bins if each.longest_ms > threshold_ms], threshold_ms)
        beyond = 1 - sum(shares[:begin])
        tails = possible(threshold_ms, seen, cut)
        weights = [share / beyond for share in shares[begin:]] if beyond > 0 else []
        misfit = _misfit(tails, bins[begin:], threshold_ms, weights) if tails else math.inf
        reached = sum(number for _, number in seen)
        if misfit < _ALIKE or (reached >= FEWEST and misfit <= (best[0] if best else _NEARLY_ALIKE)):
            best = misfit, _outlook(bins[:begin], shares, threshold_ms, longest_ms, beyond, tails, reached)
            if misfit < _ALIKE:
                break
    return best[1] if best else _without_a_fit(bins, shares, cut_off, count)


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
    tails = [Pareto(weight, 1 / longest_ms, xi) for weight, xi in _ALONE]
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


def _begins(bins: Sequence[Bin], count: int) -> list[int]:
    """Return where a tail may begin: the last bins that hold many, fewer and fewer, and those beyond a gap."""
    wanted, found = min(_MOST_SHARE * count, 4 * count ** (2 / 3)), set()
    while wanted >= FEWEST:
        held, begin = 0, len(bins)
        while begin and held < wanted:
            begin -= 1
            held += bins[begin].count
        found.add(_beyond_gap(bins, begin, held))
        wanted /= _SMALLER
    held = 0
    for place in range(len(bins) - 1, 0, -1):
        held += bins[place].count
        if held > _APART_SHARE * count:
            break
        if held >= _FEWEST_APART and bins[place].number - bins[place - 1].number > _GAP / 2:
            found.add(place)
    return sorted(found)


def _beyond_gap(bins: Sequence[Bin], begin: int, held: float) -> int:
    """Return where to begin if the shortest ones, which are no more than half, are far from the others."""
    left = held
    for place in range(begin, len(bins) - 1):
        left -= bins[place].count
        if left < held / 2:
            break
        if bins[place + 1].number - bins[place].number > _GAP:
            begin = place + 1
    return begin


def _excesses(bins: Sequence[Bin], threshold_ms: int) -> list[tuple[float, float]]:
    return [(max(each.total_ms / each.count - threshold_ms, 0.5), each.count) for each in bins]


def _misfit(tails: Sequence[Tail], bins: Sequence[Bin], threshold_ms: int, shares: Sequence[float]) -> float:
    """Return how far the most likely tail is from what was seen; infinite if the longest ones cannot be of any."""
    best = max(tails, key=lambda each: each.weight)
    count = sum(each.count for each in bins)
    before = distance = 0.0
    for each, share in zip(bins, shares, strict=True):
        shorter = 1 - best.survival(each.longest_ms - threshold_ms)
        # Where in its bin the shortest one lies is not known, unless it is the only one.
        distance = max(distance, abs(shorter - before - share), abs(shorter - before) if each.count == 1 else 0)
        before += share
    misfit = distance * math.sqrt(count)
    above = 0

    def expected(excess: float) -> float:
        return count * sum(tail.weight * tail.survival(excess) for tail in tails)

    for each in reversed(bins):
        if _at_most(above, expected(each.longest_ms - threshold_ms)) < _UNLIKELY:
            misfit = max(misfit, _ALIKE)
        above += each.count
        if above > _LONGEST_ONES:
            break
        if _at_least(above, expected(max(each.total_ms / each.count - threshold_ms, 0.5) * 0.999)) < _UNLIKELY:
            return math.inf
    return misfit


def _at_least(number: int, expected: float) -> float:
    """Return how likely it is that so many happen, of so many that are expected (Poisson)."""
    term = total = math.exp(-expected)
    for k in range(1, number):
        term *= expected / k
        total += term
    return 1 - total


def _at_most(number: int, expected: float) -> float:
    """Return how likely it is that no more than so many happen."""
    return 1 - _at_least(number + 1, expected)
