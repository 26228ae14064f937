"""What runs around handlers: what it sees, in which order and where, and that it can neither lose nor acknowledge."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from redis.asyncio import Redis

from tests.support.servers import RedisServer
from tests.workers.scene import dead_letters, enqueue, make_job, pending_of, running, wait_for_settled
from workers import ConfigurationError, Job, NewJob, Reject, Retry, Worker
from workers.testing import Acknowledged, Failed, Rejected, Result, Retried, TimedOut, run_handler

pytestmark = pytest.mark.anyio

Kind = Callable[[Worker, Callable[[], object]], None]


def is_async(worker: Worker, act: Callable[[], object]) -> None:
    """Give the worker an async handler that does ``act``."""

    @worker.handler
    async def handle(_job: Job) -> object:
        return act()


def is_plain(worker: Worker, act: Callable[[], object]) -> None:
    @worker.handler
    def handle(_job: Job) -> object:
        return act()


def is_plain_and_returns_a_coroutine(worker: Worker, act: Callable[[], object]) -> None:
    async def run() -> object:
        return act()

    @worker.handler
    def handle(_job: Job) -> object:
        return run()


def is_plain_and_returns_a_future(worker: Worker, act: Callable[[], object]) -> None:
    @worker.handler
    def handle(_job: Job) -> object:
        future: Future[object] = Future()
        try:
            future.set_result(act())
        except Exception as error:  # noqa: BLE001 - as a pool does
            future.set_exception(error)
        return future


KINDS = [is_async, is_plain, is_plain_and_returns_a_coroutine, is_plain_and_returns_a_future]


def fail() -> None:
    raise RuntimeError("no")


def retry() -> None:
    raise Retry("later", delay=9)


def reject() -> None:
    raise Reject("malformed") from ValueError("x")


def returned_retry() -> Retry:
    return Retry("later", delay=9)


def return_class() -> type[Reject]:
    return Reject


def note_async(worker: Worker, seen: list[str], name: str) -> None:
    """Put a function around the worker's handlers that notes what it sees."""

    @worker.around
    async def note(job: Job) -> AsyncIterator[None]:
        seen.append(f"{name} {job.id}")
        try:
            yield
        except BaseException as error:
            seen.append(f"{name} {error!r}")
            raise
        seen.append(f"{name} done")


def note_plain(worker: Worker, seen: list[str], name: str) -> None:
    @worker.around
    def note(job: Job) -> Iterator[None]:
        seen.append(f"{name} {job.id}")
        try:
            yield
        except BaseException as error:
            seen.append(f"{name} {error!r}")
            raise
        seen.append(f"{name} done")


JOB = NewJob({}, job_id="j")
NOTES = [note_async, note_plain]


# ---- what it sees


@pytest.mark.parametrize(
    ("act", "sees", "result"),
    [
        (lambda: None, "done", Acknowledged()),
        (lambda: "an answer", "done", Acknowledged()),
        (fail, "RuntimeError('no')", Failed("RuntimeError: no")),
        (retry, "Retry('later')", Retried("later", delay=9)),
        (returned_retry, "Retry('later')", Retried("later", delay=9)),
        (reject, "Reject('malformed')", Rejected("malformed", "ValueError: x")),
        (return_class, "Reject('rejected')", Rejected("rejected")),
    ],
)
@pytest.mark.parametrize("note", NOTES)
@pytest.mark.parametrize("kind", KINDS)
def test_it_sees_the_job_and_how_its_handler_ends(
    kind: Kind, note: Callable[..., None], act: Callable[[], object], sees: str, result: Result
) -> None:
    worker, seen = Worker(), list[str]()
    note(worker, seen, "around")
    kind(worker, act)
    assert run_handler(worker, JOB) == result
    assert seen == ["around j", f"around {sees}"]


@pytest.mark.parametrize("note", NOTES)
def test_a_generator_that_is_returned_is_a_failure_that_it_sees(note: Callable[..., None]) -> None:
    worker, seen = Worker(), list[str]()
    note(worker, seen, "around")
    is_async(worker, lambda: (n for n in range(3)))
    assert isinstance(run_handler(worker, JOB), Failed)
    assert seen[1].startswith("around UnusableAnswerError(")


def test_the_first_is_the_outermost_and_async_ones_are_outside_of_plain_ones() -> None:
    for kind in KINDS:
        worker, seen = Worker(), list[str]()
        note_plain(worker, seen, "plain 1")
        note_async(worker, seen, "async 1")
        note_plain(worker, seen, "plain 2")
        note_async(worker, seen, "async 2")
        kind(worker, partial(seen.append, "handler"))
        assert run_handler(worker, JOB) == Acknowledged()
        order = ["async 1", "async 2", "plain 1", "plain 2"]
        assert seen == [f"{name} j" for name in order] + ["handler"] + [f"{name} done" for name in reversed(order)]


def test_it_goes_around_every_handler_also_those_that_were_registered_before() -> None:
    worker, seen = Worker(job_type_field="kind"), list[str]()

    @worker.handler("a")
    async def one(job: Job) -> None: ...

    @worker.handler
    def rest(job: Job) -> None: ...

    note_async(worker, seen, "around")
    for fields in ({"kind": "a"}, {"kind": "b"}):
        run_handler(worker, NewJob(fields, job_id=fields["kind"]))
    assert seen == ["around a", "around done", "around b", "around done"]


# ---- where it runs


def test_a_plain_one_runs_in_the_thread_of_a_plain_handler() -> None:
    threads = []
    worker = Worker()

    @worker.around
    def note(_job: Job) -> Iterator[None]:
        threads.append(threading.current_thread())
        yield
        threads.append(threading.current_thread())

    is_plain(worker, lambda: threads.append(threading.current_thread()))
    assert run_handler(worker) == Acknowledged()
    assert len(threads) == 3
    assert {thread is threading.main_thread() for thread in threads} == {False}
    assert len(set(threads)) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plain", [False, True])
def test_a_context_variable_that_it_sets_is_seen_by_the_handler(kind: Kind, plain: bool) -> None:
    name: ContextVar[str] = ContextVar("name", default="")
    seen, worker = [], Worker()

    @contextmanager
    def bound(value: str) -> Iterator[None]:
        token = name.set(value)
        yield
        name.reset(token)

    if plain:

        @worker.around
        def bind(job: Job) -> Iterator[None]:
            with bound(job.id):
                yield
    else:

        @worker.around
        async def bind_async(job: Job) -> AsyncIterator[None]:
            with bound(job.id):
                yield

    kind(worker, lambda: seen.append(name.get()))
    assert run_handler(worker, JOB) == Acknowledged()
    assert seen == ["j"]


# ---- what it has no say in


@pytest.mark.parametrize("act", [fail, retry, returned_retry, reject, return_class])
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_that_it_swallows_decides_all_the_same(kind: Kind, plain: bool, act: Callable[[], object]) -> None:
    bare, worker = Worker(), Worker()
    if plain:

        @worker.around
        def swallow(_job: Job) -> Iterator[None]:
            with suppress(BaseException):
                yield
    else:

        @worker.around
        async def swallow_async(_job: Job) -> AsyncIterator[None]:
            with suppress(BaseException):
                yield

    kind(bare, act)
    kind(worker, act)
    result = run_handler(worker)
    assert result == run_handler(bare)
    assert result != Acknowledged()


async def before(_job: Job) -> AsyncIterator[None]:
    fail()
    yield


async def after(_job: Job) -> AsyncIterator[None]:
    yield
    fail()


async def instead(_job: Job) -> AsyncIterator[None]:
    try:
        yield
    finally:
        fail()


async def not_at_all(job: Job) -> AsyncIterator[None]:
    if job.id == "another":
        yield


async def twice(_job: Job) -> AsyncIterator[None]:
    yield
    yield


async def again(_job: Job) -> AsyncIterator[None]:
    try:
        yield
    except RuntimeError:
        yield


def before_plain(_job: Job) -> Iterator[None]:
    fail()
    yield


def after_plain(_job: Job) -> Iterator[None]:
    yield
    fail()


def not_at_all_plain(job: Job) -> Iterator[None]:
    if job.id == "another":
        yield


def twice_plain(_job: Job) -> Iterator[None]:
    yield
    yield


@pytest.mark.parametrize(
    ("around", "runs", "error"),
    [
        (before, False, "RuntimeError: no"),
        (after, True, "RuntimeError: no"),
        (instead, True, "RuntimeError: no"),
        (not_at_all, False, "RuntimeError: generator didn't yield"),
        (twice, True, "RuntimeError: generator didn't stop"),
        (before_plain, False, "RuntimeError: no"),
        (after_plain, True, "RuntimeError: no"),
        (not_at_all_plain, False, "RuntimeError: generator didn't yield"),
        (twice_plain, True, "RuntimeError: generator didn't stop"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_in_it_is_a_failure_of_the_job(kind: Kind, around: Any, runs: bool, error: str) -> None:
    ran, worker = list[int](), Worker()
    worker.around(around)
    kind(worker, lambda: ran.append(1))
    assert run_handler(worker) == Failed(error)
    assert bool(ran) is runs


def test_one_that_goes_on_after_an_error_is_a_failure() -> None:
    worker = Worker()
    worker.around(again)
    is_async(worker, fail)
    assert run_handler(worker) == Failed("RuntimeError: generator didn't stop after athrow()")


def test_it_may_turn_an_error_into_a_verdict() -> None:
    worker = Worker()

    @worker.around
    async def judge(_job: Job) -> AsyncIterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise Reject("hopeless") from error

    is_async(worker, fail)
    assert run_handler(worker) == Rejected("hopeless", "RuntimeError: no")


@pytest.mark.parametrize("swallows", [False, True])
def test_a_handler_that_runs_too_long_is_cancelled_through_it(swallows: bool) -> None:
    seen, worker = [], Worker()

    @worker.around
    async def note(_job: Job) -> AsyncIterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            seen.append("cancelled")
            if not swallows:
                raise

    @worker.handler
    async def hang(_job: Job) -> None:
        await anyio.sleep_forever()

    assert run_handler(worker, NewJob({}, timeout=0.05)) == TimedOut(0.05)
    assert seen == ["cancelled"]


def test_a_job_that_no_handler_is_for_has_nothing_around_it() -> None:
    worker, seen = Worker(job_type_field="kind"), list[str]()
    note_async(worker, seen, "around")

    @worker.handler("a")
    async def one(job: Job) -> None: ...

    assert isinstance(run_handler(worker, {"kind": "b"}), Rejected)
    assert seen == []


# ---- refused


class Session:
    def __init__(self) -> None:
        self.jobs: list[str] = []

    async def around(self, job: Job) -> AsyncIterator[None]:
        self.jobs.append(job.id)
        yield


def test_methods_and_partials_will_do() -> None:
    session, worker = Session(), Worker()
    worker.around(session.around)
    worker.around(partial(before_and_after, "x"))
    is_async(worker, lambda: None)
    assert run_handler(worker, JOB) == Acknowledged()
    assert session.jobs == ["j"]


def before_and_after(_name: str, _job: Job) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (fail, r"^fail cannot go around handlers: it is not a generator function\. Write .* with one `yield`"),
        (Session, "^Session cannot go around handlers"),
        (7, "^7 cannot go around handlers"),
        (contextmanager(after_plain), "^after_plain cannot go around handlers: it is decorated"),
        (asynccontextmanager(after), "^after cannot go around handlers: it is decorated"),
    ],
)
def test_what_cannot_go_around_a_handler_is_refused_with_a_sentence(function: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Worker().around(function)


# ---- in a worker


@pytest.mark.parametrize("kind", [is_async, is_plain])
async def test_in_a_worker_nothing_is_acknowledged_that_has_failed_around_its_handler(
    server: RedisServer, client: Redis, kind: Kind
) -> None:
    worker, seen = Worker("orders", "billing", redis_url=server.url, backoff_base=0, max_deliveries=2), list[int]()

    @worker.around
    async def commit(job: Job) -> AsyncIterator[None]:
        yield
        seen.append(job.deliveries)
        if job.text("n") == "1":
            raise RuntimeError("not committed")

    kind(worker, lambda: None)
    await enqueue(client, 0, 1)
    async with running(worker):
        await wait_for_settled(worker, 3)

    assert sorted(seen) == [1, 1, 2]
    assert (worker.counts.acked, worker.counts.nacked, worker.counts.dead_lettered) == (1, 1, 1)
    assert len(await dead_letters(client)) == 1
    assert await pending_of(client) == []


async def test_when_a_worker_is_told_to_end_at_once_it_is_left_and_its_job_stays_pending(
    server: RedisServer, client: Redis
) -> None:
    worker, left, begun = Worker("orders", "billing", redis_url=server.url), list[str](), anyio.Event()

    @worker.around
    async def swallow(job: Job) -> AsyncIterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            left.append(job.id)

    @worker.handler
    async def hang(_job: Job) -> None:
        begun.set()
        await anyio.sleep_forever()

    [job_id] = await enqueue(client, 1)
    async with running(worker):
        await begun.wait()
        worker.stop(now=True)

    assert left == [job_id]
    assert (worker.counts.acked, worker.counts.abandoned) == (0, 1)


async def test_at_the_drain_deadline_it_is_left_and_its_job_handed_back(server: RedisServer, client: Redis) -> None:
    worker = Worker("orders", "billing", redis_url=server.url, drain_timeout=0)
    left, begun = list[str](), anyio.Event()

    @worker.around
    async def clean_up(job: Job) -> AsyncIterator[None]:
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                left.append(job.id)

    @worker.handler
    async def hang(_job: Job) -> None:
        begun.set()
        await anyio.sleep_forever()

    [job_id] = await enqueue(client, 1)
    async with running(worker):
        await begun.wait()

    assert left == [job_id]
    assert (worker.counts.handed_back, worker.counts.nacked, worker.counts.acked) == (1, 0, 0)


async def test_without_one_a_handler_is_called_as_it_is() -> None:
    worker = Worker("orders", "billing")

    @worker.handler
    async def handle(job: Job) -> str:
        return job.id

    invoke = worker.handlers.calls(worker.settings).invoke
    assert invoke is handle
    assert await invoke(make_job()) == "1700000000000-0"
