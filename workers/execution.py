"""One delivery's way through a handler: invoke, judge, and nothing else. What comes out is a verdict.

The verdict is written by `workers.settlement` alone. A delivery whose runner is cancelled has none: its entry is
left pending, which is always allowed.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from anyio import CapacityLimiter, to_thread

from workers.job import Job

logger = logging.getLogger(__name__)

Handler = Callable[[Job], Any]
"""What a program gives us: ``async def handle(job)``, or a plain ``def`` that then runs in a thread."""

Invoke = Callable[[Job], Awaitable[object]]

MAX_TEXT = 2_000
"""Characters of an error or a reason that are kept: it travels with the dead letter."""

REASON_MAX_DELIVERIES = "max_deliveries"
REASON_REJECTED = "rejected"


class Retry(Exception):  # noqa: N818 - a verdict of the handler, not an error
    """Raise (or return) it to give the job back: it is made ready again at once, and the delivery counts."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Reject(Exception):  # noqa: N818 - a verdict of the handler, not an error
    """Raise (or return) it to make the job a dead letter now: no delivery can succeed."""

    def __init__(self, reason: str = REASON_REJECTED) -> None:
        super().__init__(reason)
        self.reason = reason


class Outcome(StrEnum):
    """How a delivery ends. The values are the verbs of ``settle.lua``."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, and what to keep of it where it was no success."""

    outcome: Outcome
    reason: str = ""
    """Why the job is a dead letter, if it becomes one."""
    error: str = ""
    """What went wrong, for people."""


ACKED = Verdict(Outcome.ACK)


async def execute(invoke: Invoke, job: Job) -> Verdict:
    """Run the handler on ``job``. Raises only where the runner itself is being cancelled, or the process exits."""
    try:
        answer = await invoke(job)
    except asyncio.CancelledError as error:
        if _being_cancelled():
            raise
        return judge(job, error)  # it leaked out of something the handler awaited: a failure like any other
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is its verdict
        return judge(job, error)
    return ACKED if answer is None else judge(job, answer)


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def judge(job: Job, answer: object) -> Verdict:
    """Turn what a handler raised or returned into a verdict."""
    if isinstance(answer, Reject):
        return Verdict(Outcome.REJECT, _clip(answer.reason) or REASON_REJECTED)
    if isinstance(answer, Retry):
        return Verdict(Outcome.NACK, REASON_MAX_DELIVERIES, _clip(answer.reason))
    if isinstance(answer, BaseException):
        logger.warning("job %s failed in delivery %d", job.id, job.deliveries, exc_info=answer)
        return Verdict(Outcome.NACK, REASON_MAX_DELIVERIES, describe(answer))
    return ACKED


def describe(error: BaseException) -> str:
    """Return ``Type: message``, also where the message cannot be had."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's exception class may do anything
        message = "(its message could not be read)"
    name = type(error).__name__
    return _clip(f"{name}: {message}" if message else name)


def _clip(text: object) -> str:
    # Exceptions about file names hold lone surrogates, which no UTF-8 text can.
    clean = str(text).encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= MAX_TEXT else clean[: MAX_TEXT - 1] + "…"


def invoker(handler: Handler, concurrency: int) -> Invoke:
    """Return how to call ``handler``: awaited in the event loop, or, for a plain function, in a thread of a pool.

    A thread cannot be stopped. When its delivery is cancelled at the drain deadline, the thread goes on by itself;
    whatever it does then is not settled by us.
    """
    if is_async(handler):
        return handler
    threads = CapacityLimiter(concurrency)

    async def call_in_thread(job: Job) -> object:
        answer = await to_thread.run_sync(handler, job, abandon_on_cancel=True, limiter=threads)
        # A plain function may return a coroutine (a lambda around an async def): nothing has run yet then.
        return await answer if inspect.isawaitable(answer) else answer

    return call_in_thread


def is_async(handler: Handler) -> bool:
    """Tell whether calling ``handler`` returns a coroutine, also for objects with an async ``__call__``."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - its kind matters, not whether it can be called
    )
