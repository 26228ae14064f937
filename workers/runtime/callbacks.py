"""Passes lifecycle facts to the program's async callbacks, without delaying the work."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskStatus

from workers.protocol.errors import HandlerExitError
from workers.protocol.log_fields import fields
from workers.runtime.user_code import current_task, describe, ends, exits_in

logger = logging.getLogger(__name__)

Callback = Callable[[Any], Awaitable[None]]
CallbackT = TypeVar("CallbackT", bound=Callback)

BACKLOG = 10_000
"""Reports that may wait for a slow callback. Later ones are dropped."""


@dataclass(frozen=True, slots=True)
class Report:
    """The argument of a callback, which is the name of an event, and its facts under their names in the journal."""

    name: str
    facts: dict[str, Any] = field(default_factory=dict)


class Callbacks:
    """A registry of callbacks by event name, and the one task that calls them in order. Create it at any time."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._registered: dict[str, list[Callback]] = {}
        self._waiting: deque[Report] = deque()
        self._arrived: anyio.Event | None = None

    def on(self, name: str) -> Callable[[CallbackT], CallbackT]:
        """Register an async function for the event ``name``. Raises ValueError if the event does not exist."""
        if name not in self._names:
            raise ValueError(f"event {name!r} is unknown. Choose one of {', '.join(sorted(self._names))}.")

        def register(callback: CallbackT) -> CallbackT:
            self._registered.setdefault(name, []).append(callback)
            return callback

        return register

    def wants(self, name: str) -> bool:
        """Return whether the event has a callback. Otherwise callers need not gather facts."""
        return name in self._registered

    def report(self, name: str, **facts: Any) -> None:
        """Queue a report, and return at once. Call it in the event loop's thread."""
        if name in self._registered and len(self._waiting) < BACKLOG:
            self._waiting.append(Report(name, facts))
            if self._arrived is not None:
                self._arrived.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Call the callbacks until cancelled. A callback that raises is logged. Raises HandlerExitError."""
        task_status.started()
        while True:
            await self.drain()
            self._arrived = anyio.Event()
            await self._arrived.wait()

    async def drain(self) -> None:
        """Call the callbacks of the queued reports, at shutdown."""
        while self._waiting:
            await self._call(self._waiting.popleft())

    async def _call(self, report: Report) -> None:
        for callback in self._registered.get(report.name, ()):
            try:
                await callback(report)
            except BaseException as error:
                exits = exits_in(error)
                if not exits and ends(error, current_task()):
                    raise
                logger.exception("callback failed: %s", fields(event=report.name))
                if exits:  # the exit itself would end the event loop before the connections are closed
                    raise HandlerExitError(
                        f"a callback for {report.name!r} ended the worker: {describe(exits[0])}"
                    ) from exits[0]
