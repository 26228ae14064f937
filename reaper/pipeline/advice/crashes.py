"""How often workers die: what the crashes of a record allow to say. Pure.

Few crashes say little, and none does not say that there will be none. Beforehand every order of magnitude between
`OFTEN_S` and `SELDOM_S` of work is taken for as likely as every other; what was recorded leaves some of them.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

OFTEN_S, SELDOM_S = 10.0, 864_000.0
"""A worker dies once in so many seconds of its work. Records that tell of more, or of less, extend the range."""
_POINTS = 60


@dataclass(frozen=True, slots=True)
class CrashRate:
    """Crashes in a second of work: rates that are possible, ascending, and how likely it is that it is one so far."""

    rates: tuple[float, ...]
    shares: tuple[float, ...]
    mean: float

    def quantile(self, share: float) -> float:
        """Return the rate that is exceeded with a probability of 1 - ``share``."""
        return self.rates[min(bisect_left(self.shares, share), len(self.rates) - 1)]


def crash_rate(crashes: float, work_s: float) -> CrashRate:
    """Return how often workers may die, given so many crashes in so much work."""
    work_s = max(work_s, 1e-3)
    seen = crashes / work_s
    low = min(1 / SELDOM_S, seen / 4) if crashes else 1 / SELDOM_S
    high = max(1 / OFTEN_S, 4 * seen)
    step = math.log(high / low) / _POINTS
    if crashes:  # A narrow peak needs its own grid.
        step = min(step, 8 / _POINTS / math.sqrt(crashes))
        middle = math.log(seen)
        start = max(math.log(low), middle - step * _POINTS / 2)
    else:
        start = math.log(low)
    rates = [math.exp(start + step * (number + 0.5)) for number in range(_POINTS)]
    scores = [crashes * math.log(rate) - rate * work_s for rate in rates]
    best = max(scores)
    weights = [math.exp(score - best) for score in scores]
    total = sum(weights)
    mean = sum(rate * weight for rate, weight in zip(rates, weights, strict=True)) / total
    return CrashRate(tuple(rates), tuple(share / total for share in accumulate(weights)), mean)
