"""The clock of the server's machine."""

import asyncio
from collections.abc import Callable
from math import inf

from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.places import EPOCH_S


class WallClock:
    """The server's clock, which is the loop's time plus the steps that were set. The uptime follows it."""

    def __init__(self, loop: SimulatedLoop, server: Process) -> None:
        self._loop = loop
        self._server = server
        self._ahead_s = 0.0
        self.set_back_s = 0.0
        """The sum of all steps back, in ms…"""
        self.set_back_at = -inf
        """… and the time of the last one, in seconds of the story."""
        self.steps: list[tuple[float, float]] = []
        """The time of each step, in seconds of the story, and its size."""
        self._started_s = float(EPOCH_S)

    def now_us(self) -> int:
        """Return microseconds since the epoch."""
        return int((EPOCH_S + self._loop.now + self._ahead_s) * 1e6)

    def uptime_s(self) -> int:
        """Return the uptime that the server reports."""
        return int(self.now_us() / 1e6 - self._started_s)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Let the server call ``callback``."""
        return self._loop.call_when(self._loop.now + delay_s, callback, context=self._server.context)

    def step(self, seconds: float) -> None:
        """Set the clock."""
        self._ahead_s += seconds
        self.steps.append((self._loop.now, seconds))
        if seconds < 0:
            self.set_back_s -= seconds
            self.set_back_at = self._loop.now

    def steps_since(self, since: float) -> list[tuple[float, float]]:
        """Return the time and the size of each step since then."""
        return [(at, by_s) for at, by_s in self.steps if at > since]

    def restarted(self) -> None:
        """Count the uptime from now on."""
        self._started_s = self.now_us() / 1e6
