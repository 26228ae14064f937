"""Durations of six shapes that are known exactly: what a timeout really costs on them, and which one costs least.

Bare workers, default weights, costs in seconds of waiting for each delivery. Nothing is drawn to judge with: a held-out
half of endless length costs what is computed here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from statistics import NormalDist

from reaper.pipeline.advice.choice import advise
from reaper.pipeline.advice.histogram import of_durations
from reaper.pipeline.advice.model import Advice, GroupRecord, Record, Weights, Workers

WEIGHTS = Weights()
AGAIN = WEIGHTS.max_deliveries - 1
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Shape:
    """A distribution of durations, in seconds."""

    name: str
    draw: Callable[[Random], float]
    survival: Callable[[float], float]
    partial_mean: Callable[[float], float]
    """Mean of those that are at least so long, times their share."""

    @cached_property
    def mean_s(self) -> float:
        return self.partial_mean(0.0)

    def cost(self, timeout_s: float, crash_s: float) -> float:
        """What a timeout costs where a worker dies every ``crash_s`` of its work."""
        late = WEIGHTS.dead_letter_s * self.survival(timeout_s) + AGAIN * WEIGHTS.rerun * self.partial_mean(timeout_s)
        return self.mean_s / crash_s * timeout_s + late

    def oracle_s(self, crash_s: float) -> float:
        """The timeout that costs least."""
        grid = [0.01 * 1.02**n for n in range(700)]
        costs = [self.cost(timeout_s, crash_s) for timeout_s in grid]
        place = costs.index(min(costs))
        low, high = grid[max(0, place - 1)], grid[place + 1]
        while high - low > 1e-7 * high:
            third = (high - low) / 3
            if self.cost(low + third, crash_s) < self.cost(high - third, crash_s):
                high -= third
            else:
                low += third
        return (low + high) / 2


def _lognormal(median: float, sigma: float) -> Shape:
    mean = median * math.exp(sigma * sigma / 2)

    def z(timeout_s: float) -> float:
        return math.log(timeout_s / median) / sigma if timeout_s > 0 else -40.0

    return Shape(
        "lognormal",
        lambda random: median * random.lognormvariate(0, sigma),
        lambda timeout_s: _NORMAL.cdf(-z(timeout_s)),
        lambda timeout_s: mean * _NORMAL.cdf(sigma - z(timeout_s)),
    )


def _pareto(alpha: float) -> Shape:
    return Shape(
        "Pareto",
        lambda random: random.paretovariate(alpha),
        lambda timeout_s: max(1.0, timeout_s) ** -alpha,
        lambda timeout_s: alpha / (alpha - 1) * max(1.0, timeout_s) ** (1 - alpha),
    )


def _weibull(k: float) -> Shape:
    def survival(timeout_s: float) -> float:
        return math.exp(-(timeout_s**k))

    def partial_mean(timeout_s: float) -> float:
        # The integral over the survival beyond, as one over its exponent: there it falls like exp(-v).
        begin, steps = timeout_s**k, 400
        width = 40.0 / steps

        def at(v: float) -> float:
            return v ** (1 / k - 1) / k * math.exp(-v) if v > 0 else 0.0

        inner = sum((4 if n % 2 else 2) * at(begin + n * width) for n in range(1, steps))
        return timeout_s * survival(timeout_s) + width / 3 * (at(begin) + inner + at(begin + 40.0))

    return Shape("Weibull", lambda random: random.weibullvariate(1, k), survival, partial_mean)


def _bimodal() -> Shape:
    fast, slow, share = _lognormal(0.3, 0.5), _lognormal(30, 0.2), 0.01
    return Shape(
        "bimodal, 1 % slow",
        lambda random: slow.draw(random) if random.random() < share else fast.draw(random),
        lambda timeout_s: share * slow.survival(timeout_s) + (1 - share) * fast.survival(timeout_s),
        lambda timeout_s: share * slow.partial_mean(timeout_s) + (1 - share) * fast.partial_mean(timeout_s),
    )


SHAPES = (
    Shape(
        "exponential",
        lambda random: random.expovariate(1),
        lambda timeout_s: math.exp(-timeout_s),
        lambda timeout_s: math.exp(-timeout_s) * (timeout_s + 1),
    ),
    _lognormal(1, 1),
    _pareto(2.5),
    _bimodal(),
    Shape(
        "uniform",
        lambda random: random.uniform(0, 2),
        lambda timeout_s: max(0.0, 1 - timeout_s / 2),
        lambda timeout_s: max(0.0, 1 - timeout_s * timeout_s / 4),
    ),
    _weibull(0.7),
)
LIGHT = replace(_weibull(2), name="Weibull, k = 2")
"""Falls faster than exponentially, and has no end."""

SIZES = (50, 200, 1_000, 10_000)
CRASHES_S = (200, 2_000, 20_000)


@dataclass(frozen=True)
class Sample:
    """Deliveries that were recorded, ascending, in seconds, and how many crashes beside them."""

    held_s: Sequence[float]
    crashes: int

    def advice(self, *, intervals: bool = False) -> Advice:
        """What is advised on them."""
        held = of_durations([max(1, round(1000 * each)) for each in self.held_s])
        kinds = (Record(held=held, crashes=self.crashes),)
        record = GroupRecord(stream="{s}:journal", group="g", workers=Workers.BARE, kinds=kinds)
        return advise(record, WEIGHTS, intervals=intervals)

    def rules_s(self) -> dict[str, float]:
        """Timeouts of rules of thumb."""
        p95_s, longest_s = self.held_s[math.ceil(0.95 * len(self.held_s)) - 1], self.held_s[-1]
        return {"2 x P95": 2 * p95_s, "3 x max": 3 * longest_s, "headroom 1.5": self._headroom_s(1.5)}

    def _headroom_s(self, headroom: float) -> float:
        """What would have cost least had all jobs taken so many times as long, with one crash at least: no tail."""
        best, late = (math.inf, 0.0), 0.0
        for each in reversed(self.held_s):
            best = min(best, (max(1, self.crashes) * each * headroom + late, each * headroom))
            late += WEIGHTS.dead_letter_s + AGAIN * each
        return best[1]


def sample(shape: Shape, size: int, crash_s: float, random: Random, share: float) -> Sample:
    """Draw deliveries; in as much work there were crashes that a ``share`` of all records does not exceed (Poisson)."""
    held_s = sorted(shape.draw(random) for _ in range(size))
    expected = sum(held_s) / crash_s
    crashes, term = 0, math.exp(-expected)
    while share > term:
        crashes, share = crashes + 1, share - term
        term *= expected / crashes
    return Sample(held_s, crashes)
