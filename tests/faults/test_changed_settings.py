"""A change of the group settings robs no worker. The cases are a shorter timeout, a first replica, and lost settings.

Deliveries are made as old as the worker's own settings allow, and older than the group's settings allow now.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.service import Reaper
from tests.faults.deliveries import age
from tests.faults.scene import (
    KEYS,
    Handler,
    count_events,
    create_group,
    enqueue,
    holds,
    nothing_left,
    reaper_settings,
    running_reaper,
    running_worker,
    times,
)
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers import Worker

pytestmark = pytest.mark.anyio

JOBS = 8
LONG_S, SHORT_S, OLD_S = 3_600, 300, 900
"""What the worker goes by, the timeout in force then, and an age between the two."""
GONE = "gone~0123456789ab"
"""A worker that is dead."""
SELDOM: dict[str, Any] = {"refresh_s": LONG_S, "concurrency": JOBS}
"""A worker that learns of nothing by chance, and has no slot to spare."""


@pytest.fixture
async def group(client: Redis) -> None:
    """The group is there."""
    await create_group(client)


@asynccontextmanager
async def busy(server: RedisServer, client: Redis, handler: Handler, **changes: Any) -> AsyncIterator[Worker]:
    """Run a worker that has been silent about its jobs for as long as its own settings allow."""
    await enqueue(client, JOBS, hold="")
    async with running_worker(server.url, handler, **{**SELDOM, **changes}) as worker:
        await handler.has_started(JOBS)
        await grow_old(client, worker)
        yield worker


async def grow_old(client: Redis, worker: Worker, old_s: float = OLD_S) -> None:
    """Let so much time pass in which the worker had no need to extend anything."""
    assert worker.process is not None
    for held in worker.process.in_hand():
        held.proven = monotonic() - old_s
    await age(client, KEYS.stream, KEYS.group, round(old_s * 1000), worker.consumer)


async def strand_one(client: Redis) -> None:
    """Let a dead worker hold a job as old as those of the one that lives."""
    await client.xadd(KEYS.stream, {"n": "stranded"})
    await client.xreadgroup(KEYS.group, GONE, {KEYS.stream: ">"})
    await age(client, KEYS.stream, KEYS.group, OLD_S * 1000, GONE)


async def is_recovered(client: Redis, recovered: int = 1) -> bool:
    """Return whether so many deliveries were taken from any worker."""
    return (await count_events(client))["recovered"] >= recovered


async def held_by(client: Redis, worker: Worker) -> int:
    """Return how much is pending for a worker."""
    rows: Any = await client.xpending_range(KEYS.stream, KEYS.group, "-", "+", 100, consumername=worker.consumer)
    return len(rows)


async def shortens(client: Redis, worker: Worker) -> None:
    """See that only the dead lose something by a shorter timeout, once the worker has had the time to read it."""
    assert worker.process is not None

    async def in_force() -> bool:
        return await client.hget(KEYS.settings, "visibility_ms") == b"%d" % (SHORT_S * 1_000)

    await wait_until(in_force, "the shorter one is in force")
    worker.process._context.membership.join_again()

    async def lives_by_it() -> bool:
        rows: Any = await client.xpending_range(KEYS.stream, KEYS.group, "-", "+", 100, consumername=worker.consumer)
        return [idle_ms < SHORT_S * 1_000 for _, _, idle_ms, _ in rows] == [True] * JOBS

    await wait_until(lives_by_it, "the worker has extended by it what it holds")
    assert worker.process._context.membership.group_settings.visibility_timeout.total_seconds() == SHORT_S
    assert not await is_recovered(client), "nothing is recovered before"
    await client.hset(KEYS.settings, mapping={"former_left": 0, "unbroken": 1})  # as if the time had passed
    await wait_until(lambda: is_recovered(client), "what the dead one held is recovered")
    assert await held_by(client, worker) == JOBS, "what the live one holds is not"
    await grow_old(client, worker, SHORT_S / 8)


async def nobody_was_robbed(client: Redis, worker: Worker, handler: Handler) -> None:
    """Let the jobs end, and see that each was started once."""
    handler.open_gate()
    await nothing_left(client)
    assert worker.counts.rejected == 0
    assert all(count == 1 for count in times(handler.starts).values())


@pytest.mark.usefixtures("group")
async def test_a_holder_with_a_shorter_timeout_than_the_one_before_robs_nobody(
    server: RedisServer, client: Redis
) -> None:
    handler = Handler()
    async with running_reaper(server.url, visibility_timeout=LONG_S) as reaper:
        await holds(reaper)
        async with busy(server, client, handler, visibility_timeout=None) as worker:
            await strand_one(client)
            async with running_reaper(server.url, visibility_timeout=SHORT_S):
                reaper.stop()  # a rolling restart
                await shortens(client, worker)
                await nobody_was_robbed(client, worker, handler)


@pytest.mark.usefixtures("group")
async def test_the_first_holder_of_a_group_that_workers_have_joined_robs_nobody(
    server: RedisServer, client: Redis
) -> None:
    handler = Handler()
    async with busy(server, client, handler, visibility_timeout=LONG_S) as worker:
        await strand_one(client)
        async with running_reaper(server.url, visibility_timeout=SHORT_S):
            await shortens(client, worker)
            await nobody_was_robbed(client, worker, handler)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("lost", [KEYS.settings, KEYS.lease], ids=["settings", "settings and lease"])
async def test_a_replica_that_never_knew_lost_group_settings_robs_nobody(
    server: RedisServer, client: Redis, lost: str
) -> None:
    handler = Handler()
    async with running_reaper(server.url, visibility_timeout=LONG_S) as reaper:
        await holds(reaper)
        async with busy(server, client, handler, visibility_timeout=None) as worker:
            reaper.stop()
            await wait_until(lambda: not reaper.held, "nobody holds the lease")
            await client.delete(KEYS.settings, lost)
            async with Reaper(reaper_settings(server.url, visibility_timeout=SHORT_S)):
                await strand_one(client)
                await shortens(client, worker)
                await nobody_was_robbed(client, worker, handler)
