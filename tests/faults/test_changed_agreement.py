"""A change of what a group has agreed on robs nobody: not a shorter timeout, not a first leader, not a lost agreement.

Deliveries are made as old as the worker would let them become by what it goes by, and older than the group allows now.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.replicas import read_replicas
from reaper.service import Reaper
from tests.conftest import StartServer
from tests.faults.deliveries import age
from tests.faults.scene import (
    KEYS,
    NAMESPACE,
    Handler,
    count_events,
    create_group,
    enqueue,
    leads,
    nothing_left,
    reaper_settings,
    running_reaper,
    running_worker,
    times,
)
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers import Worker
from workers.protocol.connection import commands_client
from workers.protocol.messages import text

pytestmark = pytest.mark.anyio

JOBS = 8
LONG_S, SHORT_S, OLD_S = 3_600, 300, 900
"""What the worker goes by, what the group agrees on then, and an age between the two."""
GONE = "gone.0123456789ab"
"""A worker that is dead."""
SELDOM: dict[str, Any] = {"refresh_s": LONG_S, "concurrency": JOBS}
"""A worker that learns of nothing by chance, and has no slot to spare."""


@pytest.fixture
async def group(client: Redis) -> None:
    """The group is there."""
    await create_group(client)


@asynccontextmanager
async def busy(server: RedisServer, client: Redis, handler: Handler, **changes: Any) -> AsyncIterator[Worker]:
    """Run a worker that has been at work on jobs for as long as it may be silent about them by what it goes by."""
    await enqueue(client, JOBS, hold="")
    async with running_worker(server.url, handler, **{**SELDOM, **changes}) as worker:
        await handler.has_started(JOBS)
        await grow_old(client, worker)
        yield worker


async def has_agreed(client: Redis, reaper: Reaper) -> None:
    """Wait until the leader has taken the group over: a worker that joins before does not know its timeout yet."""
    await leads(reaper)
    await wait_until(lambda: client.hexists(KEYS.agreement, "fence_token"), "the group is taken over")


async def grow_old(client: Redis, worker: Worker, old_s: float = OLD_S) -> None:
    """Let so much time pass in which the worker had no need to extend anything."""
    assert worker.process is not None
    for held in worker.process.in_hand():
        held.prove(monotonic() - old_s)
    await age(client, KEYS.stream, KEYS.group, round(old_s * 1000), worker.consumer)


async def strand_one(client: Redis) -> None:
    """Let a dead worker, which went by the shorter timeout, hold a job as old as those of the one that lives."""
    await client.hset(KEYS.agreement, f"member:{GONE}", f"1,{SHORT_S * 1000},3,{10**15 - 1},")
    await client.xadd(KEYS.stream, {"n": "stranded"})
    await client.xreadgroup(KEYS.group, GONE, {KEYS.stream: ">"})
    await age(client, KEYS.stream, KEYS.group, OLD_S * 1000, GONE)


async def is_recovered(client: Redis, recovered: int = 1) -> bool:
    """Tell whether so many deliveries were taken from anybody."""
    return (await count_events(client))["recovered"] >= recovered


async def held_by(client: Redis, worker: Worker) -> int:
    """Return how much is pending for a worker."""
    rows: Any = await client.xpending_range(KEYS.stream, KEYS.group, "-", "+", 100, consumername=worker.consumer)
    return len(rows)


async def word_of(client: Redis, worker: Worker) -> int:
    """Return by which visibility timeout the worker says that it lives, in ms."""
    value = await client.hget(KEYS.agreement, f"member:{worker.consumer}")
    return int(text(value or b"0,0").split(",")[1])


async def shortens(client: Redis, worker: Worker) -> None:
    """See that only the dead lose something by a shorter timeout, and that the worker comes to live by it."""
    await wait_until(lambda: is_recovered(client), "what the dead one held is recovered")
    assert await held_by(client, worker) == JOBS, "what the live one holds is not"
    assert worker.process is not None
    worker.process._context.membership.join_again()

    async def lives_by_it() -> bool:
        return await word_of(client, worker) == SHORT_S * 1_000

    await wait_until(lives_by_it, "the worker lives by what was agreed on")
    assert worker.process.agreement.visibility_timeout.total_seconds() == SHORT_S
    await grow_old(client, worker, SHORT_S / 4)


async def nobody_was_robbed(client: Redis, worker: Worker, handler: Handler) -> None:
    """Let the jobs end, and see that each was started once."""
    handler.open_gate()
    await nothing_left(client)
    assert worker.counts.refused == 0
    assert all(count == 1 for count in times(handler.starts).values())


@pytest.mark.usefixtures("group")
async def test_a_reload_that_shortens_the_timeout_robs_nobody(server: RedisServer, client: Redis) -> None:
    handler = Handler()
    async with running_reaper(server.url, visibility_timeout=LONG_S) as reaper:
        await has_agreed(client, reaper)
        async with busy(server, client, handler, visibility_timeout=None) as worker:
            await strand_one(client)
            reaper.reload(reaper_settings(server.url, visibility_timeout=SHORT_S))
            await shortens(client, worker)
            await nobody_was_robbed(client, worker, handler)


@pytest.mark.parametrize("is_young", [False, True])
async def test_a_shorter_timeout_does_not_cut_short_what_is_granted_after_an_outage(
    start_server: StartServer, is_young: bool
) -> None:
    """Workers who know the longer one alone have until then to settle what they could not: found by the drill."""
    server = start_server()  # that has just started, which counts as an outage
    async with commands_client(server.url) as client:
        await create_group(client)
        async with running_reaper(server.url, visibility_timeout=LONG_S, grace=LONG_S) as first:
            await has_agreed(client, first)

            async def is_granted(token: int) -> bool:
                told = [replica for replica in await read_replicas(client, NAMESPACE) if replica.token == token]
                report = told[0].groups[KEYS.pair] if told else None
                return bool(report and report.visibility_ms == 1_000 and report.grace_ms_left > 1_000 * OLD_S)

            if not is_young:  # the first agreement is so long ago that everybody knows it
                await client.hset(KEYS.agreement, "former_until", 1)
            first.reload(reaper_settings(server.url, visibility_timeout=1, grace=LONG_S))
            await wait_until(lambda: is_granted(1), "the former grace holds under the shorter timeout")
            if is_young:  # what a next leader finds then is that nobody knows what they went by
                return
            first.stop()
            async with running_reaper(server.url, visibility_timeout=1, grace=LONG_S):
                await wait_until(lambda: is_granted(2), "it holds for the next leader as well")


@pytest.mark.usefixtures("group")
async def test_a_leader_with_a_shorter_timeout_than_the_one_before_robs_nobody(
    server: RedisServer, client: Redis
) -> None:
    handler = Handler()
    async with running_reaper(server.url, visibility_timeout=LONG_S) as reaper:
        await has_agreed(client, reaper)
        async with busy(server, client, handler, visibility_timeout=None) as worker:
            await strand_one(client)
            reaper.stop()
            async with running_reaper(server.url, visibility_timeout=SHORT_S):
                await shortens(client, worker)
                await nobody_was_robbed(client, worker, handler)


@pytest.mark.usefixtures("group")
async def test_the_first_leader_of_a_group_that_workers_have_joined_robs_nobody(
    server: RedisServer, client: Redis
) -> None:
    handler = Handler()
    async with busy(server, client, handler, visibility_timeout=LONG_S) as worker:
        await strand_one(client)
        async with running_reaper(server.url, visibility_timeout=SHORT_S):
            await shortens(client, worker)
            await nobody_was_robbed(client, worker, handler)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("lost", [KEYS.agreement, KEYS.fence], ids=["agreement", "agreement and fence"])
async def test_when_the_agreement_is_lost_a_leader_that_never_knew_it_robs_nobody(
    server: RedisServer, client: Redis, lost: str
) -> None:
    handler = Handler()
    async with running_reaper(server.url, visibility_timeout=LONG_S) as reaper:
        await has_agreed(client, reaper)
        async with busy(server, client, handler, visibility_timeout=None) as worker:
            reaper.stop()
            await wait_until(lambda: reaper.term is None, "nobody leads")
            await client.delete(KEYS.agreement, lost)
            async with running_reaper(server.url, visibility_timeout=SHORT_S):
                await strand_one(client)
                await shortens(client, worker)
                await nobody_was_robbed(client, worker, handler)


@pytest.mark.usefixtures("group")
async def test_a_leader_that_serves_on_writes_a_lost_agreement_again(server: RedisServer, client: Redis) -> None:
    async with running_reaper(server.url, visibility_timeout=LONG_S) as reaper:
        await has_agreed(client, reaper)
        await client.delete(KEYS.agreement)

        async def agreed() -> bool:
            return await client.hget(KEYS.agreement, "visibility_ms") == b"%d" % (LONG_S * 1000)

        await wait_until(agreed, "the agreement is there again")
        assert reaper.term is not None
        assert reaper.term.token == 1, "in the same term"
