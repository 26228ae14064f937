"""An event loop for many simulated processes, with virtual time, one thread, and a gate before each process.

Every callback belongs to the process in whose context it was scheduled, as contextvars have it. Callbacks of a paused
process wait for it. Those of a killed process never run. Its ``finally`` blocks do not run either, as after
``SIGKILL``. Computing takes a little time, so a spinning program does not last for ever.
"""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any

TURN_S = 10e-6
"""What one turn of the loop takes."""
SPINNING = 1_000
"""So many turns in a row without a wait are no work any more: cancellation is told again and again to who swallows it,
say. Each then takes `SPIN_S`, so that time goes on."""
SPIN_S = 20e-3
LATE_S = 1e-6
"""A timer fires so much after it is due: no sum of floats may leave it a moment too early for ever."""


class Process:
    """One simulated process, or a thread of one. Holds its scheduled callbacks, and whether they may run."""

    def __init__(self, loop: "SimulatedLoop", name: str, *, role: str = "", parent: "Process | None" = None) -> None:
        self.name = name
        self.role = role or name
        """What it is one incarnation of."""
        self.parent = parent
        self.lag_s = 0.0
        """How far its monotonic clock is behind the loop's: it stood still while its machine was suspended."""
        self._stands_until = 0.0
        """So long its clock stands still, by the loop's."""
        self.closed = False
        """Nothing of it runs now."""
        self.dead = False
        self.context = copy_context()
        self.context.run(_PROCESS.set, self)
        self.tasks: list[asyncio.Task[Any]] = []
        self._loop = loop
        self._held: list[asyncio.Handle] = []
        self._threads: list[Process] = []

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def thread(self, name: str) -> "Process":
        """Return another gate inside this process, which goes on while the event loop is blocked."""
        thread = Process(self._loop, f"{self.name} ({name})", parent=self)
        self._threads.append(thread)
        return thread

    def start(self, program: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a program as this process."""
        task: asyncio.Task[Any] = self._loop.create_task(program, name=self.name, context=self.context.copy())
        self.tasks.append(task)
        return task

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep back what may not run now."""
        if not self.dead:
            self._held.append(handle)

    def block(self) -> None:
        """Let the event loop stand, because a handler is computing. Threads go on."""
        self.closed = True

    def unblock(self) -> None:
        """Go on, unless killed."""
        if not self.dead:
            self.closed = False
            held, self._held = self._held, []
            self._loop.put_back(held)

    def pause(self) -> None:
        """Let all of it stand, as by ``SIGSTOP``."""
        for one in (self, *self._threads):
            one.block()

    def resume(self) -> None:
        """Go on with all that has become due. A clock that was to stand still for longer goes on, too."""
        for one in (self, *self._threads):
            left_s = one._stands_until - self._loop.now
            if left_s > 0:
                one.lag_s -= left_s
                one._stands_until = 0.0
                self._loop.come_earlier(one)
            one.unblock()

    def suspend_clock(self, seconds: float) -> None:
        """Have the monotonic clock stand still for so long from now on, timers included. It is paused, too."""
        for one in (self, *self._threads):
            one.lag_s += seconds
            one._stands_until = self._loop.now + seconds

    def kill(self) -> None:
        """Let it never run again."""
        for one in (self, *self._threads):
            one.closed = one.dead = True
            one._held.clear()


_PROCESS: ContextVar[Process | None] = ContextVar("simulated_process", default=None)


class SimulatedLoop(asyncio.BaseEventLoop):
    """Starts at ``time() == 0``. Raises RuntimeError if everything waits for an event that never comes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.turns = 0
        self.connect: Callable[[Any, str, int, Process | None], Any] | None = None
        """What `create_connection` asks: the network."""
        self._queue: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = count()
        self._spins = 0

    # ---- for programs

    def time(self) -> float:
        """Return seconds of the monotonic clock of the process that asks."""
        process = _PROCESS.get()
        return self.now if process is None else self.now - process.lag_s

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Have ``callback`` called in the next turn."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """The same. Callbacks of a thread are called in its process's event loop."""
        process = _PROCESS.get()
        if context is None and process is not None and process.parent is not None:
            context = process.parent.context.copy()
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Have ``callback`` called after ``delay`` seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Have ``callback`` called at ``when``, by the clock of the process it belongs to."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
        due = when if process is None else when + process.lag_s
        heapq.heappush(self._queue, (due, next(self._number), handle))
        return handle

    def call_when(self, due: float, callback: Any, *args: Any, context: Context) -> asyncio.TimerHandle:
        """Call ``callback`` at the time ``due`` of the loop's own clock, at any time of its process's clock."""
        process = context.get(_PROCESS)
        when = due if process is None else due - process.lag_s
        return self.call_at(when, callback, *args, context=context)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connect over the simulated network."""
        assert self.connect is not None
        return await self.connect(protocol_factory, host, port, _PROCESS.get())

    # ---- for the driver

    def put_back(self, handles: list[asyncio.Handle]) -> None:
        """Run in the next turn what was held."""
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def come_earlier(self, process: Process) -> None:
        """Note that timers of a process are due earlier than they seemed, because its clock goes on."""
        queue = self._queue
        for at, (_, number, handle) in enumerate(queue):
            if handle._context.get(_PROCESS) is process:  # type: ignore[attr-defined]
                queue[at] = handle.when() + process.lag_s, number, handle
        heapq.heapify(queue)

    def forget_everything(self) -> None:
        """Never run again."""
        self._ready.clear()  # type: ignore[attr-defined]
        self._queue.clear()

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        if ready:
            self._spins += 1
            self.now += TURN_S if self._spins < SPINNING else SPIN_S
        else:
            self._spins = 0
            self._wait()
        self._take_due()
        self.turns += 1
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)
            if process is not None and process.closed:
                process.hold(handle)
                continue
            handle._run()

    def _wait(self) -> None:
        """Let time pass until something is due."""
        queue = self._queue
        while queue:
            due, _, handle = queue[0]
            if not handle._cancelled:
                self.now = max(self.now, due) + LATE_S
                return
            heapq.heappop(queue)
        raise RuntimeError("nothing is scheduled: everybody waits for what never comes")

    def _take_due(self) -> None:
        queue, now = self._queue, self.now
        while queue and queue[0][0] <= now:
            _, number, handle = heapq.heappop(queue)
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
            if process is not None and handle.when() + process.lag_s > now:  # its clock stood still meanwhile
                heapq.heappush(queue, (handle.when() + process.lag_s, number, handle))
            else:
                self._ready.append(handle)  # type: ignore[attr-defined]

    def _process_events(self, event_list: Any) -> None:
        raise NotImplementedError  # there are no sockets

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when it comes up."""
