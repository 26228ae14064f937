"""Runs deliveries, at most `concurrency` at a time, without a task for each.

A runner takes deliveries from the queue until it is empty. If some still wait as soon as it lets the event loop turn,
the next runner is sent for: handlers that wait for something fan out over as many runners as there are slots, and
handlers that never wait are run one after the other by the first, which costs less than ten of them would with a task
each, and lets everybody else run after each that took long. One runner that has nothing to do waits for the next
deliveries; the others end.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from math import inf

from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from workers.loop.change import Change
from workers.loop.held import Held
from workers.loop.isolation import Isolation
from workers.runtime.clock import monotonic

SLICE_S = 0.002
"""How long a runner may go on without letting the reader and the settler run."""

Perform = Callable[[Held, "asyncio.Task[None] | None", float], Awaitable[float]]
"""Runs a delivery in this task. It is told what time it is, and returns what time it is then, on the monotonic clock:
of jobs that take no time, to ask for that again would be a tenth."""
HandBack = Callable[[Iterable[Held]], None]


class Slots:
    """The queue of deliveries and its runners, which live in ``tasks``."""

    def __init__(
        self,
        tasks: TaskGroup,
        concurrency: int,
        perform: Perform,
        hand_back: HandBack | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        self.concurrency = concurrency
        self.taken = 0
        """Deliveries that are queued or run."""
        self._tasks = tasks
        self._perform = perform
        self._hand_back = hand_back
        self._closed = False
        self._queue: deque[Held] = deque()
        self._runners = 0
        self._one_is_coming = False
        self._one_waits = False
        self._lets_others_run = 0
        """Runners between two deliveries: they go on with the queue, and another one would only make turns longer."""
        self._called = Change()
        self._isolation = isolation or Isolation((), lambda: inf)
        self.freed = self._isolation.freed
        """A delivery has left its slot, or nothing is started any more."""

    @property
    def free(self) -> int:
        """How many deliveries may be read now. Never negative."""
        return 0 if self._isolation.lasts() else max(0, self.concurrency - self.taken)

    def put(self, deliveries: Iterable[Held]) -> None:
        """Queue deliveries and see to it that somebody runs them; once closed, hand them back."""
        if self._closed and self._hand_back:
            self._hand_back(deliveries)
            return
        before = len(self._queue)
        self._queue.extend(deliveries)
        self.taken += len(self._queue) - before
        self._send_for_runner()

    def close(self) -> None:
        """Start nothing any more: what is queued is handed back, what runs goes on."""
        self._closed = True
        unstarted = list(self._queue)
        self._queue.clear()
        self.taken -= len(unstarted)
        if self._hand_back:
            self._hand_back(unstarted)
        self._called.notify()
        self._isolation.close()

    async def wait_until_idle(self) -> None:
        """Wait until nothing is queued or runs."""
        while self.taken:
            await self.freed.wait()

    def _send_for_runner(self) -> None:
        if not self._queue or self._one_is_coming or self._lets_others_run:
            return
        if self._one_waits:
            self._one_is_coming = True
            self._called.notify()
        elif self._runners < self.concurrency:
            self._one_is_coming = True
            self._runners += 1
            self._tasks.start_soon(self._run)

    def _look_at_queue(self) -> None:
        self._one_is_coming = False
        self._send_for_runner()

    async def _run(self) -> None:
        try:
            while True:
                self._one_is_coming = False
                await self._work_off_queue()
                if self._one_waits or self._closed:
                    return
                await self._wait_to_be_called()
        finally:
            self._runners -= 1

    async def _wait_to_be_called(self) -> None:
        self._one_waits = True
        try:
            await self._called.wait()
        finally:
            self._one_waits = False

    async def _work_off_queue(self) -> None:
        queue, perform, freed = self._queue, self._perform, self.freed
        runner = asyncio.current_task()
        now = monotonic()
        slice_end = now + SLICE_S
        while queue:
            held = queue.popleft()
            if queue and not self._one_is_coming:
                self._one_is_coming = True
                asyncio.get_running_loop().call_soon(self._look_at_queue)
            now = await perform(held, runner, now)
            self.taken -= 1
            if freed.awaited is not None:
                freed.notify()
            if now > slice_end:
                await self._let_others_run()
                now = monotonic()
                slice_end = now + SLICE_S

    async def _let_others_run(self) -> None:
        self._lets_others_run += 1
        try:
            await checkpoint()
        finally:
            self._lets_others_run -= 1
