import asyncio
import functools
import threading
from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from tests.workers.scene import make_job
from workers import Job, Reject, Retry
from workers.backoff import AT_ONCE, Backoff
from workers.loop.execution import (
    ACKED,
    MAX_TRACEBACK_BYTES,
    REASON_MAX_DELIVERIES,
    execute,
    judge,
)
from workers.loop.handlers import Handler, invoker, is_async
from workers.protocol.calls.moves import Outcome, Verdict
from workers.runtime.user_code import MAX_TEXT, describe

pytestmark = pytest.mark.anyio


BACKOFF = Backoff(base_ms=1_000, cap_ms=60_000, uncounted_max_age_ms=3_600_000)


async def run(handler: Handler) -> Verdict:
    """Run ``handler`` on a job; return its verdict without the traceback, which has tests of its own."""
    return replace(await execute(invoker(handler, 2), make_job()), traceback="")


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


# ---- when it runs again


def raised(error: Exception) -> Exception:
    """Return ``error`` with a traceback."""
    with pytest.raises(type(error)) as caught:
        throw(error)
    return caught.value


def throw(error: Exception) -> None:
    raise error


def failed_job(failures: int, waits: int = 0, age_ms: int = 250) -> Job:
    """Return a job in its delivery number ``failures`` that is ``age_ms`` old."""
    job = make_job(
        b"reaper.deliveries",
        b"%d" % (failures - 1),
        b"reaper.waits",
        b"%d" % waits,
        b"reaper.first_ms",
        b"%d" % (1_700_000_000_250 - age_ms),
        limit=1_000,
    )
    assert (job.deliveries, job.waits) == (failures, waits)
    return job


@pytest.mark.parametrize("answer", [ValueError("no"), Retry("later")], ids=["exception", "retry"])
def test_what_fails_backs_off_by_its_deliveries(answer: Exception) -> None:
    delays = {judge(failed_job(3), answer, BACKOFF).delay_ms for _ in range(50)}
    assert max(delays) <= BACKOFF.longest_ms(3) == 4_000
    assert len(delays) > 1


def test_a_retry_that_does_not_count_backs_off_by_its_waits() -> None:
    verdicts = [judge(failed_job(2, waits=5), Retry("bank", counts=False), BACKOFF) for _ in range(50)]
    assert {verdict.outcome for verdict in verdicts} == {Outcome.RETRY}
    assert 2_000 < max(verdict.delay_ms for verdict in verdicts) <= BACKOFF.longest_ms(6) == 32_000


@pytest.mark.parametrize(("delay", "delay_ms"), [(0, 0), (1.5, 1_500), (timedelta(minutes=2), 120_000)])
@pytest.mark.parametrize("counts", [True, False])
def test_a_retry_may_say_when(delay: float | timedelta, delay_ms: int, counts: bool) -> None:
    verdict = judge(failed_job(1), Retry("later", delay=delay, counts=counts), BACKOFF)
    assert verdict == Verdict(
        Outcome.NACK if counts else Outcome.RETRY, REASON_MAX_DELIVERIES, "later", delay_ms=delay_ms
    )


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e12, timedelta(seconds=-1)])
def test_a_delay_that_is_none_is_refused_where_it_is_written(delay: float | timedelta) -> None:
    with pytest.raises(ValueError, match="delay cannot be"):
        Retry(delay=delay)


def test_the_retries_of_an_old_job_count_whatever_it_says() -> None:
    young, old = failed_job(1, age_ms=3_600_000), failed_job(1, age_ms=3_600_001)
    outcomes = [judge(job, Retry(counts=False), BACKOFF).outcome for job in (young, old)]
    assert outcomes == [Outcome.RETRY, Outcome.NACK]


# ---- tracebacks


@pytest.mark.parametrize("answer", [ValueError("no"), Retry("later"), Reject("never")])
def test_what_was_raised_keeps_its_traceback(answer: Exception) -> None:
    trace = judge(make_job(), raised(answer), AT_ONCE).traceback
    assert trace.startswith("Traceback (most recent call last)")
    assert trace.endswith(f"{answer}\n")
    assert "in throw" in trace


def test_a_long_traceback_keeps_its_end() -> None:
    trace = judge(make_job(), raised(ValueError("é" * 10_000 + " the end")), AT_ONCE).traceback
    assert len(trace.encode()) in (MAX_TRACEBACK_BYTES - 1, MAX_TRACEBACK_BYTES)
    assert trace.endswith("é the end\n")


def test_a_rejection_tells_of_the_error_behind_it() -> None:
    rejection = Reject("malformed")
    rejection.__cause__ = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    assert judge(make_job(), rejection).error.startswith("UnicodeDecodeError: 'utf-8' codec can't decode")
