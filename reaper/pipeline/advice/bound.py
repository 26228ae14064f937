"""The upper bound of a quantile of durations, with a margin that depends on their number. Pure."""

import math
from collections.abc import Mapping
from itertools import accumulate
from statistics import NormalDist

CONFIDENCE = 0.95
"""A bound is too low in at most one case in twenty."""
FEWEST = 700
"""With fewer executions, a kind of job that is 1 in 200 may be missing."""
_FARTHEST = 10
"""The tail bounds shares that are at most this many times smaller than the smallest share that counts can bound."""
_MANY = 500
_Z = NormalDist().inv_cdf(1 - CONFIDENCE)
"""The lower end of a normal distribution that it exceeds with `CONFIDENCE`, in standard deviations."""


def enough_for(share: float) -> int:
    """Return how many executions are enough to bound the quantile that a ``share`` of them exceeds."""
    return min(countable(share), max(FEWEST, math.ceil(countable(share) / _FARTHEST)))


def countable(share: float) -> int:
    """Return how many executions bound that quantile by counts alone. With fewer, a tail continues them."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-share))


def upper_bound(durations: Mapping[float, int], share: float) -> float:
    """Return a duration that, with `CONFIDENCE`, at most ``share`` of all executions exceed.

    ``durations`` counts equal durations of at least 1 ms, ``inf`` those that were cut off. There must be at least
    `enough_for` of them. The result has the same unit, and is ``inf`` if too many were cut off.
    """
    count = sum(durations.values())
    rank = _rank(count, share)
    if rank:
        return _longest(durations, rank)
    # Counts alone do not bound so small a share, so a Pareto tail continues the longest execution.
    longest = _longest(durations, 1)
    bounded_share = 1 - (1 - CONFIDENCE) ** (1 / count)
    return longest if math.isinf(longest) else longest * (bounded_share / share) ** _tail_index(durations, count // 10)


def _rank(count: int, share: float) -> int:
    """Return which of the longest executions is a bound (1 is the longest), or 0 if none is.

    The k-th longest is too short if fewer than k of all executions exceed the true quantile, which has a binomial
    probability. It is nearly normal if many are expected to exceed it.
    """
    expected = count * share
    if expected > _MANY:
        return math.floor(expected + _Z * math.sqrt(expected)) - 1
    term = math.exp(count * math.log1p(-share))
    probability, rank = term, 0
    while probability <= 1 - CONFIDENCE:
        rank += 1
        term *= (count - rank + 1) / rank * share / (1 - share)
        probability += term
    return rank


def _longest(durations: Mapping[float, int], rank: int) -> float:
    """Return the ``rank``-th longest duration."""
    ordered = sorted(durations, reverse=True)
    counts = accumulate(durations[each] for each in ordered)
    return next(each for each, count in zip(ordered, counts, strict=True) if count >= rank)


def _tail_index(durations: Mapping[float, int], count: int) -> float:
    """Return the upper bound of the Pareto index of the ``count`` longest executions (Hill's estimate)."""
    threshold, left, total = _longest(durations, count + 1), count, 0.0
    for each in sorted(durations, reverse=True):
        taken = min(left, durations[each])
        total += taken * math.log(each / threshold)
        left -= taken
        if not left:
            break
    return total / _low_gamma(count)


def _low_gamma(shape: int) -> float:
    """Return the quantile of a gamma distribution that it exceeds with `CONFIDENCE` (Wilson and Hilferty)."""
    return shape * (1 - 1 / (9 * shape) + _Z / (3 * math.sqrt(shape))) ** 3
