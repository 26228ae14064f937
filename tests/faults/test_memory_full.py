"""Redis has reached ``maxmemory`` and evicts nothing: producers are turned away, and everything else goes on.

Settling frees memory in the end, so it must work when there is none.
"""

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from reaper.drill.history import read_state
from tests.faults import scene
from tests.support.processes import Processes
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SHORTENED_MS = 450_000
"""Less is left of a lease than after each tick."""


async def fill_memory(client: Redis) -> None:
    """Let Redis reject every command that may use memory, and make sure of it."""
    await client.config_set("maxmemory", "1")
    with pytest.raises(OutOfMemoryError):
        await client.xadd(scene.STREAM, {"n": "1"})
    with pytest.raises(OutOfMemoryError):
        await client.hset("hash", "field", "value")


async def _is_extended(client: Redis) -> bool:
    return int(await client.pttl(scene.KEYS.lease)) > SHORTENED_MS


async def test_workers_settle_whatever_the_verdict(server: RedisServer, client: Redis) -> None:
    handler = scene.Handler()
    enqueued = await scene.enqueue(client, 100)
    enqueued |= await scene.enqueue(client, 10, hold="") | await scene.enqueue(client, 5, fail="")
    enqueued |= await scene.enqueue(client, 5, reject="")
    async with scene.running_worker(server.url, handler, concurrency=10) as worker:
        await handler.has_started(110)
        await fill_memory(client)
        handler.open_gate()
        await scene.nothing_left(client)
    assert await scene.count_events(client) == {"acked": 110, "nacked": 10, "dead_lettered": 10}
    assert (worker.counts.rejected, worker.counts.held) == (0, 0)
    assert await scene.violations(client, enqueued, [handler], finished=True) == []


async def test_the_holder_keeps_its_lease_and_recovers(server: RedisServer, client: Redis) -> None:
    handler = scene.Handler()
    await scene.create_group(client)
    async with scene.running_reaper(server.url, redelivery="retry-stream") as reaper:
        token = await scene.holds(reaper)
        enqueued = await scene.enqueue(client, 30)
        await scene.strand(client, 30, overdue=True)
        await fill_memory(client)
        for _ in range(3):
            await client.pexpire(scene.KEYS.lease, SHORTENED_MS)
            await wait_until(lambda: _is_extended(client), "the lease has been extended")
        assert await scene.holds(reaper) == await scene.token_of(client) == token
        async with scene.running_worker(server.url, handler):
            await scene.nothing_left(client)
    assert await scene.count_events(client) == {"recovered": 30, "acked": 30}
    assert await scene.violations(client, enqueued, [handler], finished=True) == []


@pytest.mark.processes
async def test_another_replica_takes_the_lease_after_its_holder_was_killed_and_recovery_goes_on(
    server: RedisServer, client: Redis, processes: Processes
) -> None:
    await scene.create_group(client)
    enqueued = await scene.enqueue(client, 20)
    flags = ("--groups", f"{scene.STREAM}/{scene.GROUP}", "--lease-ttl", "3600")
    first = processes.reaper("--redis-url", server.url, *flags)
    await first.prints("lease taken: group=orders/billing token=1$")
    first.pause()  # else it would recover what is overdue
    await scene.strand(client, 20, overdue=True)
    await fill_memory(client)
    first.kill()
    await scene.end_lease(client)
    async with scene.running_reaper(server.url) as second:
        assert await scene.holds(second) == 2

        async def all_ready() -> bool:
            return len((await read_state(client, scene.KEYS)).ready) == 20

        await wait_until(all_ready, "all are ready again")
    assert {event.data["token"] for event in await scene.events(client, "recovered")} == {2}
    assert await scene.violations(client, enqueued) == []
