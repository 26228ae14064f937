"""Leaving: unfinished jobs are ready again before the worker has left, and have lost no delivery."""

import asyncio
import threading
from collections.abc import Sized
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread
from redis.asyncio import Redis

from reaper.drill.history import read_events, read_state
from tests.support.servers import RedisServer
from tests.support.tiers import by_claim
from tests.support.waiting import wait_until
from tests.workers.scene import (
    KEYS,
    Holding,
    Runs,
    dead_letters,
    enqueue,
    event_names,
    field_of,
    make_worker,
    number_of,
    pending_of,
    process_of,
    running,
    wait_for_settled,
)
from workers import Job, Retry

pytestmark = pytest.mark.anyio

POLICIES = ["stream", "retry-stream"]


def has_length(items: Sized, length: int) -> bool:
    return len(items) == length


@pytest.mark.parametrize("policy", POLICIES)
async def test_queued_jobs_are_handed_back_at_once(server: RedisServer, client: Redis, policy: str) -> None:
    ran, seen = list[int](), Runs()
    go = anyio.Event()

    async def handle(job: Job) -> None:
        ran.append(number_of(job))
        worker.stop()
        await go.wait()

    await enqueue(client, *range(10))
    worker = make_worker(server.url, handle, redelivery=policy)
    async with running(worker):
        await wait_until(lambda: worker.counts.handed_back == 9, "the others are handed back while the first runs")
        assert len(set((await read_state(client, KEYS)).ready)) == 9
        assert worker.counts.acked == 0
        go.set()

    assert ran == [0]
    assert await event_names(client) == ["handed_back"] * 9 + ["acked"]
    async with running(make_worker(server.url, seen, redelivery=policy)) as successor:
        await wait_for_settled(successor, 9)
    assert sorted(seen) == [(number, 1) for number in range(1, 10)]


@pytest.mark.parametrize(
    ("policy", "reaction"), [("stream", "ends"), ("retry-stream", "ends"), ("stream", "returns"), ("stream", "fails")]
)
async def test_w1_what_runs_at_the_drain_deadline_is_cancelled_and_handed_back_however_its_handler_reacts(
    server: RedisServer, client: Redis, policy: str, reaction: str
) -> None:
    """A handler that returns may have been in the middle of its work."""
    started, ended, seen = anyio.Event(), list[int](), Runs()

    async def handle(job: Job) -> None:
        if number_of(job) == 1:
            return
        started.set()
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            ended.append(number_of(job))
            if reaction == "fails":
                raise ValueError("half a file was written") from None
            if reaction == "ends":
                raise

    _, slow = await enqueue(client, 1, 2)
    async with running(make_worker(server.url, handle, drain_timeout=0.05, redelivery=policy)) as worker:
        await started.wait()

    assert ended == [2]
    assert (await read_state(client, KEYS)).ready == (slow,)
    assert await pending_of(client) == []
    assert (worker.counts.acked, worker.counts.handed_back, worker.counts.abandoned) == (1, 1, 0)
    events = {event.event: event for event in await read_events(client, KEYS)}
    assert sorted(events) == ["acked", "handed_back"]
    handed_back = events["handed_back"]
    assert (handed_back.job, handed_back.data["consumer"], handed_back.data["delivery"]) == (slow, worker.consumer, 1)
    async with running(make_worker(server.url, seen, redelivery=policy)) as successor:
        await wait_for_settled(successor, 1)
    assert seen == [(2, 1)]


@pytest.mark.parametrize(
    ("recovery", "policy"),
    [("reaper", "retry-stream"), ("embedded", "stream"), by_claim("embedded", "in-place")],
)
async def test_a_job_that_is_interrupted_again_and_again_uses_its_deliveries_up(
    server: RedisServer, client: Redis, recovery: str, policy: str
) -> None:
    deliveries, tokens = list[int](), list[int]()

    async def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        tokens.append(job.fencing_token)
        await anyio.sleep_forever()

    await enqueue(client, 1)
    settings: dict[str, Any] = {"drain_timeout": 0, "max_deliveries": 2, "recovery": recovery, "redelivery": policy}
    for restart in range(1, 13):
        async with running(make_worker(server.url, handle, **settings)):
            await wait_until(partial(has_length, deliveries, restart), "the job runs")

    assert deliveries == [1] * 6 + [2] * 6
    assert tokens == sorted(set(tokens))
    [(_, letter)] = await dead_letters(client)
    assert field_of(letter, b"reaper.dead.reason") == b"max_deliveries"
    assert field_of(letter, b"reaper.dead.error") == b"interrupted 6 times in a row by the end of its worker"


async def test_a_job_that_never_begins_uses_no_delivery_up(server: RedisServer, client: Redis) -> None:
    seen, handed_back = [], []

    async def handle(job: Job) -> None:
        seen.append((number_of(job), job.deliveries))
        worker.stop()

    await enqueue(client, *range(6))
    for _ in range(4):
        worker = make_worker(server.url, handle, max_deliveries=2)
        async with running(worker):
            await wait_for_settled(worker, 1)
        handed_back.append(worker.counts.handed_back)

    assert handed_back == [5, 4, 3, 2]
    assert seen == [(number, 1) for number in range(4)]
    assert await client.xlen(KEYS.dead) == 0


async def test_the_job_of_a_thread_that_still_runs_is_handed_back(server: RedisServer, client: Redis) -> None:
    started, let_go = threading.Event(), threading.Event()

    def handle(_job: Job) -> None:
        started.set()
        let_go.wait(10)

    [job_id] = await enqueue(client, 1)
    async with running(make_worker(server.url, handle, drain_timeout=0)) as worker:
        await wait_until(started.is_set, "the thread runs")

    let_go.set()
    assert worker.counts.handed_back == 1
    assert (await read_state(client, KEYS)).ready == (job_id,)


async def test_the_job_of_a_handler_that_cannot_be_cancelled_is_handed_back(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.loop.slots.CANCELLED_END_S", 0.05)
    started, let_go, ended = threading.Event(), threading.Event(), anyio.Event()

    def block() -> None:
        started.set()
        let_go.wait(10)

    async def handle(_job: Job) -> None:
        try:
            await to_thread.run_sync(block)
        finally:
            ended.set()

    [job_id] = await enqueue(client, 1)
    async with running(make_worker(server.url, handle, drain_timeout=0)) as worker:
        await wait_until(started.is_set, "the thread runs")
    assert not ended.is_set()
    assert (worker.counts.handed_back, worker.counts.abandoned) == (1, 0)

    let_go.set()
    await ended.wait()
    assert (await read_state(client, KEYS)).ready == (job_id,)
    assert await event_names(client) == ["handed_back"]


async def test_a_job_that_fails_while_the_worker_drains_has_failed(server: RedisServer, client: Redis) -> None:
    async def handle(_job: Job) -> None:
        worker.stop()
        raise Retry("not yet")

    await enqueue(client, 1)
    worker = make_worker(server.url, handle)
    async with running(worker):
        await wait_for_settled(worker, 1)

    assert (worker.counts.nacked, worker.counts.handed_back) == (1, 0)


async def test_stopping_at_once_ends_the_drain_and_leaves_what_runs_pending(server: RedisServer, client: Redis) -> None:
    handler = Holding()
    ids = await enqueue(client, 1, 2)
    async with running(make_worker(server.url, handler, concurrency=2, drain_timeout=3_600)) as worker:
        await handler.has_started(2)
        worker.stop()
        worker.stop(now=True)

    assert process_of(worker).forced
    assert await pending_of(client) == [(one, worker.consumer, 1) for one in ids]
    assert (worker.counts.abandoned, worker.counts.handed_back) == (2, 0)


async def test_a_worker_that_is_cancelled_leaves_what_runs_pending(server: RedisServer, client: Redis) -> None:
    handler = Holding()
    [job_id] = await enqueue(client, 1)
    worker = make_worker(server.url, handler)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await handler.has_started()
        tasks.cancel_scope.cancel()

    assert await pending_of(client) == [(job_id, worker.consumer, 1)]
