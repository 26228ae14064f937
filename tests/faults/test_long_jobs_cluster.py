"""A cluster, with jobs that last longer than the visibility timeout: recovery takes none from a live worker.

A dead worker holds jobs of the same group, which have to run again after the fault.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_events
from tests.faults import scene
from tests.faults.deliveries import read_long_ago
from tests.support.beats import let_beat
from tests.support.cluster import Cluster, started_cluster
from tests.support.patience import scaled
from tests.support.tiers import in_matrix
from tests.support.waiting import wait_until
from workers.protocol.connection import commands_client
from workers.protocol.events import EventName
from workers.protocol.keys import GroupKeys, group_keys
from workers.protocol.messages import text

pytestmark = pytest.mark.anyio

VISIBILITY_S = 4.0
LASTS = 1.2
"""How many visibility timeouts the fault lasts: all deliveries look overdue after it."""
WORKERS, SLOTS, STRANDED = 2, 4, 3
REAPER, EMBEDDED = "reaper", "embedded"
RECOVERIES = pytest.mark.parametrize("recovery", [REAPER, in_matrix(EMBEDDED)])

Fault = Callable[[], Awaitable[None]]


async def lasts() -> None:
    """Return after the time of a fault."""
    began = time.monotonic()
    await wait_until(lambda: time.monotonic() - began >= LASTS * scaled(VISIBILITY_S), "the fault is over")


async def enqueue(client: Redis, keys: GroupKeys, number: int) -> set[str]:
    """Add jobs that wait for the gate; return their IDs."""
    return {text(await client.xadd(keys.stream, {"n": n, "hold": ""})) for n in range(number)}


async def nobody_is_robbed(cluster: Cluster, keys: GroupKeys, recovery: str, fault: Fault) -> None:
    """Have full workers run long jobs, and another one die over some, and judge what came of the fault."""
    visibility_s, handler = scaled(VISIBILITY_S), scene.Handler()
    times: dict[str, Any] = {"lease_ttl": scaled(2), "visibility_timeout": visibility_s}
    async with AsyncExitStack() as running:
        client = await running.enter_async_context(commands_client(cluster.url))
        await client.xgroup_create(keys.stream, keys.group, "0", mkstream=True)
        await let_beat(client, keys)
        for _ in range(2 if recovery == REAPER else 0):
            await running.enter_async_context(scene.running_reaper(cluster.url, groups=keys.name, **times))
        settings = {"stream": keys.stream, "recovery": recovery, "visibility_timeout": visibility_s}
        for _ in range(WORKERS):
            worker = scene.running_worker(cluster.url, handler, concurrency=SLOTS, **settings)
            await running.enter_async_context(worker)
        live = await enqueue(client, keys, WORKERS * SLOTS)
        await handler.has_started(WORKERS * SLOTS)
        dead = await enqueue(client, keys, STRANDED)
        assert len(await read_long_ago(client, keys.stream, keys.group, "gone", STRANDED, 0)) == STRANDED
        await fault()
        # A new one: it hears nothing of the slot's former place.
        client = await running.enter_async_context(commands_client(cluster.url))

        async def recovered() -> set[str]:
            return {event.job for event in await read_events(client, keys) if event.event == EventName.RECOVERED}

        async def dead_are_ready() -> bool:
            return dead <= await recovered()

        await wait_until(dead_are_ready, "the dead worker's jobs are recovered")
        assert await recovered() == dead
        handler.open_gate()
        await scene.nothing_left(client, keys)
    assert {job: times for job, times in scene.times(handler.starts).items() if times > 1} == {}
    assert {done.job for done in handler.completions} == live | dead


@RECOVERIES
async def test_a_slot_moves_while_jobs_run(binary: Path, recovery: str) -> None:
    """While it is half moved, neither end serves a heartbeat."""
    with started_cluster(binary) as cluster:
        stream, other = cluster.streams()[:2]
        to = cluster.owner(other)

        async def move() -> None:
            cluster.begin_move(stream, to)
            await lasts()
            cluster.move_keys(stream, to)
            cluster.end_move(stream, to)

        await nobody_is_robbed(cluster, group_keys(stream, scene.GROUP), recovery, move)
        assert cluster.owner(stream) is to


@RECOVERIES
@pytest.mark.matrix
async def test_a_replica_is_promoted_that_lags_behind(binary: Path, recovery: str) -> None:
    """It has received no heartbeat for longer than the visibility timeout, and no beat either."""
    with started_cluster(binary, replicas=1) as cluster:
        home = cluster.owner(scene.NAMESPACE.replicas)
        stream = next(stream for stream in cluster.streams() if cluster.owner(stream) is not home)
        master = cluster.owner(stream)
        replica = cluster.nodes[cluster.nodes.index(master) + len(cluster.masters())]

        async def fail_over() -> None:
            offset = master.replication()["master_repl_offset"]
            await wait_until(
                lambda: replica.replication()["slave_repl_offset"] >= offset, "the replica has all deliveries"
            )
            replica.command("CONFIG", "SET", "cluster-replica-validity-factor", 0)  # else it lags too far behind
            replica.command("CONFIG", "SET", "masterauth", "that-is-refused")
            master.command("CLIENT", "KILL", "TYPE", "replica")
            await lasts()
            master.kill()
            assert await cluster.has_failed_over(stream, master) is replica

        await nobody_is_robbed(cluster, group_keys(stream, scene.GROUP), recovery, fail_over)
