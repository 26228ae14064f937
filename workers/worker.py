"""The worker as programs see it: made at import time, configured by whoever runs it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack, cast, overload

import anyio
from anyio.abc import TaskStatus

from workers.loop.around import Around, checked_around
from workers.loop.dispatch import Handlers, no_type_field
from workers.loop.handlers import Handler, checked
from workers.loop.reporting import EVENTS, Counts, WorkerEvent
from workers.process import WorkerProcess
from workers.protocol.errors import ConfigurationError
from workers.runtime.callbacks import Callbacks, CallbackT
from workers.runtime.children import ends_in_children
from workers.runtime.event_loop import call_in, require_asyncio
from workers.runtime.settings import load_settings
from workers.runtime.settings_errors import did_you_mean
from workers.settings import WorkerOptions, WorkerSettings

HandlerT = TypeVar("HandlerT", bound=Handler)
AroundT = TypeVar("AroundT", bound=Around)


class Worker:
    """Reads jobs of one stream and group, runs the handler on them and settles them.

    ``Worker("orders", "billing", concurrency=8)``: every field of `WorkerSettings` is an argument. What the
    environment (``REAPER_…``), a settings file or a flag of ``worker run`` says is stronger than an argument, so that
    a program can be deployed unchanged. With ``settings=`` the worker takes exactly those when run inside a program.

    Raises ConfigurationError for an argument that is no setting.
    """

    def __init__(
        self,
        stream: str | None = None,
        group: str | None = None,
        *,
        settings: WorkerSettings | None = None,
        **arguments: Unpack[WorkerOptions],
    ) -> None:
        for name in arguments:
            if name not in WorkerSettings.model_fields:
                raise ConfigurationError(f"unknown setting {name!r}{did_you_mean(name, WorkerSettings.model_fields)}")
        given = {"stream": stream, "group": group, **arguments}
        self._arguments = {name: value for name, value in given.items() if value is not None}
        if settings is not None and self._arguments:
            raise ConfigurationError(
                f"give a worker either settings or {', '.join(sorted(self._arguments))}, not both: "
                "use settings.model_copy(update=…)."
            )
        if settings is not None:
            self._arguments = {name: getattr(settings, name) for name in settings.model_fields_set}
        self._settings = settings
        self.handlers = Handlers()
        """What the program has registered to run its jobs, for `workers.testing`."""
        self._callbacks: Callbacks[str] = Callbacks(EVENTS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.process: WorkerProcess | None = None
        """The current or last run, for `workers.health`; None where there was none."""

    # ---- what the program says

    @overload
    def handler(self, function: HandlerT, /) -> HandlerT: ...
    @overload
    def handler(self, job_type: str, /, *more: str) -> Callable[[HandlerT], HandlerT]: ...
    def handler(self, first: object, /, *more: str) -> object:
        """Register what runs jobs: an ``async def``, or a plain ``def`` that then runs in a thread.

        ``@worker.handler("mail", "sms")``: for jobs of these types, which stand in the field that `job_type_field`
        names. ``@worker.handler``: for all jobs that no other handler is for; without it, `unknown_job_types` says what
        becomes of those.

        Raises ConfigurationError where there is one for them already, where a type is named and the worker has no
        `job_type_field`, and for what would run nothing when it is called: a generator function, a class.
        """
        if not isinstance(first, str):
            if more:
                raise ConfigurationError('name the types alone: @worker.handler("mail", "sms").')
            handler = cast("Handler", first)
            self.handlers.add(checked(handler), ())
            return handler
        types = (first, *more)
        if not (self._settings.job_type_field if self._settings else self._arguments.get("job_type_field")):
            raise no_type_field(first)

        def decorate(function: HandlerT) -> HandlerT:
            self.handlers.add(checked(function), types)
            return function

        return decorate

    def around(self, function: AroundT) -> AroundT:
        """Register what runs around every handler: a generator function of the job, with one ``yield``.

        The first one is the outermost, and ``async`` ones are outside of plain ones, which run where the handler runs:
        in the thread of a plain one. What the handler raises or returns as a verdict is raised at the ``yield``; caught
        there, it still decides. What ``function`` raises itself decides instead.

        Raises ConfigurationError for what is no generator function.
        """
        checked_around(function)
        self.handlers.put_around(function)
        return function

    def on(self, event: WorkerEvent) -> Callable[[CallbackT], CallbackT]:
        """Register an async callback: ``@worker.on("dead_lettered")``. It gets a `Report`.

        Raises ValueError for an event that is never reported.
        """
        return self._callbacks.on(event)

    # ---- settings

    @property
    def settings(self) -> WorkerSettings:
        """The settings in force. Raises ConfigurationError where they cannot work."""
        if self._settings is None:
            self.configure()
        assert self._settings is not None
        return self._settings

    def configure(self, *, flags: Mapping[str, Any] | None = None, file: Path | None = None) -> None:
        """Read the settings anew; flags, environment and file, in this order, are stronger than the arguments.

        Raises ConfigurationError.
        """
        arguments = self._arguments
        if self._settings is not None:
            arguments = {name: getattr(self._settings, name) for name in self._settings.model_fields_set}
        self._settings = load_settings(WorkerSettings, flags=flags, file=file, arguments=arguments)

    @property
    def arguments(self) -> Mapping[str, Any]:
        """What the program itself says: flags, environment and file are stronger."""
        return self._arguments

    @contextmanager
    def going_by(self, settings: WorkerSettings) -> Iterator[None]:
        """Go by exactly ``settings`` while the block runs, whatever anybody else says (`workers.testing` does)."""
        before, self._settings = self._settings, settings
        try:
            yield
        finally:
            self._settings = before

    # ---- running

    async def run(
        self, *, handle_signals: bool = False, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Work until `stop`, or until cancelled; may be called again afterwards.

        With ``handle_signals``, the first SIGTERM or SIGINT stops and drains, the second ends at once.
        ``task_status`` is told once the group is joined. Raises ConfigurationError, UnreachableError or
        UnsupportedServerError where the work cannot begin; later outages are waited out. Raises HandlerExitError where
        a handler or a callback has raised SystemExit or KeyboardInterrupt.
        """
        loop = require_asyncio("a worker")
        if self._runs():
            raise ConfigurationError("the worker runs already: make a second Worker to run twice.")
        process = WorkerProcess(self.settings, self.handlers, self._callbacks)
        ends_in_children(loop)
        self._loop, self.process = loop, process
        await process.run(handle_signals=handle_signals, task_status=task_status)

    def stop(self, *, now: bool = False) -> None:
        """Stop reading, let running jobs end within `drain_timeout`, settle, and return from `run`.

        With ``now``, what still runs is cancelled and left pending. May be called from any thread and from a signal
        handler: nothing is started any more, and the rest is done soon, in the event loop. A worker that does not run
        is not stopped: its next run works.
        """
        if self.process is not None and self._loop is not None:
            self.process.halt()
            call_in(self._loop, partial(self.process.stop, now=now))

    @property
    def counts(self) -> Counts:
        """What the current or last run has done. Raises RuntimeError where there was none."""
        return self._running.counts

    @property
    def consumer(self) -> str:
        """Name of our consumer in the current or last run. Raises RuntimeError where there was none."""
        return self._running.consumer

    @property
    def was_forced(self) -> bool:
        """Tell whether the last run was told to end before everything was done."""
        return self._running.forced

    def _runs(self) -> bool:
        """Tell whether there is a run that has not ended, and not gone with its event loop."""
        is_over = self.process is None or self.process.finished
        return not is_over and self._loop is not None and not self._loop.is_closed()

    @property
    def _running(self) -> WorkerProcess:
        if self.process is None:
            raise RuntimeError("the worker has not run yet")
        return self.process
