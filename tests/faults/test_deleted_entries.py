"""Somebody trims or deletes entries together with their pending references, while jobs run (Redis 8.2 and later).

Nobody but the worker that has such a job in memory can run it, so it runs the job, and the loss is reported.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from tests.faults import scene
from tests.faults.scene import GROUP, KEYS, STREAM
from tests.operator.conftest import run_command
from tests.support.servers import RedisServer
from tests.support.tiers import WITH_CLAIM, by_claim
from tests.support.waiting import wait_until
from workers import Job, Retry
from workers.protocol.messages import text

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.contract,
    pytest.mark.only_on("8.2.", *WITH_CLAIM),
    pytest.mark.usefixtures("hurried"),
]

Delete = Callable[[Redis, str], Awaitable[Any]]


async def by_adding(client: Redis, _entry: str) -> None:
    """Trim all entries but the one that is added, which is deleted before anybody reads it."""
    last = "9999999999999-1"
    async with client.pipeline(transaction=True) as together:
        together.execute_command("XADD", STREAM, "MAXLEN", "=", 1, "DELREF", last, "n", "late")
        together.execute_command("XDELEX", STREAM, "DELREF", "IDS", 1, last)
        await together.execute()


async def by_trimming(client: Redis, _entry: str) -> None:
    await client.execute_command("XTRIM", STREAM, "MAXLEN", "=", 0, "DELREF")


async def by_deleting(client: Redis, entry: str) -> None:
    await client.execute_command("XDELEX", STREAM, "DELREF", "IDS", 1, entry)


async def by_acknowledging(client: Redis, entry: str) -> None:
    await client.execute_command("XACKDEL", STREAM, GROUP, "DELREF", "IDS", 1, entry)


WAYS = [by_adding, by_trimming, by_deleting, by_acknowledging]
in_every_mode = pytest.mark.parametrize("mode", ["reaper", "embedded", by_claim("claim")])


async def losses(client: Redis) -> int:
    return int(await client.hget(KEYS.agreement, "lost_payload") or 0)


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    return [line for line in found if words in line]


@pytest.mark.parametrize("delete", WAYS)
@in_every_mode
async def test_a_running_job_runs_to_its_end(
    server: RedisServer, client: Redis, mode: str, delete: Delete, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.create_group(client)
    handler = scene.Handler()
    enqueued = await scene.enqueue(client, 1, hold="")
    [job] = enqueued
    async with scene.running_worker(server.url, handler, recovery=mode) as worker:
        await handler.has_started(1)
        await delete(client, job)
        await wait_until(lambda: losses(client), "the loss is counted")
        [event] = await scene.events(client, "lost_payload")
        assert (event.job, event.data["entry"], event.data["consumer"]) == (job, job, worker.consumer)
        handler.open_gate()
        await wait_until(lambda: worker.counts.acked == 1, "the job is done")
    assert [done.job for done in handler.completions] == [job]
    assert (worker.counts.refused, worker.counts.lost, await losses(client)) == (0, 0, 1)
    assert len(lines(caplog, "runs to its end")) == 1
    assert lines(caplog, "held again") == []
    assert await scene.violations(client, enqueued, [handler]) == []


@in_every_mode
async def test_status_and_doctor_tell(server: RedisServer, client: Redis, mode: str) -> None:
    await scene.create_group(client)
    handler = scene.Handler()
    [job] = await scene.enqueue(client, 1, hold="")
    async with scene.running_worker(server.url, handler, recovery=mode):
        await handler.has_started(1)
        await by_deleting(client, job)
        await wait_until(lambda: losses(client), "the loss is counted")
        for command in ("status", "doctor"):
            answer = await run_command(server.url, command, "--groups", KEYS.pair)
            assert (answer.code, "1 entry was deleted while pending" in answer.out) == (1, True), answer.out
        handler.open_gate()


@pytest.mark.parametrize("delete", WAYS)
async def test_a_job_that_ends_before_its_loss_is_noticed_is_done(
    server: RedisServer, client: Redis, delete: Delete
) -> None:
    await scene.create_group(client)
    [job] = await scene.enqueue(client, 1)

    async def handle(_job: Job) -> None:
        await delete(client, job)

    async with scene.running_worker(server.url, handle) as worker:
        await wait_until(lambda: worker.counts.acked == 1, "the job is done")
    assert (worker.counts.refused, await losses(client)) == (0, 0)


@pytest.mark.parametrize("when", ["at once", "once it is known"])
@pytest.mark.parametrize("how", ["fails", "retries"])
@in_every_mode
async def test_a_job_that_does_not_succeed_is_reported_as_lost(
    server: RedisServer, client: Redis, mode: str, how: str, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.create_group(client)
    [job] = await scene.enqueue(client, 1)

    async def handle(_job: Job) -> None:
        await by_trimming(client, job)
        if when == "once it is known":
            await wait_until(lambda: losses(client), "the loss is counted")
        raise Retry("later", counts=False) if how == "retries" else RuntimeError("no such customer")

    async with scene.running_worker(server.url, handle, recovery=mode) as worker:
        await wait_until(lambda: worker.counts.lost == 1, "the job is lost")
    assert (worker.counts.nacked, worker.counts.refused, await losses(client)) == (0, 0, 1)
    [line] = lines(caplog, "a job is lost")
    assert f"job={job}" in line
    assert ("later" if how == "retries" else "no such customer") in line
    assert await scene.count_events(client) == {"lost_payload": 1}


async def test_a_job_that_is_cancelled_at_the_drain_deadline_is_reported_as_lost(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.create_group(client)
    handler = scene.Handler()
    [job] = await scene.enqueue(client, 1, hold="")
    async with scene.running_worker(server.url, handler, drain_timeout=0) as worker:
        await handler.has_started(1)
        await by_trimming(client, job)
    assert (worker.counts.lost, worker.counts.handed_back) == (1, 0)
    assert len(lines(caplog, "a job is lost")) == 1


async def test_a_job_from_the_retry_stream_runs_to_its_end(server: RedisServer, client: Redis) -> None:
    handler = scene.Handler()
    job = text(await client.xadd(KEYS.retry, {"n": "1", "hold": ""}))
    await scene.create_group(client)
    await client.xgroup_create(KEYS.retry, GROUP, "0")
    async with scene.running_worker(server.url, handler, redelivery="retry-stream") as worker:
        await handler.has_started(1)
        await client.execute_command("XTRIM", KEYS.retry, "MAXLEN", "=", 0, "DELREF")
        await wait_until(lambda: losses(client), "the loss is counted")
        handler.open_gate()
        await wait_until(lambda: worker.counts.acked == 1, "the job is done")
    assert [done.job for done in handler.completions] == [job]


async def test_a_job_that_waits_for_a_slot_is_run(server: RedisServer, client: Redis) -> None:
    """The first one blocks the event loop, so the others wait in the queue while they are deleted."""
    await scene.create_group(client)
    jobs = list(await scene.enqueue(client, 3))
    ran = list[str]()
    blocking = server.client()

    async def handle(job: Job) -> None:
        if not ran:
            blocking.execute_command("XTRIM", STREAM, "MAXLEN", "=", 0, "DELREF")
            while not int(blocking.hget(KEYS.agreement, "lost_payload") or 0):
                await anyio.lowlevel.checkpoint()
        ran.append(job.id)

    async with scene.running_worker(server.url, handle, concurrency=3) as worker:
        await wait_until(lambda: worker.counts.acked == 3, "all jobs are done")
    blocking.close()
    assert sorted(ran) == sorted(jobs)


async def test_a_quarantined_job_that_runs_alone_runs_to_its_end(server: RedisServer, client: Redis) -> None:
    """Its last delivery: should the worker die of it, nobody could tell, for the entry is gone."""
    await scene.create_group(client)
    handler = scene.Handler()
    job = text(await client.xadd(STREAM, {"n": "1", "hold": "", "reaper.suspect": "1", "reaper.deliveries": "2"}))
    async with scene.running_worker(server.url, handler, max_deliveries=3) as worker:
        await handler.has_started(1)
        await by_trimming(client, job)
        await wait_until(lambda: losses(client), "the loss is counted")
        handler.open_gate()
        await wait_until(lambda: worker.counts.acked == 1, "the job is done")
        await scene.enqueue(client, 3)
        await wait_until(lambda: worker.counts.acked == 4, "other jobs are run again")


async def test_without_the_worker_the_loss_stays_reported(server: RedisServer, client: Redis) -> None:
    """A worker that ends with such a job in hand cannot say so any more."""
    await scene.create_group(client)
    handler = scene.Handler()
    [job] = await scene.enqueue(client, 1, hold="")
    async with scene.running_worker(server.url, handler) as worker:
        await handler.has_started(1)
        await by_deleting(client, job)
        await wait_until(lambda: losses(client), "the loss is counted")
        worker.stop(now=True)
    [event] = await scene.events(client, "lost_payload")
    assert event.job == job
