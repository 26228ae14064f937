"""A task that exists only while it has work, because most groups are idle and a replica may hold ten thousand."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio

Step = Callable[[], Awaitable[float | None]]
Work = Callable[[], Coroutine[Any, Any, None]]
Start = Callable[[Work], object]


class OnDemandTask:
    """Repeats a step. The step returns after how many seconds to repeat it; None = not before the next `wake`."""

    __slots__ = ("_start", "_step", "_wakes")

    def __init__(self, start: Start, step: Step) -> None:
        """``start`` starts a task, as `start_soon` of a task group does."""
        self._start = start
        self._step = step
        self._wakes: anyio.Event | None = None

    @property
    def is_running(self) -> bool:
        """Tell whether there is a task."""
        return self._wakes is not None

    def wake(self) -> None:
        """Make the step now. If it is under way, it is made once more."""
        if self._wakes is None:
            self._wakes = anyio.Event()
            self._start(self._run)
        else:
            self._wakes.set()

    async def _run(self) -> None:
        try:
            while True:
                wakes = self._wakes = anyio.Event()  # before the step: what happens after its look wakes us again
                pause_s = await self._step()
                if pause_s is None:
                    if not wakes.is_set():
                        return
                elif pause_s > 0:
                    with anyio.move_on_after(pause_s):
                        await wakes.wait()
        finally:
            self._wakes = None
