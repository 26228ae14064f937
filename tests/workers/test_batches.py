"""Batch handlers: a list of jobs, and one outcome for each."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from redis.asyncio import Redis

from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.extending import extensions
from tests.workers.scene import (
    KEYS,
    add,
    dead_letters,
    enqueue,
    event_names,
    field_of,
    number_of,
    pending_of,
    process_of,
    running,
    wait_for_settled,
)
from workers import ConfigurationError, Job, Reject, Retry, Worker
from workers.testing import run_handler

pytestmark = pytest.mark.anyio

LONG_S = 10.0
"""A wait that no test can live to see."""


def batch_worker(url: str, handler: Callable[[list[Job]], Any], *, size: int, wait: float, **settings: Any) -> Worker:
    worker = Worker(KEYS.stream, KEYS.group, redis_url=url, **{"backoff_base": 0, **settings})
    worker.batch_handler(size=size, wait=wait)(handler)
    return worker


def numbers_of(jobs: list[Job]) -> list[int]:
    return [number_of(job) for job in jobs]


class Noting:
    """A handler that notes its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    async def __call__(self, jobs: list[Job]) -> None:
        self.batches.append(numbers_of(jobs))


# ---- which jobs come together


async def test_a_batch_has_size_jobs_in_their_order_and_the_rest_waits(server: RedisServer, client: Redis) -> None:
    handler = Noting()
    await enqueue(client, *range(10))
    async with running(batch_worker(server.url, handler, size=4, wait=LONG_S)) as worker:
        await wait_for_settled(worker, 8)
        assert handler.batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
        await enqueue(client, 10, 11)
        await wait_for_settled(worker, 12)
    assert handler.batches[2:] == [[8, 9, 10, 11]]
    assert worker.counts.acked == 12
    assert await pending_of(client) == []


@pytest.mark.parametrize(
    ("wait", "concurrency", "batches"),
    [(0.01, 64, [[0, 1, 2, 3, 4, 5]]), (LONG_S, 3, [[0, 1, 2], [3, 4, 5]])],
    ids=["some time after its first job", "when no slot is free"],
)
async def test_a_batch_is_complete_earlier(
    server: RedisServer, client: Redis, wait: float, concurrency: int, batches: list[list[int]]
) -> None:
    handler = Noting()
    await enqueue(client, *range(6))
    async with running(batch_worker(server.url, handler, size=100, wait=wait, concurrency=concurrency)) as worker:
        await wait_for_settled(worker, 6)
    assert handler.batches == batches


async def test_the_list_of_jobs_belongs_to_the_handler(server: RedisServer, client: Redis) -> None:
    async def use_up(jobs: list[Job]) -> list[None]:
        left = len(jobs)
        while jobs:
            jobs.pop()
        return [None] * left

    async def empty(jobs: list[Job]) -> None:
        jobs.clear()

    for handler in (use_up, empty):
        await enqueue(client, 1, 2, 3)
        async with running(batch_worker(server.url, handler, size=3, wait=LONG_S)) as worker:
            await wait_for_settled(worker, 3)
        assert worker.counts.acked == 3


async def test_types_are_gathered_apart_and_other_jobs_do_not_wait(server: RedisServer, client: Redis) -> None:
    ran: list[object] = []
    worker = Worker(KEYS.stream, KEYS.group, redis_url=server.url, job_type_field="type")

    @worker.batch_handler("mail", size=2, wait=LONG_S)
    async def mail(jobs: list[Job]) -> None:
        ran.append(numbers_of(jobs))

    @worker.batch_handler("sms", size=2, wait=LONG_S)
    def sms(jobs: list[Job]) -> None:
        ran.append((threading.current_thread() is threading.main_thread(), numbers_of(jobs)))

    @worker.handler
    async def other(job: Job) -> None:
        ran.append(number_of(job))

    for n, job_type in enumerate(("mail", "sms", "page", "mail")):
        await add(client, {"n": n, "type": job_type})
    async with running(worker):
        await wait_for_settled(worker, 3)
        await add(client, {"n": 4, "type": "sms"})
        await wait_for_settled(worker, 4)

    assert ran == [2, [0, 3], (False, [1, 4])]


MARKS = (b"reaper.deliveries", b"1", b"reaper.quarantined", b"1")


async def test_quarantined_jobs_and_last_deliveries_are_batches_alone(server: RedisServer, client: Redis) -> None:
    handler = Noting()
    await enqueue(client, 1, 2)
    quarantined = await client.execute_command("XADD", KEYS.stream, "*", b"n", b"3", *MARKS)
    await client.hset(KEYS.quarantine, quarantined, "stream,,0")
    await client.execute_command("XADD", KEYS.stream, "*", b"n", b"4", b"reaper.deliveries", b"2")
    async with running(batch_worker(server.url, handler, size=4, wait=0.01, max_deliveries=3)) as worker:
        await wait_for_settled(worker, 4)
    assert sorted(handler.batches) == [[1, 2], [3], [4]]


async def test_w3_a_batch_waits_for_a_quarantined_job(server: RedisServer, client: Redis) -> None:
    started: list[list[int]] = []
    may_end = anyio.Event()

    async def handle(jobs: list[Job]) -> None:
        started.append(numbers_of(jobs))
        if numbers_of(jobs) == [1]:
            await may_end.wait()

    async with client.pipeline(transaction=True) as together:
        together.execute_command("XADD", KEYS.stream, "*", b"n", b"1", *MARKS)
        together.xadd(KEYS.stream, {"n": 2})
        together.xadd(KEYS.stream, {"n": 3})
        await together.execute()
    async with running(batch_worker(server.url, handle, size=2, wait=LONG_S)) as worker:
        await wait_until(lambda: started, "the quarantined job runs")
        for _ in range(20):
            await client.ping()
        assert (started, worker.counts.read) == ([[1]], 3)
        may_end.set()
        await wait_for_settled(worker, 3)

    assert started == [[1], [2, 3]]


# ---- outcomes


async def test_each_job_has_its_own_outcome(server: RedisServer, client: Redis) -> None:
    batches: list[list[tuple[int, int]]] = []

    async def handle(jobs: list[Job]) -> list[object]:
        batches.append([(number_of(job), job.deliveries) for job in jobs])
        answers = [None, Retry("later", delay=0), Reject("never"), ValueError("broken")]
        return [answers[number_of(job)] if job.deliveries == 1 else None for job in jobs]

    await enqueue(client, *range(4))
    async with running(batch_worker(server.url, handle, size=4, wait=0.01)) as worker:
        await wait_for_settled(worker, 6)

    assert batches[0] == [(n, 1) for n in range(4)]
    assert sorted(one for batch in batches[1:] for one in batch) == [(1, 2), (3, 2)]
    assert (worker.counts.acked, worker.counts.nacked, worker.counts.dead_lettered) == (3, 2, 1)
    [(_, letter)] = await dead_letters(client)
    assert field_of(letter, b"reaper.dead.reason") == b"never"


class Shorter(list[None]):
    """A list of two that yields one."""

    def __iter__(self) -> Iterator[None]:
        return iter([None])


@pytest.mark.parametrize("answer", [[None], "ab", {1: None, 2: None}, Shorter([None, None])])
async def test_a_wrong_number_of_outcomes_acknowledges_none(server: RedisServer, client: Redis, answer: object) -> None:
    async def handle(_jobs: list[Job]) -> object:
        return answer

    await enqueue(client, 1, 2)
    async with running(batch_worker(server.url, handle, size=2, wait=LONG_S, max_deliveries=1)) as worker:
        await wait_for_settled(worker, 2)

    assert (worker.counts.acked, worker.counts.dead_lettered) == (0, 2)
    for _, letter in await dead_letters(client):
        assert b"for 2 jobs" in field_of(letter, b"reaper.dead.error")


@pytest.mark.parametrize("awaits", [True, False])
async def test_an_exception_fails_all_jobs_of_a_batch(server: RedisServer, client: Redis, *, awaits: bool) -> None:
    def fail(jobs: list[Job]) -> None:
        if len(jobs) == 2:
            raise OSError("disk full")

    async def fail_later(jobs: list[Job]) -> None:
        await checkpoint()
        fail(jobs)

    handler = fail_later if awaits else fail
    await enqueue(client, 1, 2)
    async with running(batch_worker(server.url, handler, size=2, wait=LONG_S, max_deliveries=2)) as worker:
        await wait_for_settled(worker, 4)  # each of them is alone in its last delivery

    assert (worker.counts.nacked, worker.counts.acked) == (2, 2)
    assert await event_names(client) == ["nacked", "nacked", "acked", "acked"]


# ---- stopping


async def test_w1_a_job_over_its_timeout_stops_its_batch_and_fails_alone(server: RedisServer, client: Redis) -> None:
    ran: list[list[int]] = []

    async def handle(jobs: list[Job]) -> None:
        ran.append(numbers_of(jobs))
        if len(ran) == 1:
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                return  # as if all were done

    await client.execute_command("XADD", KEYS.stream, "*", b"n", b"1", b"reaper.timeout_ms", b"50")
    await enqueue(client, 2)
    async with running(batch_worker(server.url, handle, size=2, wait=0.5)) as worker:
        await wait_for_settled(worker, 3)
        await wait_until(lambda: worker.counts.acked == 2, "both have run again")

    assert ran[0] == [1, 2]
    assert sorted(number for batch in ran[1:] for number in batch) == [1, 2]
    assert (worker.counts.timed_out, worker.counts.nacked, worker.counts.handed_back) == (1, 1, 1)
    assert sorted(await event_names(client)) == ["acked", "acked", "handed_back", "nacked"]


async def test_a_job_that_is_recovered_elsewhere_stops_its_batch(server: RedisServer, client: Redis) -> None:
    has_begun, has_stopped = anyio.Event(), anyio.Event()

    async def handle(_jobs: list[Job]) -> None:
        if not has_begun.is_set():
            has_begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                has_stopped.set()

    first, _ = await enqueue(client, 1, 2)
    async with running(batch_worker(server.url, handle, size=2, wait=0.01)) as worker:
        await has_begun.wait()
        held = {one.entry_id: one for one in process_of(worker).in_hand()}
        await client.xclaim(KEYS.stream, KEYS.group, "other", 0, [first])
        assert not await held[first].extend()
        held[first].lose()  # the reaction of the heartbeat to this answer
        await has_stopped.wait()
        await wait_until(lambda: worker.counts.acked == 1, "the other job has run again")

    assert worker.counts.handed_back == 1
    assert [(entry_id, consumer) for entry_id, consumer, _ in await pending_of(client)] == [(first, "other")]


@pytest.mark.parametrize("begins", [True, False])
async def test_a_batch_goes_back_to_the_group_at_the_end(server: RedisServer, client: Redis, *, begins: bool) -> None:
    has_begun = anyio.Event()

    async def handle(_jobs: list[Job]) -> None:
        has_begun.set()
        await anyio.sleep_forever()

    entries = await enqueue(client, 1, 2)
    worker = batch_worker(server.url, handle, size=2 if begins else 3, wait=LONG_S, drain_timeout=0)
    async with running(worker):
        await wait_until(lambda: worker.counts.read == 2, "both are read")
        if begins:
            await has_begun.wait()

    assert has_begun.is_set() is begins
    assert (worker.counts.handed_back, worker.counts.abandoned) == (2, 0)
    assert await pending_of(client) == []
    again: Any = await client.xrange(KEYS.stream)
    assert [field_of(flat, b"reaper.job").decode() for _, flat in again] == entries


async def test_heartbeats_extend_each_delivery_that_waits_for_its_batch(server: RedisServer, client: Redis) -> None:
    entries = await enqueue(client, 1, 2)
    async with running(batch_worker(server.url, Noting(), size=3, wait=LONG_S, visibility_timeout=1)) as worker:
        await wait_until(lambda: {*extensions()} == {*entries}, "both are extended")
        await enqueue(client, 3)
        await wait_for_settled(worker, 3)
    assert worker.counts.acked == 3


# ---- registering


def test_batch_handlers_that_cannot_be(server: RedisServer) -> None:
    worker = Worker(KEYS.stream, KEYS.group, redis_url=server.url)

    async def handle(_jobs: list[Job]) -> None:
        """Acknowledge."""

    async def generate(_jobs: list[Job]) -> Any:
        yield

    for wrong in ({"size": 0}, {"size": 10_001}, {"wait": -1}, {"wait": 11}):
        with pytest.raises(ConfigurationError, match="invalid batch handler"):
            worker.batch_handler(**wrong)
    with pytest.raises(ConfigurationError, match="yield"):
        worker.batch_handler()(generate)
    worker.batch_handler()(handle)
    with pytest.raises(ConfigurationError, match=r"already has a handler for every job, .*handle"):
        worker.handler(handle)  # type: ignore[type-var]


def test_the_handler_kit_runs_a_batch_of_one() -> None:
    worker = Worker()

    @worker.batch_handler()
    async def handle(jobs: list[Job]) -> list[object]:
        return [Reject(job.text("why")) for job in jobs]

    assert run_handler(worker, {"why": "too old"}).reason == "too old"  # type: ignore[union-attr]
