"""The worker of a program. The program creates it at import time, and a command or the program runs it."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import anyio
from anyio.abc import TaskStatus

from workers.loop.dispatch import BatchHandler, Handlers
from workers.loop.handlers import Handler, checked
from workers.loop.job import Job
from workers.loop.reporting import EVENTS, Counts, WorkerEvent
from workers.process import WorkerProcess
from workers.protocol.errors import ConfigurationError
from workers.runtime.callbacks import Callbacks, CallbackT
from workers.runtime.event_loop import call_in, require_asyncio
from workers.runtime.settings import load_settings
from workers.settings import WorkerSettings

HandlerT = TypeVar("HandlerT", bound=Handler)
BatchHandlerT = TypeVar("BatchHandlerT", bound=Callable[[list[Job]], Any])
MOST_IN_BATCH = 10_000
LONGEST_BATCH_WAIT_S = 10.0
"""Less than half of a usual visibility timeout, after which Redis is asked about each delivery."""


class Worker:
    """A worker of one stream and group. It reads jobs, runs their handlers and settles them.

    For example ``Worker("orders", "billing", concurrency=8)``. The arguments can be any fields of `WorkerSettings`.
    They are checked when the worker runs. Flags of ``worker run``, ``REAPER_…`` variables and a settings file override
    the arguments, so you can deploy a program unchanged. If you pass complete ``settings`` instead, the environment is
    not read.
    """

    def __init__(
        self,
        stream: str | None = None,
        group: str | None = None,
        *,
        settings: WorkerSettings | None = None,
        **arguments: Any,
    ) -> None:
        given = {"stream": stream, "group": group, **arguments}
        self.arguments = {name: value for name, value in given.items() if value is not None}
        """The arguments of the program. Flags, environment and file override them."""
        if settings is not None:
            if self.arguments:
                raise ConfigurationError(
                    "a worker takes settings or arguments, and not both. Use settings.model_copy(update=…)."
                )
            self.arguments = {name: getattr(settings, name) for name in settings.model_fields_set}
        self._settings = settings
        self.handlers = Handlers()
        """The registered handlers, for `workers.testing`."""
        self._callbacks = Callbacks(EVENTS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.process: WorkerProcess | None = None
        """The current or last run, for `workers.cli`. None before the first run."""

    # ---- set up by the program

    @overload
    def handler(self, function: HandlerT, /) -> HandlerT: ...
    @overload
    def handler(self, job_type: str, /, *more: str) -> Callable[[HandlerT], HandlerT]: ...
    def handler(self, first: object, /, *more: str) -> object:
        """Register a handler, either an ``async def`` or a plain ``def``, which runs in a thread.

        ``@worker.handler("mail", "sms")`` registers it for jobs of these types. The setting `job_type_field` names the
        field with the type. ``@worker.handler`` registers it for all other jobs. Without it, they fail. Raises
        ConfigurationError if these jobs have a handler already, or if the function is a generator function or a class.
        """
        if not isinstance(first, str):
            handler = cast("Handler", first)
            self.handlers.add(checked(handler), ())
            return handler

        def decorate(function: HandlerT) -> HandlerT:
            self.handlers.add(checked(function), (first, *more))
            return function

        return decorate

    def batch_handler(
        self, *job_types: str, size: int = 100, wait: float = 0.01
    ) -> Callable[[BatchHandlerT], BatchHandlerT]:
        """Register a handler that gets a list of jobs, as in ``@worker.batch_handler(size=100, wait=0.01)``.

        It returns None, or a list with one outcome for each job, in their order: None, a `Retry`, a `Reject` or an
        exception. If it raises, all jobs of the batch have failed. A job that must run alone is a batch of its own.

        The job types are as in `handler`. A list has at most ``size`` jobs, and at most `concurrency`. A job waits for
        others for ``wait`` seconds. Raises ConfigurationError as in `handler`, or if ``size`` or ``wait`` is out of
        range.
        """
        if not (1 <= size <= MOST_IN_BATCH and 0 <= wait <= LONGEST_BATCH_WAIT_S):
            raise ConfigurationError(
                f"invalid batch handler: size={size!r}, wait={wait!r}. Give a size from 1 to {MOST_IN_BATCH}, and a "
                f"wait from 0 to {LONGEST_BATCH_WAIT_S:g} seconds."
            )

        def decorate(function: BatchHandlerT) -> BatchHandlerT:
            checked(cast("Handler", function))
            self.handlers.add(BatchHandler(function, size, float(wait)), job_types)
            return function

        return decorate

    def on(self, event: WorkerEvent) -> Callable[[CallbackT], CallbackT]:
        """Register an async callback for an event, as in ``@worker.on("dead_lettered")``. It gets a `Report`.

        Raises ValueError if the event does not exist.
        """
        return self._callbacks.on(event)

    # ---- settings

    @property
    def settings(self) -> WorkerSettings:
        """The settings in force. Raises ConfigurationError if they are invalid."""
        if self._settings is None:
            self.configure()
        assert self._settings is not None
        return self._settings

    def configure(self, *, flags: Mapping[str, Any] | None = None, file: Path | None = None) -> None:
        """Read the settings again. Flags, environment and file override the arguments, in this order.

        Raises ConfigurationError if the settings are invalid.
        """
        self._settings = load_settings(WorkerSettings, flags=flags, file=file, arguments=self.arguments)

    # ---- running

    async def run(
        self, *, handle_signals: bool = False, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Work until `stop` or a cancellation. You can call it again afterwards.

        With ``handle_signals``, the first SIGTERM or SIGINT stops and drains, and the second one ends at once.
        ``task_status`` is called when the worker has joined the group.

        Raises ConfigurationError if the settings are invalid, if the worker runs already, or if a handler is for a type
        and `job_type_field` is missing. Raises UnreachableError if Redis does not answer at the start. The worker waits
        for the end of later outages. Raises UnsupportedServerError if the server is too old. Raises HandlerExitError if
        a handler or a callback raised SystemExit or KeyboardInterrupt.
        """
        loop = require_asyncio("a worker")
        if self.process and not self.process.finished and not (self._loop and self._loop.is_closed()):
            raise ConfigurationError("the worker is already running. Make a second Worker.")
        process = WorkerProcess(self.settings, self.handlers, self._callbacks)
        self._loop, self.process = loop, process
        await process.run(handle_signals=handle_signals, task_status=task_status)

    def stop(self, *, now: bool = False) -> None:
        """Stop reading, let running jobs end within `drain_timeout`, settle, and return from `run`.

        You can call it from any thread and from a signal handler. It takes effect soon, in the event loop. It has no
        effect on a worker that does not run. With ``now``, running jobs are cancelled and stay pending.
        """
        if self.process is not None and self._loop is not None:
            self.process.halt()
            call_in(self._loop, partial(self.process.stop, now=now))

    @property
    def counts(self) -> Counts:
        """Counters of the current or last run. Raises RuntimeError before the first run."""
        return self._running.counts

    @property
    def consumer(self) -> str:
        """Consumer name of the current or last run. Raises RuntimeError before the first run."""
        return self._running.consumer

    @property
    def _running(self) -> WorkerProcess:
        if self.process is None:
            raise RuntimeError("the worker has not run yet.")
        return self.process
