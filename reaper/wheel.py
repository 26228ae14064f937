"""One heap of alarms for a whole replica, because a task for each of ten thousand groups costs too much."""

from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil, inf

import anyio
from anyio.lowlevel import checkpoint

from workers.runtime.clock import monotonic

SLOT_S, TICK_SLOTS = 0.02, 10
"""Alarms in a slot ring together, so that their commands share a pipeline. The time between two ticks has ten slots."""
MOST_AT_ONCE = 500
"""Alarms that ring before other tasks have their turn."""


class Alarm:
    """Calls a function once at a time that `Wheel.put` sets."""

    __slots__ = ("due_s", "ring")

    def __init__(self, ring: Callable[[], None]) -> None:
        """``ring`` must not raise."""
        self.ring = ring
        self.due_s = inf
        """By the clock of `monotonic`. inf = not set."""

    def cancel(self) -> None:
        """Do not ring."""
        self.due_s = inf

    def end(self) -> None:
        """Never ring again, and free the called objects. The wheel may keep the alarm for hours."""
        self.due_s, self.ring = inf, lambda: None


class Wheel:
    """Rings alarms. `run` must be running. An alarm rings in the task of `run`."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Alarm]] = []
        """It also has former times of alarms that were moved or cancelled."""
        self._number = 0
        self._sleep: anyio.CancelScope | None = None

    def put(self, alarm: Alarm, pause_s: float, *, slot_s: float = 0) -> None:
        """Let ``alarm`` ring after ``pause_s`` and not at its former time. With ``slot_s``, it rings with others."""
        due_s = monotonic() + max(pause_s, 0)
        if slot_s:
            due_s = ceil(due_s / slot_s) * slot_s
        alarm.due_s = due_s
        self._number += 1
        heappush(self._heap, (due_s, self._number, alarm))
        if self._sleep is not None and due_s < self._sleep.deadline:
            self._sleep.deadline = due_s

    async def run(self) -> None:
        """Ring until cancelled."""
        while True:
            await self._ring()
            with anyio.CancelScope(deadline=self._heap[0][0] if self._heap else inf) as self._sleep:
                await anyio.sleep_forever()
            self._sleep = None

    async def _ring(self) -> None:
        """Ring all alarms that are due."""
        rung, now = 0, monotonic()
        while self._heap and self._heap[0][0] <= now:
            due_s, _, alarm = heappop(self._heap)
            if alarm.due_s == due_s:
                alarm.cancel()
                alarm.ring()
                rung += 1
                if rung % MOST_AT_ONCE == 0:
                    await checkpoint()
