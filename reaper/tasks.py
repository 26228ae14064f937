"""Tasks that exist only while they have work. A replica may hold 10,000 groups, and most of them are idle."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from reaper.wheel import Alarm, Wheel
from workers.protocol.log_fields import fields
from workers.runtime.clock import monotonic

logger = logging.getLogger(__name__)

AT_A_TIME = 250
"""Groups that work at a time if all of them have the same work, so that urgent work of one group does not wait."""

Step = Callable[[], Awaitable[float | None]]
Work = Callable[[], Coroutine[Any, Any, None]]


class Tasks:
    """Starts the tasks of one replica, in its task group."""

    def __init__(self) -> None:
        self.group: TaskGroup | None = None
        self._waiting: deque[Work] = deque()
        self._in_turn = 0

    def start(self, work: Work) -> None:
        """Start ``work`` if the replica has not ended."""
        if self.group:
            self.group.start_soon(work)

    def start_in_turn(self, work: Work) -> None:
        """Start ``work`` in its turn. At most `AT_A_TIME` of them run at a time."""
        self._waiting.append(work)
        if self._in_turn < AT_A_TIME:
            self._in_turn += 1
            self.start(self._take_turns)

    async def _take_turns(self) -> None:
        try:
            while self._waiting:
                await self._waiting.popleft()()
        finally:
            self._in_turn -= 1


class _Chore:
    __slots__ = ("alarm", "is_started", "is_woken", "scope", "step")

    def __init__(self, step: Step, ring: Callable[[], None]) -> None:
        self.step = step
        self.alarm = Alarm(ring)
        self.is_started = self.is_woken = False
        self.scope: anyio.CancelScope | None = None


class Chores:
    """The work of one term. A step runs in a task, never twice at a time, and returns when to repeat it."""

    __slots__ = ("_chores", "_ended", "_failed", "_group", "_tasks", "_wheel")

    def __init__(self, wheel: Wheel, tasks: Tasks, group: str, failed: Callable[[], None]) -> None:
        """``failed`` is called after an unexpected exception, which is logged for ``group``."""
        self._wheel = wheel
        self._tasks = tasks
        self._group = group
        self._failed = failed
        self._chores: dict[Step, _Chore] = {}
        self._ended: Callable[[], None] | None = None

    @property
    def _is_stopped(self) -> bool:
        return self._ended is not None

    def wake(self, step: Step, pause_s: float = 0, *, in_turn: bool = False) -> None:
        """Run ``step`` after ``pause_s`` at the latest. If it is under way, it runs once more.

        The step returns the seconds until it runs again. None = not before it is woken.
        """
        chore = self._chores.get(step)
        if chore is None:
            chore = self._chores[step] = _Chore(step, partial(self.wake, step))
        if chore.is_started:
            chore.is_woken = True
        elif not self._is_stopped:
            if pause_s <= 0:
                chore.alarm.cancel()
                chore.is_started = True
                start = self._tasks.start_in_turn if in_turn else self._tasks.start
                start(partial(self._run, chore))
            elif monotonic() + pause_s < chore.alarm.due_s:
                self._wheel.put(chore.alarm, pause_s)

    def is_started(self, step: Step) -> bool:
        """Tell whether a step is under way, or waits for its turn."""
        return step in self._chores and self._chores[step].is_started

    def stop(self, ended: Callable[[], None]) -> None:
        """Cancel all steps, and call ``ended`` when none is under way."""
        self._ended = ended
        under_way = [chore.scope for chore in self._chores.values() if chore.scope]
        for chore in self._chores.values():
            chore.alarm.end()
        for scope in under_way:
            scope.cancel()
        if not under_way:
            ended()

    def safely(self, call: Callable[[], None]) -> None:
        """Call ``call``, and end the term if it raises."""
        try:
            call()
        except Exception:
            logger.exception("serving the group failed: %s", fields(group=self._group))
            self._failed()

    async def _run(self, chore: _Chore) -> None:
        if self._is_stopped:
            return
        pause_s: float | None = 0
        try:
            with anyio.CancelScope() as chore.scope:
                while pause_s == 0 and not self._is_stopped:
                    chore.is_woken = False
                    pause_s = await chore.step()
                    pause_s = 0 if chore.is_woken else pause_s
        except Exception:
            pause_s = None
            logger.exception("serving the group failed: %s", fields(group=self._group))
            self._failed()
        finally:
            chore.scope, chore.is_started = None, False
        if self._ended is None:
            if pause_s is not None:
                self.wake(chore.step, pause_s)
        elif not any(other.scope for other in self._chores.values()):
            self._ended()
