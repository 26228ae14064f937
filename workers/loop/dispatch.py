"""Chooses the handler of a job, either the one for its type, or the default one.

Decided once, before the first job is read.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.loop.around import Around, invoker_inside
from workers.loop.batches import BatchCall, BatchHandler
from workers.loop.execution import Reject, Retry
from workers.loop.facts import MAX_TYPE_LENGTH
from workers.loop.handlers import Handler, Invoke, is_async
from workers.loop.job import Job
from workers.protocol.errors import ConfigurationError
from workers.protocol.log_fields import fields
from workers.protocol.messages import text
from workers.settings import UnknownJobTypes, WorkerSettings

logger = logging.getLogger(__name__)

REASON_UNKNOWN_TYPE = "unknown_type"
LEFT_S = 1.0
"""Delay of a job that is left to other workers, if the backoff has no delay."""
_TYPES_WARNED_OF = 100


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
        self._arounds: list[Around] = []

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

    def put_around(self, around: Around) -> None:
        """Run ``around`` around all handlers, inside of those that were given before."""
        self._arounds.append(around)

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
                ways[id(handler)] = self._way(handler, settings)
        otherwise = _Way(_Unknown(settings, list(by_type)).conclude) if default is None else ways[id(default)]
        of_type = {name.encode("utf-8", "surrogateescape"): ways[id(handler)] for name, handler in by_type.items()}
        find: Callable[[bytes | None, _Way], _Way] = of_type.get  # type: ignore[assignment]

        def way_of(job: Job) -> _Way:
            return find(job.value_of(field), otherwise) if of_type else otherwise

        return HandlerCalls(
            (lambda job: way_of(job).invoke(job)) if of_type else otherwise.invoke,
            lambda job: way_of(job).in_thread,
            (lambda job: way_of(job).batch) if any(way.batch for way in ways.values()) else None,
        )

    def _way(self, handler: Handler, settings: WorkerSettings) -> "_Way":
        in_thread = not is_async(_function_of(handler))
        if not isinstance(handler, BatchHandler):
            return _Way(invoker_inside(self._arounds, handler, settings.concurrency), in_thread)
        if self._arounds:
            raise ConfigurationError(
                "the worker has a batch handler, and worker.around runs around single jobs. Call the function in the "
                "batch handler, or use a second worker."
            )
        call = BatchCall(handler, settings.concurrency)
        return _Way(call.invoke, in_thread, call)


@dataclass(frozen=True, slots=True)
class _Way:
    """How one handler is called."""

    invoke: Invoke
    in_thread: bool = False
    batch: BatchCall | None = None


def no_type_field(job_type: str) -> ConfigurationError:
    """Return an error if there is a handler for a type, but no field that holds the type."""
    return ConfigurationError(
        f"a handler is for jobs of type {job_type!r}, but the field of the type is unknown. Set "
        "job_type_field, for example to 'type'."
    )


class _Unknown:
    """Decides about jobs without a handler."""

    def __init__(self, settings: WorkerSettings, types: Sequence[str]) -> None:
        backoff = settings.backoff
        self._leaves = settings.unknown_job_types is UnknownJobTypes.LEAVE
        self._delay = LEFT_S if not backoff.base_ms or backoff.cap_ms < LEFT_S * 1000 else None
        self._field = settings.job_type_field
        self._known = ", ".join(map(repr, types))
        self._warned_of: set[bytes | None] = set()

    async def conclude(self, job: Job) -> Reject | Retry:
        """Return the outcome of a job, which is a dead letter, or a return to other workers without counting."""
        value = job.value_of(self._field.encode())
        if value is None:
            what = f"without a type (it has no field {self._field!r})"
        else:
            what = f"of type {text(value[: 4 * MAX_TYPE_LENGTH])[:MAX_TYPE_LENGTH]!r} (field {self._field!r})"
        sentence = f"no handler for a job {what}: this worker has handlers for {self._known}"
        if not self._leaves:
            reject = Reject(REASON_UNKNOWN_TYPE)
            reject.__cause__ = UnknownTypeError(sentence)
            return reject
        if value not in self._warned_of and len(self._warned_of) < _TYPES_WARNED_OF:
            self._warned_of.add(value)
            logger.warning("jobs without a handler are left to other workers: %s", fields(cause=sentence))
        return Retry(sentence, delay=self._delay, counts=False)


def _function_of(handler: Handler) -> Any:
    return handler.function if isinstance(handler, BatchHandler) else handler


def _name(handler: Handler) -> str:
    function = _function_of(handler)
    return str(getattr(function, "__qualname__", repr(function)))
