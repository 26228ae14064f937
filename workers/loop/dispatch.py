"""Chooses the handler of a job, either the one for its type, or the default one.

Decided once, before the first job is read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.loop.batches import BatchCall, BatchHandler
from workers.loop.facts import MAX_TYPE_LENGTH
from workers.loop.handlers import Handler, Invoke, invoker, is_async
from workers.loop.job import Job
from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import text
from workers.settings import WorkerSettings


class UnknownTypeError(Exception):
    """A job is of a type that no handler is for."""


@dataclass(frozen=True, slots=True)
class HandlerCalls:
    """How the handlers of a program are called."""

    invoke: Invoke
    """Runs the handler of a job."""
    runs_in_thread: Callable[[Job], bool]
    """Returns whether the handler of a job is a plain function."""
    batch_call_of: Callable[[Job], BatchCall | None] | None = None
    """Returns the batch handler of a job, or None. None without batch handlers."""


class Handlers:
    """The handlers that a program has registered."""

    def __init__(self, default: Handler | None = None) -> None:
        self._default = default
        self._by_type: dict[str, Handler] = {}

    def add(self, handler: Handler, types: Sequence[object]) -> None:
        """Run jobs of ``types`` by ``handler``. Without types, it is the default handler.

        Raises ConfigurationError if they have a handler already.
        """
        if not types:
            if self._default is not None:
                raise ConfigurationError(
                    f"the worker already has a handler for every job, {_name(self._default)}. Name the job types of "
                    "the others, as in @worker.handler('mail'), or use a worker for each stream."
                )
            self._default = handler
            return
        named: dict[str, Handler] = {}
        for job_type in types:
            if not isinstance(job_type, str) or not job_type:
                raise ConfigurationError(f"{job_type!r} is not a job type. Give text that is not empty.")
            known = self._by_type | named
            if job_type in known:
                other = _name(known[job_type])
                raise ConfigurationError(
                    f"jobs of type {job_type!r} already have a handler, {other}. Keep one of them."
                )
            named[job_type] = handler
        self._by_type |= named

    def calls(self, settings: WorkerSettings) -> HandlerCalls:
        """Return how jobs are run by these settings. Raises ConfigurationError if they cannot be run."""
        default, by_type, field = self._default, self._by_type, settings.job_type_field.encode()
        if default is None and not by_type:
            raise ConfigurationError("the worker has no handler. Decorate a function with @worker.handler.")
        if by_type and not field:
            raise no_type_field(next(iter(by_type)))
        ways: dict[int, _Way] = {}  # by identity, because handlers are objects of users, and not all have a hash
        for handler in (*by_type.values(), *([] if default is None else [default])):
            if id(handler) not in ways:
                ways[id(handler)] = _way(handler, settings.concurrency)
        otherwise = _Way(_unknown(settings.job_type_field, list(by_type))) if default is None else ways[id(default)]
        of_type = {name.encode("utf-8", "surrogateescape"): ways[id(handler)] for name, handler in by_type.items()}
        find: Callable[[bytes | None, _Way], _Way] = of_type.get  # type: ignore[assignment]

        def way_of(job: Job) -> _Way:
            return find(job.value_of(field), otherwise) if of_type else otherwise

        return HandlerCalls(
            (lambda job: way_of(job).invoke(job)) if of_type else otherwise.invoke,
            lambda job: way_of(job).in_thread,
            (lambda job: way_of(job).batch) if any(way.batch for way in ways.values()) else None,
        )


@dataclass(frozen=True, slots=True)
class _Way:
    """How one handler is called."""

    invoke: Invoke
    in_thread: bool = False
    batch: BatchCall | None = None


def _way(handler: Handler, concurrency: int) -> _Way:
    in_thread = not is_async(_function_of(handler))
    if not isinstance(handler, BatchHandler):
        return _Way(invoker(handler, concurrency), in_thread)
    call = BatchCall(handler, concurrency)
    return _Way(call.invoke, in_thread, call)


def no_type_field(job_type: str) -> ConfigurationError:
    """Return an error if there is a handler for a type, but no field that holds the type."""
    return ConfigurationError(
        f"a handler is for jobs of type {job_type!r}, but the field of the type is unknown. Set "
        "job_type_field, for example to 'type'."
    )


def _unknown(field: str, types: Sequence[str]) -> Invoke:
    """Return what runs jobs without a handler: they fail."""
    known = ", ".join(map(repr, types))

    async def fail(job: Job) -> None:
        value = job.value_of(field.encode())
        if value is None:
            what = f"without a type (it has no field {field!r})"
        else:
            what = f"of type {text(value[: 4 * MAX_TYPE_LENGTH])[:MAX_TYPE_LENGTH]!r} (field {field!r})"
        raise UnknownTypeError(f"no handler for a job {what}: this worker has handlers for {known}")

    return fail


def _function_of(handler: Handler) -> Any:
    return handler.function if isinstance(handler, BatchHandler) else handler


def _name(handler: Handler) -> str:
    function = _function_of(handler)
    return str(getattr(function, "__qualname__", repr(function)))
