"""The server's clock is set, by an hour, while deliveries are pending. Recovery still comes, and soon.

Redis computes idle times by its wall clock. Set back, it says 0 for an hour. Set forward, it says that all entries have
been idle for an hour. Without the tested code there is no recovery within that hour, and the test gives up before.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.operations.judgement import judge
from reaper.operations.snapshot import take_snapshot
from tests.faults import scene
from tests.support.clock import ServerClock
from tests.support.patience import scaled
from tests.support.servers import RedisServer
from tests.support.tiers import WITH_CLAIM, by_claim
from tests.support.waiting import wait_until
from workers.protocol.connection import commands_client

pytestmark = pytest.mark.anyio

HOUR_S = 3_600
BACK, FORWARD = -HOUR_S, HOUR_S
SOON: dict[str, Any] = {"visibility_timeout": 1.5, "lease_ttl": 60}
STRANDED = 3


@pytest.fixture
def clocked(binary: Path, clock: ServerClock, tmp_path: Path) -> Iterator[RedisServer]:
    """A server whose clock the test sets."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(binary, folder, environment=clock.environment)
    server.start()
    yield server
    server.kill()


async def _step(client: Redis, clock: ServerClock, ahead_s: int) -> None:
    """Set the clock, and wait until the server shows it, because Valkey 9 keeps its time for a millisecond."""
    clock.step_to(ahead_s)

    async def is_seen() -> bool:
        return abs(await _server_ms(client) / 1_000 - (time.time() + ahead_s)) < HOUR_S / 2

    await wait_until(is_seen, "the server shows the time that was set")


async def _is_recovered(client: Redis, *, times: int = STRANDED) -> None:
    async def recovered() -> bool:
        return len(await scene.events(client, "recovered")) == times

    await wait_until(recovered, "what was stranded is recovered")


async def _is_healthy(client: Redis) -> None:
    async def healthy() -> bool:
        return not judge(await take_snapshot(client, scene.NAMESPACE))

    await wait_until(healthy, "the service says that it is healthy")


@pytest.mark.parametrize(("policy", "step_s"), [("stream", BACK), ("retry-stream", FORWARD)])
async def test_a_holder_recovers_soon_after_a_step(
    clocked: RedisServer, clock: ServerClock, policy: str, step_s: int
) -> None:
    async with commands_client(clocked.url) as client:
        await scene.create_group(client)
        await scene.enqueue(client, STRANDED)
        async with scene.running_reaper(clocked.url, **SOON, redelivery=policy) as reaper:
            await scene.holds(reaper)
            await scene.strand(client, STRANDED)
            await scene.scanned_by_term_after(client, 0)
            await _step(client, clock, step_s)
            await _is_recovered(client)
            await _step(client, clock, 0)
            settings = {"redelivery": policy, "visibility_timeout": SOON["visibility_timeout"]}
            async with scene.running_worker(clocked.url, handler := scene.Handler(), **settings):
                await scene.nothing_left(client)
            await _is_healthy(client)
    assert sorted(scene.times(handler.completions).values()) == [1] * STRANDED


@pytest.mark.parametrize("step_s", [BACK, FORWARD], ids=["back", "forward"])
@pytest.mark.parametrize("policy", ["stream", by_claim("in-place")])
async def test_embedded_workers_recover_soon_after_a_step(
    clocked: RedisServer, clock: ServerClock, policy: str, step_s: int
) -> None:
    embedded = {"recovery": "embedded", "redelivery": policy, "visibility_timeout": SOON["visibility_timeout"]}
    async with commands_client(clocked.url) as client:
        await scene.create_group(client)
        await scene.enqueue(client, STRANDED)
        async with scene.running_worker(clocked.url, handler := scene.Handler(), **embedded):
            await handler.has_started(STRANDED)
            await scene.nothing_left(client)
            handler.starts.clear()
            # Another client reads it and never settles it, in the worker's own way of reading, before the worker can.
            await client.execute_command(
                "EVAL",
                "redis.call('XADD', KEYS[1], '*', 'n', '0') "
                "return redis.call('XREADGROUP', 'GROUP', ARGV[1], 'gone', 'STREAMS', KEYS[1], '>')",
                1, scene.STREAM, scene.GROUP,
            )  # fmt: skip
            await _step(client, clock, step_s)
            await handler.has_started(1)
            await scene.nothing_left(client)
        assert len(await scene.events(client, "recovered")) == 1


async def test_what_runs_is_held_again_where_its_consumer_is_deleted_after_a_step_back(
    clocked: RedisServer, clock: ServerClock
) -> None:
    """Only policy `stream` with a reaper proves that an entry without a delivery was not settled."""
    visibility_s = scaled(6)  # a busy machine may keep a worker from its proof for a while
    settings = {"visibility_timeout": visibility_s, "refresh_s": HOUR_S}
    async with commands_client(clocked.url) as client:
        await scene.create_group(client)
        in_force: Any = {  # settings of a holder that is gone by now
            "policy": "stream",
            "max_deliveries": 3,
            "visibility_ms": round(visibility_s * 1_000),
            "recovery": "reaper",
        }
        await client.hset(scene.KEYS.settings, mapping=in_force)
        await scene.enqueue(client, STRANDED, hold="")
        handler = scene.Handler()
        async with scene.running_worker(clocked.url, handler, **settings) as worker:
            await handler.has_started(STRANDED)
            await _step(client, clock, BACK)
            await client.xgroup_delconsumer(scene.STREAM, scene.GROUP, worker.consumer)

            async def held_again() -> bool:
                rows = await client.execute_command("XPENDING", scene.STREAM, scene.GROUP, "-", "+", 100)
                return [row[1] for row in rows] == [worker.consumer.encode()] * STRANDED

            await wait_until(held_again, "what runs is held again")
            handler.open_gate()
            await scene.nothing_left(client)
        assert set(scene.times(handler.starts).values()) == {1}
        assert (worker.counts.acked, worker.counts.rejected) == (STRANDED, 0)


async def _server_ms(client: Redis) -> int:
    seconds, microseconds = await client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


@pytest.mark.contract
@pytest.mark.only_on(*WITH_CLAIM)
@pytest.mark.parametrize("step_s", [BACK, FORWARD], ids=["back", "forward"])
async def test_a_read_that_claims_takes_nothing_from_the_living_after_a_step(
    clocked: RedisServer, clock: ServerClock, step_s: int
) -> None:
    """Redis gives it deliveries of the future. They are given back, and their owners do not even notice."""
    holds, reads = scene.Handler(), scene.Handler()
    settings = {"recovery": "embedded", "redelivery": "in-place", "refresh_s": 0.2}
    async with commands_client(clocked.url) as client:
        await scene.create_group(client)
        async with scene.running_worker(clocked.url, holds, concurrency=STRANDED, **settings) as owner:
            held = await scene.enqueue(client, STRANDED, hold="")
            await holds.has_started(STRANDED)
            await _step(client, clock, step_s)
            async with scene.running_worker(clocked.url, reads, **settings):
                more = await scene.enqueue(client, STRANDED)
                await reads.has_started(STRANDED)
                holds.open_gate()
                await scene.nothing_left(client)
            assert owner.process is not None
            assert owner.process.counts.rejected == 0
    assert scene.times(holds.completions) == dict.fromkeys(held, 1)
    assert scene.times(reads.starts) == dict.fromkeys(more, 1)
