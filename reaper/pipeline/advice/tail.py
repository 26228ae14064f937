"""How long the longest jobs may take: what a tail may be like that is known by few. Pure.

Beyond a high threshold nearly every distribution looks like a generalized Pareto one (Pickands, Balkema and de Haan):
``S(y) = (1 + θ y)^(-1/ξ)`` for an excess ``y``. Its shape ``ξ`` says what tomorrow may bring: a hard end (below 0; -1
is any density that is cut off, by a time limit for example), the exponential one (0), heavy tails (above 0). Few data
leave several shapes possible, and what is least likely may cost most. So no best fit is taken but all that are
possible, each with its weight: likelihood times what is known beforehand of durations of jobs.

For each ``θ`` of a grid the likelihood in ``ξ`` is known in closed form; ages that were cut off (the job took longer)
count as such.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Self

HEAVIEST, HARDEST = 0.9, -2.0
"""Bounds of ``ξ``. From 1 on there would be no mean, and no cost to expect."""
_HARD_END = 0.67
"""How likely a hard end is beforehand; otherwise the tail is close to exponential, rather a little heavier. Of tails
without an end `families` has others, too."""
_SOFT, _SOFT_WIDTH = 0.05, 0.2
_HARD, _HARD_WIDTH = -1.0, 0.25
_STEPS = (-2.4, -1.6, -0.8, 0.0, 0.8, 1.6, 2.4)
"""Where ``ξ`` is looked at around its most likely value, in standard deviations."""
_BOUNDED, _UNBOUNDED = 32, 20
"""Points of the grid of ``θ``: tails with an end, and without one."""
Excesses = Sequence[tuple[float, float]]
"""Excesses over the threshold, above 0, and how often each occurred."""


@dataclass(frozen=True, slots=True)
class Tail(ABC):
    """One tail that is possible."""

    weight: float
    """How likely it is; those that are possible add up to 1."""

    @abstractmethod
    def survival(self, excess: float) -> float:
        """Return the share of what is beyond the threshold that is beyond it by ``excess`` too."""

    @property
    def end(self) -> float:
        """The longest excess there is; infinite where there is none."""
        return math.inf

    def weighing(self, weight: float) -> Self:
        """Return it with another weight."""
        return replace(self, weight=weight)

    def drawn(self, random: Random) -> Self:  # noqa: ARG002 - most stand for themselves alone
        """Return one that is drawn of those which it stands for."""
        return self


@dataclass(frozen=True, slots=True)
class Pareto(Tail):
    """Generalized: ``S(y) = (1 + θ y)^(-1/ξ)``."""

    theta: float
    xi: float

    def survival(self, excess: float) -> float:
        """See `Tail`."""
        base = 1 + self.theta * excess
        return float(base ** (-1 / self.xi)) if base > 0 else 0.0

    @property
    def end(self) -> float:
        """See `Tail`."""
        return -1 / self.theta if self.theta < 0 else math.inf


def pareto_tails(excesses: Excesses, cut_off: Excesses = ()) -> Iterator[tuple[float, Pareto]]:
    """Return tails, given what was seen and what was cut off at these excesses, and how likely each is (logarithm).

    Something must have been seen.
    """
    seen = sum(count for _, count in excesses)
    for theta, measure in _grid(excesses, cut_off):
        for xi, likelihood in _shapes(theta, seen, excesses, cut_off):
            yield likelihood + _prior(xi) + measure, Pareto(1.0, theta, xi)


def _grid(excesses: Excesses, cut_off: Excesses) -> Iterator[tuple[float, float]]:
    """Return values of ``θ`` and the logarithm of what each stands for, in ``log |θ|``."""
    seen = sum(count for _, count in excesses)
    everything = [*excesses, *cut_off]
    longest = max(excess for excess, _ in everything)
    mean = sum(excess * count for excess, count in everything) / seen
    # The end of a tail is known to one part in as many as were seen; it may also lie far beyond.
    for beyond, width in _logarithmic(0.02 / seen, 30.0, _BOUNDED):
        yield -1 / (longest * (1 + beyond)), math.log(beyond / (1 + beyond) * width)
    for theta, width in _logarithmic(0.02 / mean, 100 / mean, _UNBOUNDED):
        yield theta, math.log(width)


def _logarithmic(low: float, high: float, points: int) -> Iterator[tuple[float, float]]:
    width = math.log(high / low) / points
    return ((low * math.exp(width * (number + 0.5)), width) for number in range(points))


def _shapes(theta: float, seen: float, excesses: Excesses, cut_off: Excesses) -> Iterator[tuple[float, float]]:
    """Return values of ``ξ`` and their logarithmic likelihood, weighted by what each stands for."""
    ended = sum(count * math.log1p(theta * excess) for excess, count in excesses)
    lasted = ended + sum(count * math.log1p(theta * excess) for excess, count in cut_off)
    deviation = 1 / math.sqrt(seen)
    for step in _STEPS:
        xi = lasted / seen * math.exp(step * deviation)
        if HARDEST < xi < HEAVIEST and xi:
            yield xi, -seen * math.log(xi / theta) - lasted / xi - ended + math.log(0.8 * abs(xi) * deviation)


def _prior(xi: float) -> float:
    soft = (1 - _HARD_END) * math.exp(-(((xi - _SOFT) / _SOFT_WIDTH) ** 2) / 2) / _SOFT_WIDTH
    hard = _HARD_END * math.exp(-(((xi - _HARD) / _HARD_WIDTH) ** 2) / 2) / _HARD_WIDTH
    return math.log((soft + hard) / math.sqrt(2 * math.pi) + 1e-300)
