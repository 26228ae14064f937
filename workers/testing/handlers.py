"""Runs a handler with one job as a worker does, without Redis, and returns the result of the job."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic, time_ns
from typing import cast

import anyio
from pydantic import ValidationError

from workers.loop.dispatch import Handlers
from workers.loop.execution import Retry, execute
from workers.loop.handlers import Handler, checked, outcome_of
from workers.loop.in_flight import Delivery, Source
from workers.loop.job import Job
from workers.new_jobs import Fields, NewJob, encode_job
from workers.protocol.calls.membership import DEFAULT_MAX_DELIVERIES
from workers.protocol.calls.moves import Outcome, Verdict
from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import FIELD_COPIES, FIELD_DELIVERIES, FIELD_JOB
from workers.runtime.settings import Section
from workers.runtime.settings_errors import explain
from workers.settings import WorkerSettings
from workers.worker import Worker

_DEFAULTS = {"stream": "jobs", "group": "tests"}
"""For workers whose stream and group are set at deployment."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The handler returned. The job is done."""


@dataclass(frozen=True, slots=True)
class Retried:
    """The handler raised or returned `Retry`. The job is ready again later."""

    reason: str = ""
    delay: float | None = None
    """The delay in seconds that the handler chose, or None if the worker's backoff decides."""
    counts: bool = True
    """It used up a delivery."""
    dead_letter: bool = False
    """It was the job's last delivery, so the job becomes a dead letter instead."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The handler raised or returned `Reject`. The job is a dead letter."""

    reason: str = "rejected"
    error: str = ""
    """The error that it was raised from, as in ``raise Reject("malformed") from error``."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised another exception. The job is ready again after the backoff."""

    error: str
    """``Type: message``, as in a dead letter."""
    dead_letter: bool = False
    """It was the job's last delivery, so the job becomes a dead letter instead."""
    exception: BaseException | None = field(default=None, compare=False)
    """The exception, with its traceback."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The handler ran longer than its timeout and was cancelled. A thread is left alone."""

    timeout: float
    """In seconds."""
    dead_letter: bool = False
    """It was the job's last delivery, so the job becomes a dead letter instead."""


Result = Acknowledged | Retried | Rejected | Failed | TimedOut


def run_handler(
    handler: Handler | Worker,
    job: NewJob | Fields = (),
    *,
    deliveries: int = 1,
    max_deliveries: int | None = None,
    extend: bool | Exception = True,
) -> Result:
    """Run ``handler``, or the handler of a worker, in an event loop of its own. See `run_handler_async`."""
    return anyio.run(
        partial(run_handler_async, handler, job, deliveries=deliveries, max_deliveries=max_deliveries, extend=extend)
    )


async def run_handler_async(
    handler: Handler | Worker,
    job: NewJob | Fields = (),
    *,
    deliveries: int = 1,
    max_deliveries: int | None = None,
    extend: bool | Exception = True,
) -> Result:
    """Run ``handler``, or the handler of a worker, with one job, and return the result of the job.

    A plain function runs in a thread, as in a worker. The job is its fields, or a `NewJob`. ``deliveries`` is the
    number of this delivery. ``max_deliveries`` is the limit of the job, by default the worker's, or 3. `Job.extend`
    returns ``extend``, or raises it if it is an exception.

    Raises InvalidJobError if a producer would reject the job, ValueError if the delivery is out of range, and
    ConfigurationError if a worker would reject the handler.
    """
    settings = settings_of(handler if isinstance(handler, Worker) else Worker())
    limit = max_deliveries or settings.max_deliveries or DEFAULT_MAX_DELIVERIES
    if not 1 <= deliveries <= limit:
        raise ValueError(f"job has no delivery {deliveries}: max_deliveries is {limit}. Give another max_deliveries.")
    handlers = handler.handlers if isinstance(handler, Worker) else Handlers(checked(handler))
    invoke, raised = handlers.calls(settings).invoke, list[BaseException]()
    delivery = _delivery(job if isinstance(job, NewJob) else NewJob(job), settings, deliveries, limit, extend)

    async def call(one: Job) -> object:
        try:
            answer = await outcome_of(await invoke(one))
        except BaseException as error:
            raised.append(error)
            raise
        raised.extend([answer] if isinstance(answer, BaseException) else [])
        return answer

    delivery.source.hold([delivery])
    delivery.begin(monotonic(), cast("asyncio.Task[None]", asyncio.current_task()))
    is_last = deliveries == limit
    with suppress(TimeoutError):
        async with asyncio.timeout(None if delivery.timeout_s == inf else delivery.timeout_s) as timeout:
            verdict = await execute(call, delivery, settings.backoff)
    if timeout.expired():  # rule W1: a handler that timed out is never acknowledged
        return TimedOut(delivery.timeout_s, is_last)
    return _result(verdict, raised[-1] if raised else None, is_last=is_last)


def _result(verdict: Verdict, raised: BaseException | None, *, is_last: bool) -> Result:
    if verdict.outcome is Outcome.ACK:
        return Acknowledged()
    if verdict.outcome is Outcome.REJECT:
        return Rejected(verdict.reason, verdict.error)
    if verdict.exception:
        return Failed(verdict.error, is_last, raised)
    counts = verdict.outcome is Outcome.NACK
    by_backoff = not isinstance(raised, Retry) or raised.delay_ms is None
    delay = None if by_backoff else verdict.delay_ms / 1000  # that of the backoff is random
    return Retried(verdict.error, delay, counts, dead_letter=counts and is_last)


def _delivery(new: NewJob, settings: WorkerSettings, deliveries: int, limit: int, extend: bool | Exception) -> Delivery:
    """Return the job in that delivery. After the first delivery it is a copy, as after a retry."""

    async def answer(_held: Delivery) -> bool:
        if isinstance(extend, Exception):
            raise extend
        return extend

    encoded = encode_job(new, settings.stream)
    before = b"%d" % (deliveries - 1)
    reserved = [FIELD_JOB, encoded.job_id, FIELD_DELIVERIES, before, FIELD_COPIES, before]
    now_ms = time_ns() // 1_000_000
    timeout_s = settings.timeout.total_seconds() if settings.timeout else inf
    source = Source(settings.stream, settings.stream, timeout_s, extend=answer)
    return Delivery(source, b"%d-0" % now_ms, [*encoded.words, *reserved], 1, limit, now_ms, monotonic())


class _OnlyGiven(Section, WorkerSettings):
    """Settings that are read from the constructor alone, and not from the environment."""


def settings_of(worker: Worker, **stronger: object) -> WorkerSettings:
    """Return the settings of ``worker``. Those of the test are stronger. Raises ConfigurationError."""
    try:
        return _OnlyGiven(**(_DEFAULTS | dict(worker.arguments) | stronger))
    except ValidationError as error:
        raise ConfigurationError(*explain(WorkerSettings, error, {})) from error
