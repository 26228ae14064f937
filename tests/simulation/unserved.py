"""The periods in which the server could serve no heartbeat, by any cause, so that no worker can prove that it is
alive."""

from collections.abc import Callable
from math import inf

from tests.simulation.story import WRITE

NEEDED = ("evalsha", "hmget", "hset", "xack", "xclaim", "xpending", "xrange", WRITE)
"""A heartbeat needs the right to each of these."""


class Unserved:
    """Periods without service, by cause. Causes may overlap. Moments and durations are seconds of the story."""

    def __init__(self, now: Callable[[], float]) -> None:
        """``now`` returns the instant of the story."""
        self._now = now
        self._begun: dict[str, float] = {}
        self._over: list[tuple[float, float]] = []

    def begins(self, cause: str) -> None:
        """Note that ``cause`` keeps the server from serving heartbeats from now on."""
        self._begun.setdefault(cause, self._now())

    def ends(self, cause: str) -> None:
        """Note that ``cause`` is over. Without effect if it was not noted."""
        if cause in self._begun:
            self._over.append((self._begun.pop(cause), self._now()))

    def denied(self, command: str) -> None:
        """Note that all users lose the right to ``command``."""
        if command in NEEDED:
            self.begins(command)

    @property
    def causes(self) -> frozenset[str]:
        """The current causes without service."""
        return frozenset(self._begun)

    def all_end(self) -> None:
        """Note that the server serves everything again."""
        for cause in list(self._begun):
            self.ends(cause)

    def periods_since(self, since: float) -> list[tuple[float, float]]:
        """Return the periods since then in which the server could serve no heartbeat, each as (begin, end)."""
        periods: list[tuple[float, float]] = []
        for begun, ended in sorted([*self._over, *((begun, inf) for begun in self._begun.values())]):
            first, last = max(begun, since), min(ended, self._now())
            if last <= first:
                continue
            if periods and first <= periods[-1][1]:
                periods[-1] = periods[-1][0], max(periods[-1][1], last)
            else:
                periods.append((first, last))
        return periods

    def seconds_since(self, since: float) -> float:
        """Return for how long since then the server could serve no heartbeat."""
        return sum(ended - begun for begun, ended in self.periods_since(since))
