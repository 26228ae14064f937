"""Runs deliveries, at most `concurrency` at a time, without a task for each.

A runner takes deliveries from the queue until it is empty. If some still wait as soon as it lets the event loop turn,
it calls the next runner. So waiting handlers spread over as many runners as there are slots. Handlers that never wait
run one after the other in the first runner, which is cheaper than a task each, and other tasks get their turn after
each long one.

So many handlers run in one task. A handler may leave a cancellation behind, or a cancel scope in an open generator, and
the next handler meets it. So if a runner is cancelled by anyone but the worker, it is given up after its delivery, and
another one takes its place. The end of a runner never is the end of the worker.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from anyio import CancelScope, move_on_after
from anyio.lowlevel import checkpoint

from workers.loop.dispatch import BatchCall, HandlerCall
from workers.loop.in_flight import QUEUED, Delivery
from workers.loop.isolation import Isolation
from workers.loop.job import Job
from workers.loop.notifier import Notifier
from workers.runtime.clock import monotonic

CANCELLED_END_S = 2.0
"""How long handlers may take to end when all of them are cancelled. One that waits for a thread may never end."""
SLICE_S = 0.002
"""How long a runner may go on without letting the reader and the settler run."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Deliveries that run together, in the slots of all of them."""

    call: BatchCall
    jobs: Sequence[Delivery]


Perform = Callable[[Any, "asyncio.Task[None] | None", float], Awaitable[float]]
"""Runs a delivery or a batch in this task. It gets the time on the monotonic clock, and returns the time afterwards,
because another look at the clock would be a tenth of a short job. It returns inf if its runner has to pause."""
HandBack = Callable[[Iterable[Delivery]], None]


class Gatherer:
    """Gathers deliveries for batch handlers, before they are queued.

    A batch is complete with ``size`` deliveries, or ``wait`` seconds after the first one, or if no slot is free, so no
    other delivery can come.
    """

    def __init__(self, call_of: Callable[[Job], HandlerCall], begins_alone: Callable[[Delivery], bool]) -> None:
        self._call_of = call_of
        self._begins_alone = begins_alone
        self._waiting = defaultdict[BatchCall, list[Delivery]](list)
        self._timers: dict[BatchCall, asyncio.TimerHandle] = {}

    def sorted_in(
        self, deliveries: Sequence[Delivery], late: Callable[[Batch], None], *, at_once: bool
    ) -> list[Delivery | Batch]:
        """Return deliveries and batches that may begin now. ``late`` gets each batch that is complete by its time.

        Use ``at_once`` if no slot is free.
        """
        begins, waiting = list[Delivery | Batch](), self._waiting
        for job in deliveries:
            call, may_be_last = self._call_of(job), job.deliveries > 1 or job.is_quarantined
            if not isinstance(call, BatchCall) or (may_be_last and self._begins_alone(job)):
                begins.append(job)
                continue
            gathered = waiting[call]
            gathered.append(job)
            if len(gathered) >= call.size:
                begins.append(self._taken(call))
        for call in list(waiting):
            if at_once:
                begins.append(self._taken(call))
            elif call not in self._timers:
                self._timers[call] = asyncio.get_running_loop().call_later(call.wait_s, self._complete_late, call, late)
        return begins

    def take_all(self) -> list[Delivery]:
        """Return the deliveries that wait, because none of them begins any more."""
        return [job for call in list(self._waiting) for job in self._taken(call).jobs]

    def _complete_late(self, call: BatchCall, late: Callable[[Batch], None]) -> None:
        late(self._taken(call))

    def _taken(self, call: BatchCall) -> Batch:
        timer = self._timers.pop(call, None)
        if timer is not None:
            timer.cancel()
        return Batch(call, self._waiting.pop(call))


class Slots:
    """The queue of deliveries and its runners. They end with the task that runs `guard`."""

    def __init__(
        self,
        concurrency: int,
        perform: Perform,
        hand_back: HandBack = lambda _deliveries: None,
        isolation: Isolation | None = None,
        pause: Callable[[], Awaitable[None]] = checkpoint,
        gatherer: Gatherer | None = None,
        perform_batch: Perform | None = None,
    ) -> None:
        """``pause`` lets other tasks run, and returns when the next delivery may begin.

        ``gatherer`` makes batches of deliveries. A batch runs in one runner, and has a slot for each of its deliveries.
        """
        self._perform_batch = perform_batch or perform
        self.concurrency = concurrency
        self.taken = 0
        """Deliveries that are queued or run."""
        self._perform = perform
        self._hand_back = hand_back
        self._pause = pause
        self._halted = self._closed = False
        self._gatherer = gatherer
        self._queue: deque[Delivery | Batch] = deque()
        self._runners: dict[asyncio.Task[None], CancelScope] = {}
        self._failures: list[BaseException] = []
        self._is_cancelled = False
        self._guard: asyncio.Task[None] | None = None
        self._coming: asyncio.Task[None] | None = None
        """The runner that has been called, and has not begun."""
        self._looks_soon = False
        """The event loop looks at the queue in its next turn."""
        self._lets_others_run = 0
        """Runners between two deliveries: they go on with the queue, and another one would only make turns longer."""
        self._left = Notifier()
        """A runner has ended, or no job is started any more."""
        self._isolation = isolation or Isolation((), lambda: inf)
        self.freed = self._isolation.freed
        """A delivery has left its slot, or no job is started any more."""

    @property
    def free(self) -> int:
        """How many deliveries may be read now. Never negative."""
        return 0 if self._halted or self._isolation.lasts() else max(0, self.concurrency - self.taken)

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Queue deliveries and call a runner for them. After `close`, return them to the group."""
        if self._closed:
            self._hand_back(deliveries)
            return
        self.taken += len(deliveries)
        gatherer = self._gatherer
        if gatherer is None:
            self._queue.extend(deliveries)
        else:
            self._queue.extend(gatherer.sorted_in(deliveries, self._put_late, at_once=not self.free))
        self._send_for_runner()

    def _put_late(self, batch: Batch) -> None:
        self._queue.append(batch)
        self._send_for_runner()

    def halt(self) -> None:
        """Start no job from now on, until `close`. May be called from a signal handler or another thread."""
        self._halted = True

    def stop(self) -> None:
        """Start no job from now on, not even a delivery that waits to run alone. In the event loop."""
        self.halt()
        self._isolation.close()

    def close(self) -> None:
        """Hand back queued jobs, after `stop`. Running jobs go on."""
        self.stop()
        self._closed = True
        unstarted = [job for item in self._queue for job in _jobs_of(item)]
        if self._gatherer:
            unstarted += self._gatherer.take_all()
        self._queue.clear()
        self.taken -= len(unstarted)
        self._hand_back(unstarted)
        self._left.notify()

    def is_ending(self) -> bool:
        """Return whether all of the worker is cancelled by itself, by its caller, or with the event loop."""
        return self._is_cancelled or (self._guard is not None and self._guard.cancelling() > 0)

    async def wait_until_idle(self) -> None:
        """Wait until no job is queued or runs."""
        while self.taken:
            await self.freed.wait()

    def _send_for_runner(self) -> None:
        if not self._queue or self._coming or self._lets_others_run or self._halted:
            return
        if len(self._runners) < self.concurrency and not self.is_ending():
            self._start_runner()

    def _look_at_queue(self) -> None:
        self._looks_soon = False
        self._send_for_runner()

    # ---- runners come and go

    def _start_runner(self) -> None:
        scope = CancelScope()
        self._coming = runner = asyncio.get_running_loop().create_task(self._run(scope))
        self._runners[runner] = scope
        runner.add_done_callback(self._has_ended)

    def _has_ended(self, runner: "asyncio.Task[None]") -> None:
        del self._runners[runner]
        failure = None if runner.cancelled() else runner.exception()
        if failure is not None:
            self._failures.append(failure)
        if self._coming is runner:  # it was cancelled before it began
            self._coming = None
        if self._closed or self._failures:  # otherwise nobody waits for this one
            self._left.notify()
        self._send_for_runner()

    async def guard(self) -> None:
        """Wait for the runners after `close`. Cancel them if this task is cancelled, and fail if one of them fails."""
        self._guard = asyncio.current_task()
        try:
            while not (self._closed and not self._runners) and not self._failures:
                await self._left.wait()
        finally:
            self._is_cancelled = self._closed = True
            for scope in self._runners.values():
                scope.cancel()
            with CancelScope(shield=True), move_on_after(CANCELLED_END_S):
                while self._runners:
                    await self._left.wait()
        if self._failures:
            raise self._failures[0]

    async def _run(self, scope: CancelScope) -> None:
        """Work off the queue in a scope of anyio, because handlers can shield their cleanup from its cancellation."""
        self._coming = None
        scope.__enter__()
        try:
            with suppress(asyncio.CancelledError):
                await self._work_off_queue()
        finally:
            with suppress(RuntimeError):  # a handler has left one open that is inside of it
                scope.__exit__(None, None, None)

    async def _work_off_queue(self) -> None:
        runner = asyncio.current_task()
        assert runner is not None
        queue, perform, perform_batch, freed = self._queue, self._perform, self._perform_batch, self.freed
        now = monotonic()
        slice_end = now + SLICE_S
        while queue and not self._halted:
            item = queue.popleft()
            if queue and not (self._coming or self._looks_soon):
                self._looks_soon = True
                asyncio.get_running_loop().call_soon(self._look_at_queue)
            try:
                now = await (perform if isinstance(item, Delivery) else perform_batch)(item, runner, now)
            except asyncio.CancelledError:
                self._has_dropped(_jobs_of(item))
                raise
            self.taken -= 1 if isinstance(item, Delivery) else len(item.jobs)
            if freed.awaited is not None:
                freed.notify()
            if runner.cancelling():
                return
            if now > slice_end:
                await self._let_others_run()
                now = monotonic()
                slice_end = now + SLICE_S

    def _has_dropped(self, jobs: Sequence[Delivery]) -> None:
        """Leave deliveries that have not begun to another runner, because this one was cancelled."""
        for job in jobs:
            self.taken -= 1
            if job.stage is QUEUED and not self.is_ending():
                if self._closed:
                    self._hand_back([job])
                else:
                    self._queue.appendleft(job)
                    self.taken += 1
        self.freed.notify()

    async def _let_others_run(self) -> None:
        self._lets_others_run += 1
        try:
            await self._pause()
        finally:
            self._lets_others_run -= 1


def _jobs_of(item: Delivery | Batch) -> Sequence[Delivery]:
    return item.jobs if isinstance(item, Batch) else (item,)
