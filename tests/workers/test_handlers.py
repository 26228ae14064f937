"""The kinds of handlers, and the outcomes of their answers. The settlement of jobs of these handlers is at the end."""

import asyncio
import contextlib
import functools
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import anyio
import pytest
from anyio import from_thread
from redis.asyncio import Redis

from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import (
    enqueue,
    make_job,
    make_worker,
    number_of,
    pending_of,
    running,
    wait_for_settled,
)
from workers import ConfigurationError, Job, Reject, Retry, Worker
from workers.loop.execution import ACKED, REASON_MAX_DELIVERIES, execute
from workers.loop.handlers import Handler, checked, invoker
from workers.protocol.calls.moves import Outcome, Verdict
from workers.testing import run_handler

pytestmark = pytest.mark.anyio


async def succeed(_job: Job) -> None:
    """Return no value."""


def generate(_job: Job) -> Iterator[int]:
    yield 1


async def generate_async(_job: Job) -> AsyncIterator[int]:
    yield 1


class Generating:
    def __call__(self, _job: Job) -> Iterator[int]:
        yield 1

    def method(self, _job: Job) -> Iterator[int]:
        yield 1


class Plain:
    def __call__(self, _job: Job) -> None:
        """Return at once."""


def logged(function: Handler) -> Handler:
    @functools.wraps(function)
    def call(job: Job) -> object:
        return function(job)

    return call


def consumed(function: Callable[[Job], Iterator[int]]) -> Handler:
    @functools.wraps(function)
    async def call(job: Job) -> None:
        for _ in function(job):
            await anyio.lowlevel.checkpoint()

    return call


GENERATORS: dict[str, Any] = {
    "function": generate,
    "async function": generate_async,
    "partial of a partial": functools.partial(functools.partial(generate_async)),
    "callable object": Generating(),
    "method": Generating().method,
    "decorated": logged(generate),
    "context manager": contextlib.asynccontextmanager(generate_async),
    "cached": functools.lru_cache(generate),
}


@pytest.mark.parametrize("handler", GENERATORS.values(), ids=GENERATORS)
def test_a_generator_function_is_rejected_when_it_is_registered(handler: Handler) -> None:
    with pytest.raises(ConfigurationError, match="it is a generator function"):
        Worker("orders", "billing").handler(handler)
    with pytest.raises(ConfigurationError, match="it is a generator function"):
        run_handler(handler)


def test_handlers_that_can_do_no_work_are_rejected_when_registered() -> None:
    worker, number = Worker("orders", "billing"), cast("Handler", 7)
    with pytest.raises(ConfigurationError, match="the class Plain cannot be a handler"):
        worker.handler(Plain)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="an instance of int cannot be a handler: it cannot be called"):
        worker.handler(number)


@pytest.mark.parametrize(
    "handler",
    [succeed, logged(succeed), functools.partial(succeed), Plain(), functools.partial(print, "x"), [].append,
     consumed(generate)],
)  # fmt: skip
async def test_everything_else_is_taken_and_run(handler: Handler) -> None:
    assert checked(handler) is handler
    assert await execute(invoker(handler, 1), make_job()) == ACKED


# ---- results


def async_handler(answer: Callable[[Job], object]) -> Handler:
    async def handle(job: Job) -> object:
        return answer(job)

    return handle


def plain_handler(answer: Callable[[Job], object]) -> Handler:
    def handle(job: Job) -> object:
        return from_thread.run_sync(answer, job)  # made in the loop, because a thread has none

    return handle


both_paths = pytest.mark.parametrize("path", [async_handler, plain_handler], ids=["async", "plain"])


async def run(handler: Handler) -> Verdict:
    return replace(await execute(invoker(handler, 2), make_job()), traceback="")


class Work:
    """Counts what has really run."""

    def __init__(self) -> None:
        self.ran = 0

    async def coroutine(self, _job: Job) -> None:
        await anyio.lowlevel.checkpoint()
        self.ran += 1

    def task(self, job: Job) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(self.coroutine(job))

    def of_a_pool(self, job: Job) -> "Future[None]":
        future: Future[None] = Future()
        task = self.task(job)
        task.add_done_callback(lambda _: future.set_result(None))
        return future

    def awaitable(self, job: Job) -> object:
        work = self

        class Awaitable:
            def __await__(self) -> Generator[Any, Any, None]:
                return work.coroutine(job).__await__()

        return Awaitable()

    def of_an_awaitable(self, job: Job) -> object:
        async def call() -> object:
            return self.coroutine(job)

        return call()


@both_paths
@pytest.mark.parametrize("kind", ["coroutine", "task", "of_a_pool", "awaitable", "of_an_awaitable"])
async def test_awaitable_answers_are_awaited(path: Callable[..., Handler], kind: str) -> None:
    work = Work()

    assert await run(path(getattr(work, kind))) == ACKED
    assert work.ran == 1


async def test_what_is_raised_by_what_was_returned_is_the_verdict() -> None:
    async def fail(_job: Job) -> None:
        raise Reject("malformed")

    assert await run(plain_handler(fail)) == Verdict(Outcome.REJECT, "malformed")


async def test_a_pool_is_waited_for_and_its_failure_told() -> None:
    with ThreadPoolExecutor() as pool:
        verdict = await run(lambda _job: pool.submit(int, "x"))
    assert (verdict.outcome, verdict.exception) == (Outcome.NACK, "ValueError")


class Pool:
    """Comes to itself, as connection pools do."""

    def __await__(self) -> Generator[Any, Any, "Pool"]:
        yield from asyncio.sleep(0).__await__()
        return self


@pytest.mark.parametrize("answer", [None, 7, False, Pool()])
async def test_a_handler_that_returns_acknowledges_whatever_it_returns(answer: object) -> None:
    assert await run(async_handler(lambda _job: answer)) == ACKED


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (generate, "the handler returned a generator, which has not run. Iterate over it in the handler."),
        (generate_async, "the handler returned a generator, which has not run. Iterate over it in the handler."),
        (lambda _: Reject, "the handler returned the class Reject. Raise or return an instance."),
    ],
)
@both_paths
async def test_a_generator_or_a_class_that_is_returned_is_a_failure_that_says_why(
    path: Callable[..., Handler], answer: Callable[[Job], object], error: str
) -> None:
    expected = Verdict(Outcome.NACK, REASON_MAX_DELIVERIES, f"UnusableAnswerError: {error}")
    assert replace(await run(path(answer)), exception="") == replace(expected, exception="")


# ---- exceptions


class PanicException(BaseException):
    """As extensions written in Rust raise it."""


class Unreadable(Retry):
    """Has forgotten to make itself a retry."""

    def __init__(self) -> None:
        """Stay silent."""


class PanickingError(Exception):
    def __str__(self) -> str:
        raise PanicException("in the message, too")


def deep_group() -> BaseException:
    """Return a group in a group, and so on, deeper than any recursion can go."""
    group: Exception = ValueError("innermost")
    for _ in range(3 * sys.getrecursionlimit()):
        group = ExceptionGroup("outer", [group])
    return group


ENDS: list[BaseException] = [
    PanicException("index out of bounds"),
    GeneratorExit(),
    asyncio.CancelledError(),
    StopIteration(),
    StopAsyncIteration(),
    BaseExceptionGroup("many", [PanicException(), asyncio.CancelledError()]),
    Unreadable(),
    PanickingError(),
    deep_group(),
]


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
async def test_whatever_is_raised_in_a_thread_is_a_failure(error: BaseException) -> None:
    def handle(_job: Job) -> None:
        raise error

    verdict = await run(handle)
    assert (verdict.outcome, bool(verdict.error), bool(verdict.exception)) == (Outcome.NACK, True, True)


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
@pytest.mark.parametrize("grouped", [False, True], ids=["bare", "in a group"])
async def test_an_end_of_the_process_goes_through(end: BaseException, grouped: bool) -> None:
    async def handle(_job: Job) -> None:
        raise BaseExceptionGroup("tasks", [PanicException(), end]) if grouped else end

    with pytest.raises(type(end)) as caught:
        await run(handle)
    assert caught.value is end


async def test_a_coroutine_that_is_thrown_away_ends_without_a_verdict() -> None:
    verdicts: list[Verdict] = []

    async def hang(_job: Job) -> None:
        await asyncio.Future[None]()

    async def note() -> None:
        verdicts.append(await execute(invoker(hang, 1), make_job()))

    coroutine = note()
    coroutine.send(None)
    coroutine.close()
    assert verdicts == []


# ---- the same in a worker


def cancel_this() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def test_a_worker_outlives_all_exceptions(server: RedisServer, client: Redis) -> None:
    done: list[int] = []

    async def handle(job: Job) -> None:
        n = number_of(job)
        if n < len(ENDS):
            raise ENDS[n]
        if n == len(ENDS):
            cancel_this()
        await anyio.lowlevel.checkpoint()
        done.append(n)

    await enqueue(client, *range(len(ENDS) + 3))
    worker = make_worker(server.url, handle, max_deliveries=1, concurrency=1)
    async with running(worker):
        await wait_for_settled(worker, len(ENDS) + 3)

    assert done == [len(ENDS) + 1, len(ENDS) + 2]
    assert (worker.counts.acked, worker.counts.dead_lettered) == (2, len(ENDS) + 1)
    assert await pending_of(client) == []


async def open_scope() -> AsyncIterator[None]:
    with anyio.move_on_after(0):
        yield
        yield


async def leave_cancelled(_job: Job) -> None:
    cancel_this()


async def fail_cancelled(_job: Job) -> None:
    cancel_this()
    raise ValueError("and cancelled")


async def cancel_soon(_job: Job) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)


async def leave_scope_open(_job: Job) -> None:
    opened = open_scope()
    KEPT.append(opened)  # or else it is closed by another task, which says so
    async for _ in opened:
        break


async def leave_scope_entered(_job: Job) -> None:
    anyio.CancelScope().__enter__()


KEPT: list[object] = []
LEAVING: list[tuple[Handler, int]] = [
    (leave_cancelled, 1),
    (fail_cancelled, 0),
    (cancel_soon, 1),
    (leave_scope_open, 1),
    (leave_scope_entered, 1),
]
"""What a handler may leave behind in the task that it runs in, and whether it has done its work."""


@pytest.mark.parametrize(("leave", "done"), LEAVING, ids=[handler.__name__ for handler, _ in LEAVING])
async def test_a_worker_outlives_leftovers(leave: Handler, done: int, server: RedisServer, client: Redis) -> None:
    async def handle(job: Job) -> None:
        if number_of(job) == 0:
            await leave(job)
        elif number_of(job) == 2:
            await anyio.lowlevel.checkpoint()

    worker = make_worker(server.url, handle, max_deliveries=3, backoff_base=0, concurrency=1, recovery="embedded")
    async with running(worker):
        await enqueue(client, 0)
        await wait_for_settled(worker, 1)
        for _ in range(10):  # due timers, and their callbacks, have their turns
            await anyio.lowlevel.checkpoint()
        failed = worker.counts.nacked
        await enqueue(client, *range(1, 4))

        await wait_until(lambda: worker.counts.acked >= 3 + done, "the others are done")

    assert (failed == 0) is (done == 1)
    assert worker.counts.nacked + worker.counts.dead_lettered <= 3
