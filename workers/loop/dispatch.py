"""Chooses the handler of a job, either the one for its type, or the default one.

A batch handler gets a list of jobs, and returns an outcome for each. The jobs of a batch share only the call. Each has
its own slot, heartbeat, timeout, outcome and settlement, so all rules for deliveries hold.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.backoff import Backoff
from workers.loop.execution import ACKED, judge, raise_end
from workers.loop.facts import MAX_TYPE_LENGTH
from workers.loop.handlers import Handler, Invoke, UnusableAnswerError, invoker, is_async, outcome_of
from workers.loop.job import Job
from workers.protocol.calls.moves import Verdict
from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import text
from workers.runtime.children import FORKS, end_child
from workers.settings import WorkerSettings


class UnknownTypeError(Exception):
    """The worker has no handler for the type of a job."""


@dataclass(frozen=True, slots=True)
class BatchHandler:
    """A function that a program registers for lists of jobs, with the limits of a list."""

    function: Callable[[list[Job]], Any]
    size: int
    wait_s: float


class HandlerCall:
    """Calls one handler."""

    def __init__(self, function: Callable[[Any], Any], concurrency: int) -> None:
        self.invoke: Invoke = invoker(function, concurrency)
        self.in_thread = not is_async(function)


class BatchCall(HandlerCall):
    """Calls a batch handler."""

    def __init__(self, handler: BatchHandler, concurrency: int) -> None:
        super().__init__(handler.function, concurrency)
        self.size, self.wait_s = handler.size, handler.wait_s
        self._call: Callable[[Any], Any] = self.invoke
        self.invoke = self._invoke_with_one

    async def _invoke_with_one(self, job: Job) -> object:
        return (await self._answers([job]))[0]

    async def execute(
        self, jobs: Sequence[Job], backoff: Backoff, runner: "asyncio.Task[None] | None"
    ) -> Sequence[Verdict]:
        """Run the handler on ``jobs``, and return their verdicts, as `workers.loop.execution.execute` does."""
        forks = FORKS[0]
        answers: Sequence[object]
        try:
            answers = await self._answers(jobs)
            end_child(forks)
        except BaseException as error:  # noqa: BLE001 - the end of the runner is raised again
            raise_end(error, forks, runner)
            answers = [error] * len(jobs)
        return [
            ACKED if answer is None else judge(job, answer, backoff) for job, answer in zip(jobs, answers, strict=True)
        ]

    async def _answers(self, jobs: Sequence[Job]) -> Sequence[object]:
        """Return the handler's answer for each job. Raises UnusableAnswerError, and the exceptions of the handler."""
        answer = await outcome_of(await self._call(list(jobs)))  # the handler may change its list
        if answer is None or isinstance(answer, BaseException):
            return [answer] * len(jobs)
        if not isinstance(answer, list | tuple) or len(answer := [*answer]) != len(jobs):
            what = f"{len(answer)} outcomes" if isinstance(answer, list | tuple) else type(answer).__qualname__
            raise UnusableAnswerError(
                f"the batch handler returned {what} for {len(jobs)} jobs. Return None, or a list with one outcome for "
                "each job, in their order."
            )
        return [None if one is None else await outcome_of(one) for one in answer]


class HandlerCalls:
    """Calls the handlers of a program by the types of jobs."""

    def __init__(self, field: str, by_type: Mapping[bytes, HandlerCall], default: HandlerCall) -> None:
        """``field`` names the field with the type of a job. ``default`` is for jobs of other types."""
        encoded = field.encode()
        find: Callable[[bytes | None, HandlerCall], HandlerCall] = by_type.get  # type: ignore[assignment]

        def call_of(job: Job) -> HandlerCall:
            return find(job.value_of(encoded), default)

        self.call_of: Callable[[Job], HandlerCall] = call_of if by_type else lambda _job: default
        """Returns the call for a job."""
        self.invoke: Invoke = (lambda job: call_of(job).invoke(job)) if by_type else default.invoke
        """Runs the handler of a job."""
        self.has_batches = any(isinstance(call, BatchCall) for call in (*by_type.values(), default))


class Handlers:
    """The handlers that a program has registered."""

    def __init__(self, default: Handler | None = None) -> None:
        self._registered: list[tuple[Handler | BatchHandler, Sequence[str]]] = []
        self._names: dict[str, str] = {}
        """The handler of each type, and of ``""``, which is all other jobs."""
        if default is not None:
            self.add(default, ())

    def add(self, handler: Handler | BatchHandler, types: Sequence[object]) -> None:
        """Run jobs of ``types`` by ``handler``. Without types, it is the default handler.

        Raises ConfigurationError if they have a handler already.
        """
        named = dict[str, str]()
        for job_type in types:
            if not isinstance(job_type, str) or not job_type:
                raise ConfigurationError(f"{job_type!r} is not a job type. Give text that is not empty.")
            other = named.get(job_type) or self._names.get(job_type)
            if other:
                raise ConfigurationError(
                    f"jobs of type {job_type!r} already have a handler, {other}. Keep one of them."
                )
            named[job_type] = _name(handler)
        if not types and "" in self._names:
            raise ConfigurationError(
                f"the worker already has a handler for every job, {self._names['']}. Name the job types of the "
                "others, as in @worker.handler('mail'), or use a worker for each stream."
            )
        self._names |= named or {"": _name(handler)}
        self._registered.append((handler, tuple(named)))

    def calls(self, settings: WorkerSettings) -> HandlerCalls:
        """Return the calls of the handlers with these settings. Raises ConfigurationError if jobs cannot be run."""
        field, types = settings.job_type_field, [name for name in self._names if name]
        if not self._registered:
            raise ConfigurationError("the worker has no handler. Decorate a function with @worker.handler.")
        if types and not field:
            raise ConfigurationError(
                f"a handler is for jobs of type {types[0]!r}, but the field of the type is unknown. Set "
                "job_type_field, for example to 'type'."
            )
        by_type, default = dict[bytes, HandlerCall](), HandlerCall(_unknown(field, types), settings.concurrency)
        for handler, names in self._registered:
            kind = BatchCall if isinstance(handler, BatchHandler) else HandlerCall
            call: HandlerCall = kind(handler, settings.concurrency)  # type: ignore[arg-type]
            by_type |= {name.encode("utf-8", "surrogateescape"): call for name in names}
            default = default if names else call
        return HandlerCalls(field, by_type, default)


def _unknown(field: str, types: Sequence[str]) -> Handler:
    """Return the handler of jobs of other types. It fails."""
    known = ", ".join(map(repr, types))

    async def fail(job: Job) -> None:
        value = job.value_of(field.encode())
        if value is None:
            what = f"without a type (it has no field {field!r})"
        else:
            what = f"of type {text(value[: 4 * MAX_TYPE_LENGTH])[:MAX_TYPE_LENGTH]!r} (field {field!r})"
        raise UnknownTypeError(f"no handler for a job {what}: this worker has handlers for {known}")

    return fail


def _name(handler: Handler | BatchHandler) -> str:
    function = handler.function if isinstance(handler, BatchHandler) else handler
    return str(getattr(function, "__qualname__", repr(function)))
