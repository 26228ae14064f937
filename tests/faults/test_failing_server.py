"""Redis answers with errors: it is read-only, full of clients, or misses a group, scripts or a password."""

import logging

import anyio
import pytest
from redis.asyncio import Redis

from tests.faults import scene
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers import Worker
from workers.runtime.callbacks import Report

pytestmark = pytest.mark.anyio


def heard_errors(worker: Worker) -> list[str]:
    """Return a list that the errors go into that the worker reports."""
    errors: list[str] = []

    async def hear(report: Report) -> None:
        errors.append(report.facts["error"])

    worker.on("error")(hear)
    return errors


def logged_by_reapers(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what replicas log about their groups as a warning or an error."""
    return [
        record.message
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("reaper.recovery")
    ]


# --- scripts ------------------------------------------------------------------------------------------------


async def test_scripts_may_be_flushed_at_any_time(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    handler = scene.Handler()
    await scene.create_group(client)
    enqueued = await scene.enqueue(client, 20)
    await scene.strand(client, 20, overdue=True)
    enqueued |= await scene.enqueue(client, 20, fail="") | await scene.enqueue(client, 500)
    enqueued |= await scene.enqueue(client, 1, hold="")
    flushes = 0

    async def flush_all_the_time() -> None:
        nonlocal flushes
        while True:
            await client.script_flush()
            flushes += 1

    async with (
        scene.running_reaper(server.url),
        scene.running_worker(server.url, handler) as worker,
        anyio.create_task_group() as tasks,
    ):
        errors = heard_errors(worker)
        tasks.start_soon(flush_all_the_time)
        await wait_until(lambda: flushes > 20, "scripts were flushed many times")
        handler.open_gate()
        await scene.nothing_left(client)
        tasks.cancel_scope.cancel()
    assert (errors, logged_by_reapers(caplog)) == ([], [])
    assert await scene.violations(client, enqueued, [handler], finished=True) == []


# --- without the group --------------------------------------------------------------------------------------


async def test_a_worker_whose_group_is_destroyed_while_it_blocks_says_so_and_goes_on_in_a_new_one(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    handler = scene.Handler()
    async with scene.running_worker(server.url, handler):
        await wait_until(lambda: _blocked_clients(client), "the worker blocks")
        await client.xgroup_destroy(scene.STREAM, scene.GROUP)
        await scene.enqueue(client, 5)
        await handler.has_started(5)
        await scene.nothing_left(client)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert told[0].startswith("group does not exist any more, joining it again: group=orders/billing")
    assert any("is created again" in line for line in told)
    assert await scene.count_events(client) == {"acked": 5}


async def _blocked_clients(client: Redis) -> int:
    return int((await client.info("clients"))["blocked_clients"])


async def test_what_runs_when_its_group_is_destroyed_is_not_settled_twice(server: RedisServer, client: Redis) -> None:
    handler = scene.Handler()
    await scene.enqueue(client, 5, hold="")
    async with scene.running_worker(server.url, handler, concurrency=5) as worker:
        await handler.has_started(5)
        await client.xgroup_destroy(scene.STREAM, scene.GROUP)
        handler.open_gate()
        await wait_until(lambda: worker.counts.acked == 5, "all are settled")
        await scene.nothing_left(client)
    # The new group starts at the beginning. A running job that is read again continues, and a rejected one
    # is run again.
    assert (worker.counts.acked, worker.counts.rejected) == (5, len(handler.starts) - 5)


# --- at the start -------------------------------------------------------------------------------------------
