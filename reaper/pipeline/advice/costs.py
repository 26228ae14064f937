"""What a visibility timeout is expected to cost, for workers that extend what they hold and for bare ones. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Protocol

from reaper.pipeline.advice.histogram import Bin, Histogram, merged, of_bins
from reaper.pipeline.advice.model import EXTENSIONS_PER_TIMEOUT, LONGEST_OF_EXTENDING_MS, SHORTEST_MS, Cost, Weights
from reaper.pipeline.advice.outlook import Outlook, Prices


class Expected(Protocol):
    """What is expected of as many deliveries again."""

    def cost(self, timeout_ms: float, crashes: float) -> Cost:
        """Return what a timeout costs, with so many crashes."""

    def best(self, crashes: float) -> float:
        """Return the timeout in ms that costs least, with so many crashes."""

    def fair(self, crashes: float) -> "Expected":
        """Return one in which a possibility weighs less the more even its best timeout would cost."""

    def drawn(self, random: Random) -> "Expected":
        """Return one that the record may just as well have come from."""


@dataclass(frozen=True, slots=True)
class OfBare:
    """Workers that prove no life: jobs have to be done within the timeout."""

    outlook: Outlook
    deliveries: int
    weights: Weights

    def cost(self, timeout_ms: float, crashes: float) -> Cost:
        """See `Expected`."""
        share, held_ms = self.outlook.reach(timeout_ms)
        dead, again = share * self.deliveries, self.weights.max_deliveries - 1
        waiting_s = crashes * timeout_ms / 1000
        twice_s = held_ms * self.deliveries * again / 1000
        return Cost(
            timeout_ms=round(timeout_ms),
            waiting_s=waiting_s,
            twice_s=twice_s,
            taken=dead * self.weights.max_deliveries,
            dead_letters=dead,
            requests=0.0,
            total_s=waiting_s + self.weights.rerun * twice_s + self.weights.dead_letter_s * dead,
        )

    def best(self, crashes: float) -> float:
        """See `Expected`."""
        return self.outlook.best(self._prices(crashes), SHORTEST_MS)

    def fair(self, crashes: float) -> "OfBare":
        """See `Expected`."""
        return replace(self, outlook=self.outlook.fair(self._prices(crashes)))

    def _prices(self, crashes: float) -> Prices:
        return Prices(
            wait=crashes / self.deliveries / 1000,
            cut=self.weights.dead_letter_s,
            held_ms=self.weights.rerun * (self.weights.max_deliveries - 1) / 1000,
        )

    def drawn(self, random: Random) -> "OfBare":
        """See `Expected`."""
        return OfBare(self.outlook.drawn(random, self.deliveries), self.deliveries, self.weights)


@dataclass(frozen=True)
class OfExtending:
    """Workers that keep what they hold while they show life; what they were silent about was run twice."""

    silences: Sequence[tuple[Histogram, float]]
    """How long they were silent, and how many ms a delivery ran meanwhile, for each kind of job."""
    process_s: float
    weights: Weights

    def cost(self, timeout_ms: float, crashes: float) -> Cost:
        """See `Expected`. It happens once: the next delivery of the job is seldom silent, too."""
        silent = [(histogram.above(timeout_ms).count, run_ms) for histogram, run_ms in self.silences]
        waiting_s = crashes * timeout_ms / 1000
        twice_s = sum(count * run_ms for count, run_ms in silent) / 1000
        requests = self.process_s * 1000 * EXTENSIONS_PER_TIMEOUT / timeout_ms
        return Cost(
            timeout_ms=round(timeout_ms),
            waiting_s=waiting_s,
            twice_s=twice_s,
            taken=sum(count for count, _ in silent),
            dead_letters=0.0,
            requests=requests,
            total_s=waiting_s + self.weights.rerun * twice_s + self.weights.request_s * requests,
        )

    def best(self, crashes: float) -> float:
        """See `Expected`. Of equals the longest, which is the safer one."""
        return min(reversed(self._candidates), key=lambda timeout_ms: self.cost(timeout_ms, crashes).total_s)

    @cached_property
    def _candidates(self) -> list[float]:
        floor_ms = self.weights.floor_ms
        known = merged(histogram for histogram, _ in self.silences)
        highest = max(4 * known.longest_ms, LONGEST_OF_EXTENDING_MS)
        grid, timeout_ms = [float(floor_ms)], floor_ms * 2**0.125
        while timeout_ms < highest:
            grid.append(timeout_ms)
            timeout_ms *= 2**0.125
        return sorted({*grid, *(each.longest_ms + 1.0 for each in known.bins if each.longest_ms >= floor_ms)})

    def fair(self, crashes: float) -> "OfExtending":  # noqa: ARG002 - but one possibility
        """See `Expected`."""
        return self

    def drawn(self, random: Random) -> "OfExtending":
        """See `Expected`."""
        drawn = [(_drawn(histogram, random), run_ms) for histogram, run_ms in self.silences]
        return OfExtending(drawn, self.process_s, self.weights)


def _drawn(histogram: Histogram, random: Random) -> Histogram:
    counts = [round(random.gammavariate(each.count, 1.0)) for each in histogram.bins]
    return of_bins(
        Bin(each.number, count, each.total_ms * count // each.count, each.longest_ms)
        for each, count in zip(histogram.bins, counts, strict=True)
        if count
    )
