"""A job that runs too long. Its handler is cancelled or its thread abandoned, and the delivery has failed."""

import asyncio
import threading
from datetime import timedelta

import anyio
import pytest
from redis.asyncio import Redis

from tests.support.patience import scaled
from tests.support.servers import RedisServer
from tests.workers.scene import (
    Holding,
    add,
    dead_letters,
    enqueue,
    event_names,
    field_of,
    hang,
    make_worker,
    number_of,
    running,
    wait_for_settled,
)
from workers import Job, Reject

pytestmark = pytest.mark.anyio

SHORT_S = 0.05


@pytest.mark.parametrize("reaction", ["ends", "returns", "rejects"])
async def test_w1_a_job_over_its_timeout_has_failed_and_runs_again_however_its_handler_reacts(
    server: RedisServer, client: Redis, reaction: str
) -> None:
    """A handler that returns may have been in the middle of its work."""
    deliveries = []

    async def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        if job.deliveries == 1:
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                if reaction == "rejects":
                    raise Reject("in cleanup") from None
                if reaction == "ends":
                    raise

    await enqueue(client, 1)
    async with running(make_worker(server.url, handle, timeout=SHORT_S)) as worker:
        await wait_for_settled(worker, 2)

    assert deliveries == [1, 2]
    assert (worker.counts.timed_out, worker.counts.nacked, worker.counts.acked) == (1, 1, 1)
    assert await event_names(client) == ["nacked", "acked"]


async def test_copies_keep_the_timeout_of_the_job_and_a_dead_letter_names_it(
    server: RedisServer, client: Redis
) -> None:
    await add(client, {"n": 1, "reaper.timeout_ms": 50})
    async with running(make_worker(server.url, hang, max_deliveries=2)) as worker:
        await wait_for_settled(worker, 2)

    [(_, flat)] = await dead_letters(client)
    assert field_of(flat, b"reaper.dead.reason") == b"timeout"
    assert field_of(flat, b"reaper.dead.error") == b"ran longer than its timeout of 0.05 s"
    assert worker.counts.timed_out == 2


async def test_a_job_may_ask_for_a_timeout_of_its_own(server: RedisServer, client: Redis) -> None:
    handler = Holding()
    await add(client, {"n": 1, "reaper.timeout_ms": 50})
    await add(client, {"n": 2, "reaper.timeout_ms": 3_600_000})
    await add(client, {"n": 3, "reaper.timeout_ms": "soon"})
    async with running(make_worker(server.url, handler, max_deliveries=1)) as worker:
        await wait_for_settled(worker, 1)
        handler.gate.set()
        await wait_for_settled(worker, 3)

    timeouts = {number_of(job): job.timeout for job in handler.started}
    assert timeouts == {1: timedelta(milliseconds=50), 2: timedelta(hours=1), 3: None}
    assert (worker.counts.dead_lettered, worker.counts.acked) == (1, 2)


async def test_the_next_job_of_the_same_runner_is_not_cancelled(server: RedisServer, client: Redis) -> None:
    async def handle(job: Job) -> None:
        if number_of(job) % 5 == 0:
            await anyio.sleep_forever()
        with anyio.move_on_after(0.001):
            await anyio.sleep_forever()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep, 0)

    for number in range(20):  # only the hanging job has a timeout, because a busy machine may take long for the others
        timeout: dict[str, str | int] = {"reaper.timeout_ms": 50} if number % 5 == 0 else {}
        await add(client, {"n": number, **timeout})
    async with running(make_worker(server.url, handle, concurrency=2, max_deliveries=1)) as worker:
        await wait_for_settled(worker, 20)

    assert (worker.counts.dead_lettered, worker.counts.acked) == (4, 16)


async def test_a_thread_is_abandoned_and_its_slot_is_free(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = threading.Event()
    ran = []

    def handle(job: Job) -> None:
        ran.append(number_of(job))
        if number_of(job) == 1:
            let_go.wait(10)

    await add(client, {"n": 1, "reaper.timeout_ms": round(scaled(0.3) * 1000)})  # its thread has to be started in time
    await enqueue(client, 2)
    async with running(make_worker(server.url, handle, concurrency=1, max_deliveries=1)) as worker:
        await wait_for_settled(worker, 2)
        let_go.set()

    assert (ran, worker.counts.dead_lettered, worker.counts.acked) == ([1, 2], 1, 1)
    assert "continues in its thread" in caplog.text
