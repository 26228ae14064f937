"""A replica of many groups extends each lease whatever else it does. It takes and scans them in turn."""

from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from reaper.lease import GroupLease, Taken
from reaper.recovery.scanner import Scanner
from reaper.service import Reaper
from tests.faults.scene import holds, reaper_settings, running_reaper
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.connection import commands_client, own_connection
from workers.protocol.meaning import AllInUseError, is_contact_error, is_outage

pytestmark = pytest.mark.anyio

AT_A_TIME = 10
MANY = 3 * AT_A_TIME
STREAMS = [f"orders-{number}" for number in range(MANY)]


async def test_a_lease_is_extended_while_groups_use_every_connection_they_may(
    server: RedisServer, client: Redis
) -> None:
    await client.xgroup_create("orders", "billing", mkstream=True)
    reaper = Reaper(reaper_settings(server.url))
    async with AsyncExitStack() as running:
        for _ in range(reaper._client.connection_pool.max_connections):
            await running.enter_async_context(own_connection(reaper._client))
        await running.enter_async_context(reaper)
        token = await holds(reaper)
        seen = set[int]()

        def ticked_often() -> bool:
            seen.add(reaper.reports()["orders/billing"].last_scan_ms)
            return len(seen) > 5

        await wait_until(ticked_often, "the lease is extended")
        assert await holds(reaper) == token


async def test_a_pool_that_is_used_up_is_no_outage(server: RedisServer) -> None:
    async with commands_client(server.url, max_connections=1) as client:
        pool: Any = client.connection_pool
        pool.timeout = 0.05  # to wait for one of its connections, and not for an answer
        async with own_connection(client):
            with pytest.raises(AllInUseError, match=r"^all 1 connections to Redis were in use for 0\.05 s$") as raised:
                await client.ping()
        assert await client.ping()
    assert is_contact_error(raised.value), "nothing was sent: it may be tried again"
    assert not is_outage(raised.value)


@pytest.mark.parametrize("what", ["taken", "scanned"])
async def test_groups_have_their_turn(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for stream in STREAMS:
        await client.xgroup_create(stream, "billing", mkstream=True)
    monkeypatch.setattr("reaper.tasks.AT_A_TIME", AT_A_TIME)
    under_way = most = 0
    gate = anyio.Event()

    async def counted() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await gate.wait()
        under_way -= 1

    take, full = GroupLease.take, Scanner.full

    async def counted_take(lease: GroupLease, holder: str, *, token: int = 0) -> Taken:
        await counted()
        return await take(lease, holder, token=token)

    async def counted_full(scanner: Scanner) -> int:
        await counted()
        return await full(scanner)

    if what == "taken":
        monkeypatch.setattr(GroupLease, "take", counted_take)
    else:
        monkeypatch.setattr(Scanner, "full", counted_full)
    groups = ",".join(f"{stream}/billing" for stream in STREAMS)
    async with running_reaper(server.url, groups=groups) as reaper:
        await wait_until(lambda: under_way == AT_A_TIME, f"as many as may be are {what}")
        gate.set()
        await wait_until(
            lambda: len(reports := reaper.reports()) == MANY and all(one.last_scan_ms for one in reports.values()),
            "every group is scanned",
        )
    assert most == AT_A_TIME
