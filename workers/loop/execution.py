"""Runs one delivery through a handler, and derives an outcome.

Only `workers.loop.settlement` writes the outcome. If the runner of a delivery is cancelled, its entry stays pending.
"""

import asyncio
import logging
import traceback
from datetime import timedelta

from workers.backoff import AT_ONCE, Backoff
from workers.loop.handlers import Invoke, outcome_of
from workers.loop.job import Job
from workers.protocol.calls.moves import Outcome, Verdict
from workers.protocol.log_fields import fields
from workers.runtime.children import FORKS, end_child
from workers.runtime.settings import duration_in_ms
from workers.runtime.user_code import clipped, describe, ends, exits_in

logger = logging.getLogger(__name__)

MAX_TRACEBACK_BYTES = 8_192
"""The longest traceback in a dead letter. Its end is kept, because it contains the error."""

REASON_MAX_DELIVERIES = "max_deliveries"
REASON_REJECTED = "rejected"
REASON_TIMEOUT = "timeout"


class Retry(Exception):  # noqa: N818 - a verdict of the handler, not an error
    """Raise or return it to make the job ready again later.

    The journal and the dead letter contain ``reason``. ``delay`` is in seconds, or a timedelta. Without it, the backoff
    of the worker decides. Use ``counts=False`` if the job is not the cause, for example because a service is down. The
    delivery then does not count, unless the job is older than a day. Raises ValueError if the delay is invalid.
    """

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None, counts: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay_ms = None if delay is None else duration_in_ms("delay", delay)
        self.counts = counts


class Reject(Exception):  # noqa: N818 - a verdict of the handler, not an error
    """Raise or return it to make the job a dead letter now, because it can never succeed."""

    def __init__(self, reason: str = REASON_REJECTED) -> None:
        super().__init__(reason)
        self.reason = reason


ACKED = Verdict(Outcome.ACK)
HANDED_BACK = Verdict(Outcome.HAND_BACK)
"""For a job that has not begun."""
INTERRUPTED = Verdict(Outcome.HAND_BACK, "interrupted")
"""For a job that has begun, and was stopped for another reason than its own."""
MOST_HAND_BACKS = 5
"""Interruptions in a row that do not count. More would let a job that ends its workers run for ever."""


def interrupted(job: Job) -> Verdict:
    """Return the verdict on a delivery that ends with its worker, although its handler had begun."""
    if job.hand_backs < MOST_HAND_BACKS:
        return INTERRUPTED
    error = f"interrupted {job.hand_backs + 1} times in a row by the end of its worker"
    return Verdict(Outcome.NACK, REASON_MAX_DELIVERIES, error)


async def execute(
    invoke: Invoke, job: Job, backoff: Backoff = AT_ONCE, runner: "asyncio.Task[None] | None" = None
) -> Verdict:
    """Run the handler ``invoke`` on ``job``, and return its verdict. A process that the handler has forked ends here.

    ``backoff`` gives the delays of retries. ``runner`` is the task that calls this, because ``asyncio.current_task()``
    would cost as much as all the rest. Raises CancelledError if the runner itself is cancelled, and SystemExit or
    KeyboardInterrupt of the handler, also from an exception group. All other exceptions are verdicts, because one of
    them from a library would end every worker.
    """
    task = runner or asyncio.current_task()
    forks = FORKS[0]
    try:
        answer = await invoke(job)
        if answer is not None:
            answer = await outcome_of(answer)
        if FORKS[0] != forks:
            end_child(forks)
        return ACKED if answer is None else judge(job, answer, backoff)
    except BaseException as error:  # noqa: BLE001 - the end of the runner is raised again
        raise_end(error, forks, task)
        return judge(job, error, backoff)


def raise_end(error: BaseException, forks: int, task: "asyncio.Task[None] | None") -> None:
    """Raise ``error`` of a handler, or the exit in it, if it ends the runner ``task``. A forked process ends here."""
    end_child(forks, error)
    if ends(error, task):
        exits = exits_in(error)
        if exits and exits[0] is not error:
            raise exits[0] from error
        raise error


def judge(job: Job, answer: object, backoff: Backoff = AT_ONCE) -> Verdict:
    """Return the verdict for the exception or the result of a handler."""
    try:
        return _judge(job, answer, backoff)
    except BaseException as error:
        if exits_in(error):
            raise
        return _judge(job, error, backoff)  # an unreadable outcome, because its class did not call its base's __init__


def _judge(job: Job, answer: object, backoff: Backoff) -> Verdict:
    if isinstance(answer, Reject):
        cause = describe(answer.__cause__) if answer.__cause__ else ""
        return Verdict(Outcome.REJECT, clipped(answer.reason) or REASON_REJECTED, cause, traceback=trace_of(answer))
    if isinstance(answer, Retry):
        return _judge_retry(job, answer, backoff)
    if isinstance(answer, BaseException):
        logger.warning(
            "job failed: %s", fields(stream=job.stream, job=job.id, delivery=job.deliveries), exc_info=answer
        )
        kind = type(answer).__qualname__
        return failed(job, describe(answer), backoff, traceback=trace_of(answer), exception=kind)
    return ACKED


def failed(
    job: Job,
    error: str,
    backoff: Backoff,
    *,
    reason: str = REASON_MAX_DELIVERIES,
    traceback: str = "",
    exception: str = "",
) -> Verdict:
    """Return the outcome of a delivery that failed and counts. The job is ready again after the backoff."""
    return Verdict(Outcome.NACK, reason, error, backoff.delay_ms(job.deliveries), traceback, exception)


def _judge_retry(job: Job, retry: Retry, backoff: Backoff) -> Verdict:
    too_old = job.delivered_ms - job.first_ms > backoff.uncounted_max_age_ms
    outcome = Outcome.NACK if retry.counts or too_old else Outcome.RETRY
    failures = job.deliveries if outcome is Outcome.NACK else job.waits + 1
    delay_ms = backoff.delay_ms(failures) if retry.delay_ms is None else int(retry.delay_ms)
    return Verdict(outcome, REASON_MAX_DELIVERIES, clipped(retry.reason), delay_ms, trace_of(retry))


def trace_of(error: BaseException) -> str:
    """Return the end of the traceback of ``error``, at most `MAX_TRACEBACK_BYTES`. Empty if it was not raised."""
    if error.__traceback__ is None:
        return ""
    try:
        lines = "".join(traceback.format_exception(error))
    except BaseException as unreadable:
        if exits_in(unreadable):
            raise
        return ""
    tail = lines.encode("utf-8", "backslashreplace")[-MAX_TRACEBACK_BYTES:]
    return tail.decode("utf-8", "ignore")
