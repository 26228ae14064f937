"""Families of tails beside the generalized Pareto one, and all of them weighed against each other. Pure.

What is beyond a threshold of a few percent is nearly generalized Pareto; what is beyond a third of all deliveries, or a
group of slow jobs apart from the others, need not be. Of a stretched exponential tail (Weibull's) the logarithm of the
survival is a power of the duration: near 0 that is Pareto's, 1 the exponential, 2 and more what falls faster and has no
end. Slow jobs that are apart are lognormal.

Each member weighs what is known beforehand, times its likelihood; all are on the same scale.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Self

from reaper.pipeline.advice.tail import Excesses, Tail, pareto_tails

GENERALIZED, STRETCHED, APART = 0.36, 0.28, 0.36
"""How likely the families are beforehand. The last one is a whole lognormal: of slow jobs that are apart."""
_POWERS = (0.02, *(0.1 * 1.25**number for number in range(21)))
"""Powers that are looked at; the first one stands for Pareto's tails."""
_PARETO = 0.1
"""How likely Pareto's tails are among the stretched."""
_POWER, _POWER_WIDTH = 0.8, 0.8
"""Others are around the first, in logarithms by the second."""
_HEAVY = 0.2
"""Far out, few tails are heavier than Pareto's of index 1 / 0.2."""
_FAR = 14.0
"""Far out: where one in a million is longer."""
_SIGMA, _SIGMA_WIDTH = 0.5, 0.7
"""Lognormal: the deviation, and by how much it varies, in logarithms."""
_STEPS = (-2.4, -1.6, -0.8, 0.0, 0.8, 1.6, 2.4)
_APART_STEPS = ((-math.sqrt(3), 1 / 6), (0.0, 2 / 3), (math.sqrt(3), 1 / 6))
_NEGLIGIBLE = 9.0
"""Logarithm of how much less likely than the best a member is left out for."""
_FEWEST_BINS = 4
"""What was seen in fewer bins looks like a peak to families that have one."""
_CERTAIN = 1e7
_SHORTEST_MS = 0.5
_ROOT = math.sqrt(2)


@dataclass(frozen=True, slots=True)
class Stretched(Tail):
    """``S(t) = exp(-λ (t^k - u^k))`` beyond ``u``, for all ``λ`` by their likelihood: it is of a gamma distribution."""

    power: float
    seen: float
    sum: float
    """Of ``t^k - u^k`` over all that were seen, or cut off."""
    threshold_ms: float

    def survival(self, excess: float) -> float:
        """See `Tail`."""
        beyond = (self.threshold_ms + excess) ** self.power - self.threshold_ms**self.power
        return float((1 + beyond / self.sum) ** -self.seen)

    def drawn(self, random: Random) -> Self:
        """See `Tail`."""
        rate = random.gammavariate(self.seen, 1 / self.sum)
        return replace(self, seen=_CERTAIN, sum=_CERTAIN / rate)


@dataclass(frozen=True, slots=True)
class Lognormal(Tail):
    """What is beyond the threshold of a lognormal distribution."""

    mean: float
    deviation: float
    threshold_ms: float
    reached: float
    """Share of the distribution beyond the threshold."""

    def survival(self, excess: float) -> float:
        """See `Tail`."""
        return _beyond(self._place(excess)) / self.reached

    def _place(self, excess: float) -> float:
        return (math.log(max(self.threshold_ms + excess, _SHORTEST_MS)) - self.mean) / self.deviation


def _beyond(place: float) -> float:
    return math.erfc(place / _ROOT) / 2


# ---- which are possible


@dataclass(frozen=True)
class _Beyond:
    """What was seen beyond a threshold. Durations are in units of the longest."""

    durations: Excesses
    cut_off: Excesses
    threshold: float
    unit_ms: float

    @property
    def seen(self) -> float:
        return sum(count for _, count in self.durations)

    @property
    def logarithms(self) -> float:
        return sum(count * math.log(duration) for duration, count in self.durations)


def possible(threshold_ms: float, excesses: Excesses, cut_off: Excesses = ()) -> list[Tail]:
    """Return the tails that are possible beyond a threshold; none of none.

    ``excesses``: what was seen beyond it, and how often; ``cut_off``: what was cut off there.
    """
    if not excesses:
        return []
    unit_ms = threshold_ms + max(excess for excess, _ in excesses)
    beyond = _Beyond(
        [((threshold_ms + excess) / unit_ms, count) for excess, count in excesses],
        [((threshold_ms + excess) / unit_ms, count) for excess, count in cut_off],
        threshold_ms / unit_ms,
        unit_ms,
    )
    pareto = math.log(GENERALIZED) + beyond.seen * math.log(unit_ms)
    scored: list[tuple[float, Tail]] = [(score + pareto, tail) for score, tail in pareto_tails(excesses, cut_off)]
    if len(excesses) >= _FEWEST_BINS:
        scored += _stretched(beyond, threshold_ms)
        scored += _apart(beyond, threshold_ms)
    best = max((score for score, _ in scored), default=0.0)
    kept = [(math.exp(score - best), tail) for score, tail in scored if score > best - _NEGLIGIBLE]
    total = sum(weight for weight, _ in kept)
    return [tail.weighing(weight / total) for weight, tail in kept]


def _stretched(beyond: _Beyond, threshold_ms: float) -> Iterator[tuple[float, Tail]]:
    seen, logarithms = beyond.seen, beyond.logarithms
    everything = [*beyond.durations, *beyond.cut_off]
    for number, power in enumerate(_POWERS):
        cut = beyond.threshold**power
        total = sum(count * (duration**power - cut) for duration, count in everything)
        if total <= 0:
            continue
        # Over all scales, each order of magnitude of them alike.
        likelihood = seen * math.log(power) + (power - 1) * logarithms + math.lgamma(seen) - seen * math.log(total)
        prior = _normal(math.log(power / _POWER) / _POWER_WIDTH) / _POWER_WIDTH * math.log(1.25) if number else _PARETO
        heaviness = 1 / (_FAR * power + seen / total * power * cut)
        score = likelihood + math.log(STRETCHED * prior) - (heaviness / _HEAVY) ** 2 / 2
        yield score, Stretched(1.0, power, seen, total * beyond.unit_ms**power, threshold_ms)


def _apart(beyond: _Beyond, threshold_ms: float) -> Iterator[tuple[float, Tail]]:
    """Take what is beyond for a whole distribution, nearly: hardly any of it is below the threshold."""
    seen, logarithms = beyond.seen, beyond.logarithms
    if seen < 3 or beyond.cut_off:
        return
    middle = logarithms / seen
    variance = sum(n * (math.log(duration) - middle) ** 2 for duration, n in beyond.durations) / seen + 1e-6
    width = 1 / math.sqrt(2 * seen)
    for around in _STEPS:
        deviation = math.sqrt(variance) * math.exp(around * width)
        likelihood = (1 - seen) * math.log(deviation * math.sqrt(2 * math.pi)) - seen * variance / deviation**2 / 2
        prior = APART * _of_deviation(deviation) * 0.8 * width / math.sqrt(seen)
        for off, weight in _APART_STEPS:
            mean = middle + off * deviation / math.sqrt(seen)
            cut = math.log(beyond.threshold) if beyond.threshold else -math.inf
            reached = _beyond((cut - mean) / deviation)
            if reached > 0.9:
                tail = Lognormal(1.0, mean + math.log(beyond.unit_ms), deviation, threshold_ms, reached)
                yield likelihood - logarithms + math.log(prior * weight), tail


def _normal(place: float) -> float:
    return math.exp(-place * place / 2) / math.sqrt(2 * math.pi)


def _of_deviation(deviation: float) -> float:
    return _normal(math.log(deviation / _SIGMA) / _SIGMA_WIDTH) / _SIGMA_WIDTH


def weighed(tails: Sequence[Tail], weights: Sequence[float]) -> tuple[Tail, ...]:
    """Return tails with other weights, which are made to add up to 1."""
    total = sum(weights)
    return tuple(tail.weighing(weight / total) for tail, weight in zip(tails, weights, strict=True))
