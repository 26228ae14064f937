"""Chooses the handler of a job, either the one for its type, or the default one. Decided once, before the first job.

A batch handler gets a list of jobs, and gives an outcome for each. Only the call of the handler is shared. Each job of
a batch has its own slot, heartbeat, timeout, outcome and settlement, so all rules for deliveries hold.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.backoff import Backoff
from workers.loop.execution import ACKED, judge, raise_end
from workers.loop.facts import MAX_TYPE_LENGTH
from workers.loop.handlers import Handler, Invoke, UnusableAnswerError, come_to, invoker, is_async
from workers.loop.job import Job
from workers.protocol.calls.moves import Verdict
from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import text
from workers.runtime.children import FORKS, end_child
from workers.settings import WorkerSettings


class UnknownTypeError(Exception):
    """A job is of a type that no handler is for."""


@dataclass(frozen=True, slots=True)
class BatchHandler:
    """A function that a program registers for lists of jobs, with the limits of a list."""

    function: Callable[[list[Job]], Any]
    size: int
    wait_s: float

    async def __call__(self, job: Job) -> object:
        """Never called; `BatchCall` is. It makes this a handler."""
        raise NotImplementedError


class BatchCall:
    """How a batch handler of a running worker is called."""

    def __init__(self, handler: BatchHandler, concurrency: int) -> None:
        self.size, self.wait_s = handler.size, handler.wait_s
        self._invoke: Callable[[Any], Any] = invoker(handler.function, concurrency)  # type: ignore[arg-type]

    async def invoke(self, job: Job) -> object:
        """Return the handler's answer for a batch of one job."""
        return (await self._answers([job]))[0]

    async def execute(
        self, jobs: Sequence[Job], backoff: Backoff, runner: "asyncio.Task[None] | None"
    ) -> Sequence[Verdict]:
        """Run the handler on ``jobs``, and return their verdicts, as `workers.loop.execution.execute` does."""
        forks = FORKS[0]
        answers: Sequence[object]
        try:
            answers = await self._answers(list(jobs))
            end_child(forks)
        except BaseException as error:  # noqa: BLE001 - what ends the runner is raised again
            raise_end(error, forks, runner)
            answers = [error] * len(jobs)
        return [
            ACKED if answer is None else judge(job, answer, backoff) for job, answer in zip(jobs, answers, strict=True)
        ]

    async def _answers(self, jobs: list[Job]) -> Sequence[object]:
        """Return the handler's answer for each job. Raises what the handler raises, and UnusableAnswerError."""
        answer = await come_to(await self._invoke(jobs))
        if answer is None or isinstance(answer, BaseException):
            return [answer] * len(jobs)
        if not isinstance(answer, list | tuple) or len(answer) != len(jobs):
            what = f"{len(answer)} outcomes" if isinstance(answer, list | tuple) else type(answer).__qualname__
            raise UnusableAnswerError(
                f"the batch handler returned {what} for {len(jobs)} jobs. Return None, or a list with one outcome for "
                "each job, in their order."
            )
        return [None if one is None else await come_to(one) for one in answer]


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
            raise ConfigurationError(
                f"a handler is for jobs of type {next(iter(by_type))!r}, but the field of the type is unknown. Set "
                "job_type_field, for example to 'type'."
            )
        ways: dict[int, _Way] = {}  # by identity, because handlers are objects of users, and not all have a hash
        for handler in (*by_type.values(), *([] if default is None else [default])):
            if id(handler) not in ways:
                ways[id(handler)] = _Way(handler, settings.concurrency)
        unknown = _Way(_unknown(settings.job_type_field, list(by_type)), settings.concurrency)
        otherwise = unknown if default is None else ways[id(default)]
        of_type = {name.encode("utf-8", "surrogateescape"): ways[id(handler)] for name, handler in by_type.items()}
        find: Callable[[bytes | None, _Way], _Way] = of_type.get  # type: ignore[assignment]

        def way_of(job: Job) -> _Way:
            return find(job.value_of(field), otherwise) if of_type else otherwise

        return HandlerCalls(
            (lambda job: way_of(job).invoke(job)) if of_type else otherwise.invoke,
            lambda job: way_of(job).in_thread,
            (lambda job: way_of(job).batch) if any(way.batch for way in ways.values()) else None,
        )


class _Way:
    """How one handler is called."""

    def __init__(self, handler: Handler, concurrency: int) -> None:
        self.in_thread = not is_async(_function_of(handler))
        self.batch = BatchCall(handler, concurrency) if isinstance(handler, BatchHandler) else None
        self.invoke: Invoke = self.batch.invoke if self.batch else invoker(handler, concurrency)


def _unknown(field: str, types: Sequence[str]) -> Handler:
    """Return the handler of jobs without a handler: they fail."""
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
