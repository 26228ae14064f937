import asyncio
import functools
import threading
from collections.abc import Awaitable

import anyio
import pytest

from tests.workers.scene import make_job
from workers import Job, Reject, Retry
from workers.execution import (
    ACKED,
    MAX_TEXT,
    REASON_MAX_DELIVERIES,
    Handler,
    Outcome,
    Verdict,
    describe,
    execute,
    invoker,
    is_async,
)

pytestmark = pytest.mark.anyio


async def run(handler: Handler) -> Verdict:
    return await execute(invoker(handler, 2), make_job())


async def succeed(_job: Job) -> None:
    """Return nothing."""


@pytest.mark.parametrize("answer", [None, 7, "done", False])
async def test_a_handler_that_returns_acknowledges_whatever_it_returns(answer: object) -> None:
    async def handle(_job: Job) -> object:
        return answer

    assert await run(handle) == ACKED


async def test_an_exception_gives_the_job_back_with_its_text() -> None:
    async def handle(_job: Job) -> None:
        raise ValueError("no such customer")

    assert await run(handle) == Verdict(Outcome.NACK, REASON_MAX_DELIVERIES, "ValueError: no such customer")


async def test_retry_gives_the_job_back_with_its_reason() -> None:
    async def handle(_job: Job) -> None:
        raise Retry(reason="the bank is closed")

    assert await run(handle) == Verdict(Outcome.NACK, REASON_MAX_DELIVERIES, "the bank is closed")


async def test_reject_makes_a_dead_letter_with_its_reason() -> None:
    async def handle(_job: Job) -> None:
        raise Reject("malformed")

    assert await run(handle) == Verdict(Outcome.REJECT, "malformed")


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (Retry("later"), Verdict(Outcome.NACK, REASON_MAX_DELIVERIES, "later")),
        (Reject("never"), Verdict(Outcome.REJECT, "never")),
        (Reject(""), Verdict(Outcome.REJECT, "rejected")),
    ],
)
async def test_a_verdict_that_is_returned_counts_as_if_it_were_raised(answer: object, verdict: Verdict) -> None:
    async def handle(_job: Job) -> object:
        return answer

    assert await run(handle) == verdict


async def test_a_cancellation_that_leaks_out_of_the_handler_is_a_failure() -> None:
    async def handle(_job: Job) -> None:
        raise asyncio.CancelledError

    assert (await run(handle)).outcome is Outcome.NACK


async def test_a_cancelled_runner_has_no_verdict() -> None:
    verdicts = []

    async def handle(_job: Job) -> None:
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:

        async def run_and_note() -> None:
            verdicts.append(await run(handle))

        tasks.start_soon(run_and_note)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()

    assert verdicts == []


async def test_an_exit_goes_through() -> None:
    async def handle(_job: Job) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await run(handle)


async def test_a_plain_function_runs_in_a_thread() -> None:
    threads = []

    def handle(_job: Job) -> None:
        threads.append(threading.current_thread())

    assert await run(handle) == ACKED
    assert threads[0] is not threading.current_thread()


async def test_a_plain_function_that_raises_gives_the_job_back() -> None:
    def handle(_job: Job) -> None:
        raise KeyError("id")

    assert await run(handle) == Verdict(Outcome.NACK, REASON_MAX_DELIVERIES, "KeyError: 'id'")


async def test_a_coroutine_that_a_plain_function_returns_is_run() -> None:
    ran = []

    async def work(_job: Job) -> None:
        ran.append(True)

    def handle(job: Job) -> Awaitable[None]:
        return work(job)

    assert await run(handle) == ACKED
    assert ran == [True]


async def test_a_cancelled_runner_does_not_wait_for_its_thread() -> None:
    release, began, ended = threading.Event(), threading.Event(), threading.Event()

    def handle(_job: Job) -> None:
        began.set()
        release.wait(10)
        ended.set()

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, handle)
            await anyio.to_thread.run_sync(began.wait, 10)
            scope.cancel()

    assert not ended.is_set()
    release.set()
    assert await anyio.to_thread.run_sync(ended.wait, 10)


class CallableHandler:
    async def __call__(self, _job: Job) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (succeed, True),
        (functools.partial(succeed), True),
        (CallableHandler(), True),
        (lambda _job: None, False),
        (functools.partial(print, "x"), False),
    ],
)
def test_async_handlers_are_recognised(handler: Handler, expected: bool) -> None:
    assert is_async(handler) is expected


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("x"), "ValueError: x"),
        (ValueError(), "ValueError"),
        (UnreadableError(), "UnreadableError: (its message could not be read)"),
        (OSError("caf\udce9"), "OSError: caf\\udce9"),
    ],
)
def test_errors_are_described_in_text_that_redis_accepts(error: Exception, text: str) -> None:
    assert describe(error) == text
    assert describe(error).encode()


def test_long_errors_are_cut() -> None:
    assert len(describe(ValueError("x" * 10 * MAX_TEXT))) == MAX_TEXT
