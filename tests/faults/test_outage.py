"""Redis is away while the workers live. None of their jobs is recovered, and recovery goes on after they had a chance.

After an outage that was longer than the visibility timeout everything pending looks overdue. Here, all of it is made
overdue, and the last beat two hours old, while only the test reaches Redis. Recovery would wait for an hour then. The
test ends that, after it has seen that live workers extend their deliveries.
"""

from collections import Counter
from time import monotonic
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_state
from reaper.service import Reaper
from tests.conftest import StartProxy
from tests.faults import scene
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.runtime.clock import server_ms

pytestmark = pytest.mark.anyio

SLOW_JOBS = 12
STRANDED = 3
GAP_MS = 2 * 3_600_000
TTL_S = 1
TIMES: dict[str, Any] = {"lease_ttl": TTL_S, "full_scan_interval": 0.2}


@pytest.mark.usefixtures("hurried")
async def test_a_network_that_swallows_everything_robs_no_live_worker(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    through, handler = await proxy(server), scene.Handler()
    await scene.create_group(client)
    stranded = await scene.enqueue(client, STRANDED)
    await scene.strand(client, STRANDED)
    enqueued = stranded | await scene.enqueue(client, SLOW_JOBS, hold="")
    async with scene.running_reaper(through.url, **TIMES) as reaper, scene.running_worker(through.url, handler):
        await scene.holds(reaper)
        await handler.has_started(SLOW_JOBS)
        through.blackhole()  # so that no process sees the overdue deliveries, and no worker extends them
        await scene.make_overdue(client)
        await client.hset(scene.KEYS.settings, "beat", await server_ms(client) - GAP_MS)
        terms_before = await scene.token_of(client)
        began = monotonic()
        await wait_until(lambda: monotonic() - began > TTL_S, "its lease has expired, as nobody extends it")
        await through.mend()
        # Everything is overdue, and a replica has seen it. Only then the live workers extend, and the wait ends.
        await scene.scanned_by_term_after(client, terms_before)
        wait = await scene.recovery_waits(client)
        assert wait is not None
        assert wait.gap_ms >= GAP_MS
        await wait_until(lambda: _are_young(client, SLOW_JOBS), "the living extend what they hold")
        assert not await scene.events(client, "recovered")
        await client.hset(scene.KEYS.settings, "unbroken", 1)
        await wait_until(lambda: scene.events(client, "recovered"), "recovery goes on")
        handler.open_gate()
        await scene.nothing_left(client)
    counts = await scene.count_events(client)
    fenced = await scene.events(client, "fenced")  # a call that the holder sent while its lease expired
    assert all("token" in event.data for event in fenced)
    assert counts - Counter({"fenced": len(fenced)}) == {"acked": SLOW_JOBS + STRANDED, "recovered": STRANDED}
    assert {event.job for event in await scene.events(client, "recovered")} == set(stranded)
    assert await scene.violations(client, enqueued, [handler]) == []


async def _are_young(client: Redis, number: int) -> bool:
    rows: Any = await client.xpending_range(scene.STREAM, scene.GROUP, "-", "+", 100)
    return bool(sum(row[2] < scene.VISIBILITY_S * 1_000 for row in rows) == number)


async def test_what_ends_during_an_outage_is_settled_once_when_it_is_over(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    through, handler = await proxy(server), scene.Handler()
    enqueued = await scene.enqueue(client, 20, hold="") | await scene.enqueue(client, 10, hold="", fail="")
    async with scene.running_worker(through.url, handler, concurrency=30) as worker:
        await handler.has_started(30)
        await through.cut()
        handler.open_gate()
        await wait_until(lambda: len(handler.completions) == 20, "the jobs are done")
        await through.mend()
        await scene.nothing_left(client)
    assert await scene.count_events(client) == {"acked": 20, "nacked": 20, "dead_lettered": 10}
    assert worker.counts.rejected == 0
    assert await scene.violations(client, enqueued, [handler], finished=True) == []


async def test_a_holder_that_alone_lost_contact_is_replaced_and_its_successor_waits_for_nothing(
    server: RedisServer, client: Redis, proxy: StartProxy, caplog: pytest.LogCaptureFixture
) -> None:
    through = await proxy(server)
    await scene.create_group(client)
    async with scene.running_reaper(through.url) as first:
        token = await scene.holds(first)
        async with scene.running_reaper(server.url, after=first.replica_id) as second:
            through.blackhole()
            enqueued = await scene.enqueue(client, 10)
            await scene.strand(client, 10, overdue=True)
            await scene.end_lease(client)
            assert await scene.holds(second) == token + 1
            await wait_until(lambda: _ready(client, 10), "the successor recovers")
            assert "recovery waits" not in caplog.text
            await through.mend()
            await wait_until(lambda: _token(first) > token + 1, "the group comes back to the first one")
    assert {event.data["token"] for event in await scene.events(client, "recovered")} == {token + 1}
    assert await scene.violations(client, enqueued) == []


def _token(reaper: Reaper) -> int:
    """Return the number of the term in which ``reaper`` believes that it is; 0 = none."""
    return max((report.token for report in reaper.reports().values()), default=0)


async def _ready(client: Redis, number: int) -> bool:
    return len((await read_state(client, scene.KEYS)).ready) == number
