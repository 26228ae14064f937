"""How often workers die: what the crashes of a record allow to say. Pure.

Few crashes say little, and none does not say that there will be none. Beforehand every order of magnitude between
`OFTEN_S` and `SELDOM_S` of work is taken for as likely as every other; what was recorded leaves some of them. With two
chances in five it is as usual, though: an hour without a crash does not speak for days, and crashes that are often are
believed at once.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

OFTEN_S, SELDOM_S = 10.0, 864_000.0
"""A worker dies once in so many seconds of its work. Records that tell of more, or of less, extend the range."""
USUAL, USUAL_S = 0.4, (5_000.0, 50_000.0)
"""How likely it is beforehand that a rate is usual, and what that is: one to fourteen hours of work."""
_POINTS = 80


@dataclass(frozen=True, slots=True)
class CrashRate:
    """Crashes in a second of work: rates that are possible, ascending, and how likely it is that it is one so far."""

    rates: tuple[float, ...]
    shares: tuple[float, ...]
    """By what was recorded alone: an interval also holds what is unusual."""
    mean: float
    """What to expect, usual ones counting for more."""

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
    likely = [weight * _prior(rate) for rate, weight in zip(rates, weights, strict=True)]
    mean = sum(rate * weight for rate, weight in zip(rates, likely, strict=True)) / sum(likely)
    return CrashRate(tuple(rates), tuple(share / total for share in accumulate(weights)), mean)


def _prior(rate: float) -> float:
    """Return how many times as likely as an unusual one a rate is beforehand."""
    soonest, latest = USUAL_S
    narrower = math.log(SELDOM_S / OFTEN_S) / math.log(latest / soonest)
    return 1 + USUAL / (1 - USUAL) * narrower if soonest <= 1 / rate <= latest else 1.0
