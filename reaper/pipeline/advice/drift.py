"""Do deliveries take longer than they did? The earlier half compared with the later one. Pure."""

import math
from bisect import bisect_right
from itertools import accumulate

from reaper.pipeline.advice.histogram import Histogram

FEWEST = 50
"""Halves of fewer deliveries are not compared."""
SLIGHT = 1.15
"""A smaller factor is no drift worth telling."""
_CERTAIN = 1.95
"""Kolmogorov and Smirnov: one in a thousand that do not differ would be further apart."""
_QUANTILES = (0.5, 0.75, 0.9, 0.95)


def drift(earlier: Histogram, later: Histogram) -> float | None:
    """Return how many times as long the later ones took; None where that may be chance, or is slight."""
    if min(earlier.count, later.count) < FEWEST:
        return None
    pooled = earlier.count * later.count / (earlier.count + later.count)
    if _distance(earlier, later) * math.sqrt(pooled) < _CERTAIN:
        return None
    ratios = [math.log(later.quantile(q) / max(1, earlier.quantile(q))) for q in _QUANTILES]
    factor = math.exp(sum(ratios) / len(ratios))
    return factor if factor >= SLIGHT or factor <= 1 / SLIGHT else None


def _distance(one: Histogram, other: Histogram) -> float:
    ends = sorted({each.number for histogram in (one, other) for each in histogram.bins})
    return max(abs(_share(one, end) - _share(other, end)) for end in ends)


def _share(histogram: Histogram, number: int) -> float:
    """Return the share in bins up to this one."""
    counts = list(accumulate((each.count for each in histogram.bins), initial=0))
    return counts[bisect_right([each.number for each in histogram.bins], number)] / histogram.count
