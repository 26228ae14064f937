"""The master goes, and Sentinels promote a replica. No process restarts, and no job is lost that Redis has kept.

Writes that the promoted replica had not received yet are gone with the master. Its jobs are read from it while it
receives no more, between the end of the master and its own promotion.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from reaper.drill.promises import Pairs
from reaper.failpoints import arm
from tests.faults import scene
from tests.faults.load import Load, jobs_at
from tests.faults.reapers import Case, claimed, holding, quick_settings, replica_of, start_replica
from tests.faults.test_paused_holder import Stalled
from tests.support.patience import scaled
from tests.support.processes import Processes
from tests.support.sentinel import Setup, started_setup
from tests.support.servers import RedisServer
from tests.support.tiers import in_matrix
from tests.support.waiting import answers, wait_until
from workers.protocol.connection import commands_client

pytestmark = pytest.mark.anyio

BEFORE, AFTER = 300, 300
"""Jobs that are done before the master goes, and of those that were enqueued since."""
GAP_S = 2.0
"""Jobs run again so long after a replica was promoted, at the latest."""
VISIBILITY_S = 3.0

Fault = Callable[[RedisServer], None]


@pytest.fixture
def setup(binary: Path) -> Iterator[Setup]:
    """A master, two replicas and three Sentinels."""
    with started_setup(binary) as running:
        yield running


@pytest.fixture
async def client(setup: Setup) -> AsyncIterator[Redis]:
    async with commands_client(setup.url) as client:
        yield client


async def run_through(setup: Setup, client: Redis, fault: Fault, *, embedded: bool) -> None:
    """Have ``fault`` befall the master under load, and judge what came of it."""
    load, before = Load(scene.STREAM), setup.master
    visibility_s = scaled(VISIBILITY_S)
    times: dict[str, Any] = {"lease_ttl": scaled(2), "visibility_timeout": visibility_s}
    async with AsyncExitStack() as running:
        for _ in range(0 if embedded else 2):
            await running.enter_async_context(scene.running_reaper(setup.url, **times))
        for _ in range(2):
            changes = {"visibility_timeout": visibility_s, "recovery": "embedded" if embedded else "reaper"}
            await running.enter_async_context(scene.running_worker(setup.url, load.handle, **changes))
        async with anyio.create_task_group() as producing:
            producing.start_soon(load.run, setup.url)
            await wait_until(lambda: len(load.completions) >= BEFORE, "jobs are done")
            gone_at = anyio.current_time()
            fault(before)
            received = {node.port: jobs_at(node, scene.STREAM) for node in setup.nodes if node is not before}
            after = await setup.has_failed_over(before)
            promoted_at = anyio.current_time()
            await wait_until(lambda: len(load.done_since(gone_at)) >= AFTER, "jobs are done again")
            producing.cancel_scope.cancel()
        gap_s = load.done_since(gone_at)[0] - promoted_at
        assert gap_s <= scaled(GAP_S), f"{gap_s:.1f} s; the promotion took {promoted_at - gone_at:.1f} s"
        kept = received[after.port] | load.since(gone_at)
        await judge(client, load, kept, visibility_s)
        if before.running:
            before.resume()
            await setup.is_replica(before)
            await judge(client, load, kept, visibility_s)


async def judge(client: Redis, load: Load, kept: dict[str, Pairs], visibility_s: float) -> None:
    """Wait until the work is over, and check it."""
    await scene.nothing_left(client)
    handler = scene.Handler(load.starts, load.completions)
    # Counts on the old master alone are lost.
    facts: dict[str, Any] = {"visibility_ms": round(visibility_s * 1000), "counts_kept": False, "finished": True}
    assert await scene.violations(client, kept, [handler], **facts) == []
    assert set(kept) <= set(load.done_at)


@pytest.mark.parametrize("embedded", [False, in_matrix(True)])
async def test_a_master_is_killed_under_load(setup: Setup, client: Redis, embedded: bool) -> None:
    await run_through(setup, client, RedisServer.kill, embedded=embedded)


@pytest.mark.matrix
@pytest.mark.parametrize("embedded", [False, True])
async def test_a_master_hangs_under_load_and_comes_back(setup: Setup, client: Redis, embedded: bool) -> None:
    await run_through(setup, client, RedisServer.pause, embedded=embedded)


@pytest.mark.matrix
@pytest.mark.processes
@pytest.mark.parametrize("fault", [RedisServer.kill, RedisServer.pause])
async def test_a_holder_that_was_paused_over_a_failover_changes_nothing(
    setup: Setup, client: Redis, processes: Processes, tmp_path: Path, fault: Fault
) -> None:
    """It goes on as its master does, if that one does, with a write that was due when both were paused."""
    before = setup.master
    stalled = Stalled(await Case.prepared(before, client))
    await stalled.prepare()
    arm(tmp_path, "recover.before_write", "stop")
    first = start_replica(processes, setup, failpoints=tmp_path)
    assert await claimed(tmp_path, "recover.before_write") == first.pid
    holder = replica_of(await stalled.case.holder())
    assert await client.wait(len(setup.nodes) - 1, 0) == len(setup.nodes) - 1
    fault(before)
    await setup.has_failed_over(before)
    await wait_until(lambda: answers(client), "the new master answers")
    await stalled.case.end_lease()
    async with holding(quick_settings(setup), before=holder) as second:

        async def recovered() -> bool:
            return stalled.is_recovered(await stalled.case.state())

        await wait_until(recovered, "the second replica has recovered what was left")
        done = await stalled.case.recovered()
        before.resume()
        first.resume()
        await first.prints("lease left: group=orders/billing token=1 reason=not_ours")
        assert (await stalled.case.recovered(), second.reaper.held) == (done, 1)
        if before.running:
            await setup.is_replica(before)
        await stalled.finish()
    assert first.running


@pytest.mark.matrix
async def test_a_dead_letter_that_no_replica_had_received_is_forgotten_with_the_end_of_its_delivery(
    setup: Setup, client: Redis
) -> None:
    """One script writes both, so the job is pending if there is no dead letter. Only producers need replicas."""
    before, visibility_s = setup.master, scaled(VISIBILITY_S)
    replicas = [node for node in setup.nodes if node is not before]
    handler = scene.Handler()
    changes: dict[str, Any] = {"visibility_timeout": visibility_s, "recovery": "embedded"}
    async with scene.running_worker(setup.url, handler, **changes):
        jobs = await scene.enqueue(client, reject="", hold="")
        await handler.has_started(1)
        pending = ("XPENDING", scene.STREAM, scene.GROUP)
        await wait_until(lambda: all(node.command(*pending)["pending"] for node in replicas), "they have the delivery")
        for replica in replicas:
            replica.command("CONFIG", "SET", "masterauth", "that-is-refused")
        before.command("CLIENT", "KILL", "TYPE", "replica")
        handler.open_gate()
        await wait_until(lambda: client.xlen(scene.KEYS.dead), "the job is given up")
        assert [node.command("XLEN", scene.KEYS.dead) for node in replicas] == [0, 0]
        before.kill()
        for replica in replicas:
            replica.command("CONFIG", "SET", "masterauth", "")
        after = await setup.has_failed_over(before)
        await wait_until(lambda: after.command("XLEN", scene.KEYS.dead), "the job is given up again")
        await scene.nothing_left(client)
        facts: dict[str, Any] = {"visibility_ms": round(visibility_s * 1000), "counts_kept": False, "finished": True}
        assert await scene.violations(client, jobs, [handler], **facts) == []
    assert (len(handler.starts), after.command("XLEN", scene.KEYS.dead)) == (2, 1)
