"""`run_handler`: one handler runs one made-up job, and returns its fate. No server is started here."""

import asyncio
import threading
from datetime import timedelta

import anyio
import pytest
from anyio import from_thread
from redis.exceptions import ConnectionError as RedisConnectionError

from workers import ConfigurationError, Job, NewJob, Reject, Retry, Worker
from workers.protocol.errors import InvalidJobError
from workers.testing import (
    Acknowledged,
    Failed,
    Rejected,
    Result,
    Retried,
    TimedOut,
    run_handler,
    run_handler_async,
)


async def handle(job: Job) -> object:
    """Do what the job's field ``do`` says."""
    match job.fields[b"do"]:
        case b"retry":
            raise Retry("the bank is closed")
        case b"retry later":
            raise Retry("the bank is closed", delay=timedelta(seconds=90), counts=False)
        case b"return a retry":
            return Retry("returned", delay=0)
        case b"reject":
            raise Reject("malformed") from ValueError("no number")
        case b"reject for no reason":
            return Reject()
        case b"fail":
            raise KeyError("order")
        case b"leak a cancellation":
            raise asyncio.CancelledError
        case b"hang":
            await anyio.sleep_forever()
        case b"hang, and fail when cancelled":
            try:
                await anyio.sleep_forever()
            finally:
                raise RuntimeError("interrupted")
        case b"hang, and finish when cancelled":
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                return None
    return None


def handle_in_thread(job: Job) -> object:
    return from_thread.run(handle, job)


VERDICTS = [
    ("nothing", Acknowledged()),
    ("retry", Retried("the bank is closed")),
    ("retry later", Retried("the bank is closed", delay=90, counts=False)),
    ("return a retry", Retried("returned", delay=0)),
    ("reject", Rejected("malformed", error="ValueError: no number")),
    ("reject for no reason", Rejected()),
    ("fail", Failed("KeyError: 'order'")),
    ("leak a cancellation", Failed("CancelledError")),
]


@pytest.mark.parametrize("handler", [handle, handle_in_thread], ids=["async", "plain"])
@pytest.mark.parametrize(("do", "result"), VERDICTS)
def test_every_verdict_has_its_result(handler: object, do: str, result: Result) -> None:
    assert callable(handler)
    assert run_handler(handler, {"do": do}) == result


@pytest.mark.parametrize(
    ("do", "result"),
    [
        ("retry", Retried("the bank is closed", dead_letter=True)),
        ("retry later", Retried("the bank is closed", delay=90, counts=False)),
        ("fail", Failed("KeyError: 'order'", dead_letter=True)),
    ],
)
def test_the_last_delivery_makes_a_dead_letter_of_what_counts(do: str, result: Result) -> None:
    assert run_handler(handle, {"do": do}, deliveries=3) == result
    assert run_handler(handle, {"do": do}, deliveries=5, max_deliveries=5) == result


def test_a_failure_has_the_exception_itself_with_the_place_where_it_was_raised() -> None:
    result = run_handler(handle, {"do": "fail"})
    assert isinstance(result, Failed)
    assert isinstance(result.exception, KeyError)
    with pytest.raises(KeyError, match="order"):
        raise result.exception


@pytest.mark.parametrize("do", ["hang", "hang, and fail when cancelled", "hang, and finish when cancelled"])
def test_a_handler_that_runs_longer_than_it_may_is_cancelled(do: str) -> None:
    assert run_handler(handle, NewJob({"do": do}, timeout=0.05)) == TimedOut(0.05)


def test_a_plain_handler_that_runs_longer_than_it_may_is_left_to_itself() -> None:
    gate = threading.Event()
    try:
        result = run_handler(lambda _job: gate.wait(60), NewJob({}, timeout=0.05), deliveries=3)
    finally:
        gate.set()
    assert result == TimedOut(0.05, dead_letter=True)


def test_the_job_is_what_a_producer_would_have_enqueued() -> None:
    seen: list[object] = []

    def look(job: Job) -> None:
        seen.extend([job.id, job.pairs, job.deliveries, job.generation, job.stream, job.timeout])

    new = NewJob([("order", 17), ("order", "18"), (b"raw", b"\xff")], job_id="o-17", timeout=30)
    assert run_handler(look, new, deliveries=2) == Acknowledged()
    fields = [(b"order", b"17"), (b"order", b"18"), (b"raw", b"\xff")]
    assert seen == ["o-17", fields, 2, 0, "jobs", timedelta(seconds=30)]


def test_extend_answers_or_raises_what_it_is_told_to() -> None:
    answers: list[bool] = []

    async def ask(job: Job) -> None:
        answers.append(await job.extend())

    def ask_in_thread(job: Job) -> None:
        answers.append(from_thread.run(job.extend))

    for extend in (True, False):
        assert run_handler(ask, extend=extend) == run_handler(ask_in_thread, extend=extend) == Acknowledged()
    assert answers == [True, True, False, False]
    assert run_handler(ask, extend=RedisConnectionError("gone")) == Failed("ConnectionError: gone")


def test_a_workers_handler_runs_with_the_workers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REAPER_TIMEOUT", "3600")
    monkeypatch.setenv("REAPER_MAX_DELIVERIES", "9")
    monkeypatch.setenv("REAPER_TYPO", "1")
    worker = Worker("orders", "billing", timeout=0.05, max_deliveries=2)
    streams: list[str] = []

    @worker.handler
    async def hang(job: Job) -> None:
        streams.append(job.stream)
        await anyio.sleep_forever()

    assert run_handler(worker, deliveries=2) == TimedOut(0.05, dead_letter=True)
    assert streams == ["orders"]


def test_a_worker_needs_a_handler_and_settings_that_work_but_neither_stream_nor_group() -> None:
    worker = Worker()
    with pytest.raises(ConfigurationError, match=r"Decorate a function with @worker\.handler"):
        run_handler(worker)
    worker.handler(handle)
    assert run_handler(worker, {"do": "reject"}) == Rejected("malformed", "ValueError: no number")
    broken = Worker(concurrency=0)
    broken.handler(handle)
    with pytest.raises(ConfigurationError, match=r"^setting 'concurrency' is invalid"):
        run_handler(broken)


def test_what_could_not_be_enqueued_or_delivered_is_rejected() -> None:
    with pytest.raises(InvalidJobError, match=r"names that begin with 'reaper\.' are reserved"):
        run_handler(handle, {"reaper.job": "1"})
    with pytest.raises(ValueError, match="has no delivery 4: max_deliveries is 3"):
        run_handler(handle, {"do": "nothing"}, deliveries=4)


@pytest.mark.anyio
async def test_in_an_event_loop_it_is_awaited() -> None:
    assert await run_handler_async(handle, {"do": "fail"}) == Failed("KeyError: 'order'")
    with pytest.raises(RuntimeError, match="Already running asyncio"):
        run_handler(handle, {"do": "nothing"})


@pytest.mark.anyio
async def test_whoever_cancels_the_test_cancels_the_handler() -> None:
    ended: list[str] = []

    async def hang(_job: Job) -> None:
        scope.cancel()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")

    with anyio.CancelScope() as scope:
        await run_handler_async(hang)
    assert scope.cancelled_caught
    assert ended == ["cancelled"]
