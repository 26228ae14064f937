"""A cluster with streams on every node, under one reaper. Faults of one node, or one slot, do not affect the rest."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_events, read_state, user_fields
from reaper.drill.promises import History, Pairs, check
from reaper.operations.acl import Role, rules_of
from reaper.service import Reaper
from reaper.sharing.ranking import ranked
from tests.faults import scene
from tests.faults.deliveries import read_long_ago
from tests.faults.load import BATCH, Load, jobs_at
from tests.faults.scene import GROUP, OVERDUE_MS
from tests.operator.conftest import run_command
from tests.support.cluster import Cluster, started_cluster
from tests.support.patience import scaled
from tests.support.waiting import wait_until
from workers import Job, Producer, Reject, SyncProducer, Worker
from workers.protocol.calls.declined import GAP_PART
from workers.protocol.connection import commands_client
from workers.protocol.keys import group_keys
from workers.protocol.messages import RecoveryMode, pair_up, read_metadata, text
from workers.runtime.clock import monotonic

pytestmark = pytest.mark.anyio

BEFORE, AFTER = 100, 100
VISIBILITY_S = 3.0
REAPER, EMBEDDED = "reaper", "embedded"


async def judge(load: Load, client: Redis, enqueued: dict[str, Pairs], *, counts_kept: bool = True) -> None:
    """Wait until the work is over, and check it."""
    keys = group_keys(load.stream, GROUP)

    await scene.nothing_left(client, keys)
    history = History(
        enqueued=enqueued,
        state=await read_state(client, keys),
        events=await read_events(client, keys),
        starts=load.starts,
        completions=load.completions,
        visibility_ms=round(scaled(VISIBILITY_S) * 1000),
        counts_kept=counts_kept,
        finished=True,
    )
    assert check(history) == []
    assert set(enqueued) <= {done.job for done in load.completions}


@pytest.fixture(scope="module")
def masters(binary: Path) -> Iterator[Cluster]:
    """Three masters without replicas. Each test leaves its slots anywhere, and uses streams of its own names."""
    with started_cluster(binary) as running:
        yield running


@pytest.fixture
async def client(masters: Cluster) -> AsyncIterator[Redis]:
    for node in masters.nodes:
        node.command("FLUSHALL")
    async with commands_client(masters.url) as client:
        yield client


@asynccontextmanager
async def at_work(url: str, loads: list[Load], *, recovery: str = REAPER) -> AsyncIterator[list[Reaper]]:
    """Run two replicas, unless recovery is embedded, and a worker for each stream."""
    visibility_s = scaled(VISIBILITY_S)
    groups = ",".join(f"{load.stream}/{GROUP}" for load in loads)
    times: dict[str, Any] = {"lease_ttl": scaled(2), "visibility_timeout": visibility_s}
    async with AsyncExitStack() as running:
        reapers = [
            await running.enter_async_context(scene.running_reaper(url, groups=groups, **times))
            for _ in range(2 if recovery == REAPER else 0)
        ]
        for load in loads:
            changes = {"stream": load.stream, "visibility_timeout": visibility_s, "recovery": recovery}
            await running.enter_async_context(scene.running_worker(url, load.handle, **changes))
        yield reapers


async def strand(client: Redis, load: Load, url: str) -> None:
    """Let a consumer that never comes back hold jobs that are long overdue."""
    await client.xgroup_create(load.stream, GROUP, "0", mkstream=True)
    async with Producer(load.stream, url) as producer:
        await load.enqueue(producer, [[(b"n", b"%d" % n)] for n in range(5)])
    assert len(await read_long_ago(client, load.stream, GROUP, "gone", 5, OVERDUE_MS, 1)) == 5


@pytest.mark.parametrize("recovery", [REAPER, EMBEDDED])
async def test_a_slot_moves_under_load(masters: Cluster, client: Redis, recovery: str) -> None:
    loads = [Load(stream) for stream in masters.streams()]
    moving = loads[0]
    to = masters.owner(loads[1].stream)
    for load in loads:
        await strand(client, load, masters.url)
    async with at_work(masters.url, loads, recovery=recovery), anyio.create_task_group() as producing:
        for load in loads:
            producing.start_soon(load.run, masters.url)
        await wait_until(lambda: all(len(load.completions) >= BEFORE for load in loads), "jobs are done")
        masters.begin_move(moving.stream, to)
        half_way = anyio.current_time()
        await wait_until(lambda: all(len(load.done_since(half_way)) >= BATCH for load in loads[1:]), "the rest goes on")
        masters.move_keys(moving.stream, to)
        masters.end_move(moving.stream, to)
        moved_at = anyio.current_time()
        await wait_until(lambda: all(len(load.done_since(moved_at)) >= AFTER for load in loads), "jobs are done again")
        producing.cancel_scope.cancel()
        for load in loads:
            await judge(load, client, load.enqueued)
    assert masters.owner(moving.stream) is to


async def has_settled(reapers: list[Reaper], group: str) -> Reaper:
    """Wait until the replica holds ``group`` that comes first for it. Return it."""
    [first] = [one for one in reapers if one.replica_id == ranked([one.replica_id for one in reapers], group)[0]]
    await wait_until(lambda: group in first.reports() and first.reports()[group].token, "who comes first holds it")
    return first


async def test_a_node_that_hangs_stops_recovery_of_its_own_groups_alone(masters: Cluster, client: Redis) -> None:
    home = masters.owner(scene.NAMESPACE.replicas)
    loads = [Load(stream) for stream in masters.streams()]
    away = next(load for load in loads if masters.owner(load.stream) is not home)
    other = next(load for load in loads if masters.owner(load.stream) is not masters.owner(away.stream))
    node = masters.owner(away.stream)
    async with at_work(masters.url, [away, other]) as reapers:
        group, served = group_keys(away.stream, GROUP).name, group_keys(other.stream, GROUP)
        holder = await has_settled(reapers, group)
        await has_settled(reapers, served.name)
        await wait_until(lambda: holder.reports()[group].last_full_scan_ms, "all is scanned")
        settings = group_keys(away.stream, GROUP).settings
        await wait_until(lambda: client.hexists(settings, "beat"), "heartbeats are served")
        paused_at = monotonic()
        node.pause()
        try:
            await wait_until(lambda: group in holder._tenures.errors(), "the holder has missed the node")
            async with Producer(other.stream, masters.url) as producer:
                await other.enqueue(producer, [[(b"n", b"1")]])
            await judge(other, client, other.enqueued)
            counts_s = scaled(VISIBILITY_S) / GAP_PART
            await wait_until(lambda: monotonic() - paused_at > counts_s, "it is away for long enough to count")
        finally:
            node.resume()

        async def gap_ms(stream: str) -> int:
            wait = await scene.recovery_waits(client, group_keys(stream, GROUP))
            return wait.gap_ms if wait else 0

        hung_ms = await wait_until(lambda: gap_ms(away.stream), "the groups of the node wait")
        assert await gap_ms(other.stream) < hung_ms  # a busy machine may leave a shorter gap there


def worker_that_rejects(url: str, stream: str) -> AbstractAsyncContextManager[Worker]:
    """Return a worker that makes a dead letter of every job."""

    async def reject(_job: Job) -> None:
        raise Reject("no")

    return scene.running_worker(url, reject, stream=stream, visibility_timeout=5)


async def test_operators_commands_find_what_lies_on_every_node(masters: Cluster, client: Redis) -> None:
    streams = masters.streams()
    groups = [f"{stream}/{GROUP}" for stream in streams]
    run = partial(run_command, masters.url, REAPER_GROUPS=",".join(groups), REAPER_VISIBILITY_TIMEOUT="5")
    made = await run("groups", "create", *groups)
    assert made.out.count("created") == len(groups), made.out + made.err
    doctor = await run("doctor", "-o", "json")
    assert doctor.code in (0, 1), doctor.err  # a server of tests has its warnings
    for group, stream in zip(groups, streams, strict=True):
        assert (await run("groups", "pause", group)).code == 0
        assert await client.hget(group_keys(stream, GROUP).settings, "paused") == b"1"
        letters = await run("dead-letters", "list", group)
        assert letters.code == 0, letters.err
    status = await run("status", "-o", "json")
    assert [(group["group"], group["paused"]) for group in status.data["groups"]] == [(one, True) for one in groups]
    for group, stream in zip(groups, streams, strict=True):
        with SyncProducer(stream, masters.url) as producer:
            job = producer.enqueue({"n": "1"})
        explained = await run("explain", job, "--group", group)
        assert explained.code == 0, explained.err
        worker = worker_that_rejects(masters.url, stream)
        assert (await run("groups", "resume", group)).code == 0
        async with worker:
            dead = group_keys(stream, GROUP).dead
            await wait_until(partial(client.xlen, dead), "it is a dead letter")
        assert (await run("dead-letters", "redrive", group, "--all")).code == 0
        rows: Any = await client.execute_command("XRANGE", stream, "-", "+")
        ((entry_id, flat),) = rows  # the entry of the dead letter is gone
        assert (text(read_metadata(entry_id, pair_up(flat)).job_id), user_fields(flat)) == (job, [(b"n", b"1")])
        forgotten = await run("groups", "forget", group, "--yes")
        assert forgotten.code == 0, forgotten.err
        assert not await client.exists(group_keys(stream, GROUP).settings)


async def test_the_rights_that_are_printed_are_enough(masters: Cluster, client: Redis) -> None:
    load = Load(masters.streams()[0])
    await client.xgroup_create(load.stream, GROUP, "0", mkstream=True)
    urls = {}
    for role in (Role.REAPER, Role.WORKER, Role.PRODUCER):
        groups = [group_keys(load.stream, GROUP)]
        rules = rules_of(role, RecoveryMode.REAPER, groups, [scene.NAMESPACE])
        for node in masters.nodes:
            node.command("ACL", "SETUSER", role.value, "reset", "on", ">secret", *rules.words)
        urls[role] = masters.url.replace("://", f"://{role.value}:secret@")
    names: dict[str, Any] = {"groups": f"{load.stream}/{GROUP}", "visibility_timeout": scaled(VISIBILITY_S)}
    async with (
        scene.running_reaper(urls[Role.REAPER], **names) as reaper,
        scene.running_worker(
            urls[Role.WORKER], load.handle, stream=load.stream, visibility_timeout=scaled(VISIBILITY_S)
        ),
        Producer(load.stream, urls[Role.PRODUCER]) as producer,
    ):
        await load.enqueue(producer, [[(b"n", b"1")]])
        await judge(load, client, load.enqueued)
        await scene.holds(reaper)
        assert reaper.denials == []


# ---- replicas


@pytest.mark.matrix
@pytest.mark.parametrize("recovery", [REAPER, EMBEDDED])
async def test_a_master_is_killed_under_load(binary: Path, recovery: str) -> None:
    with started_cluster(binary, replicas=1) as cluster:
        async with commands_client(cluster.url) as client:
            loads = [Load(stream) for stream in cluster.streams()]
            home = cluster.owner(scene.NAMESPACE.replicas)
            struck = next(load for load in loads if cluster.owner(load.stream) is not home)
            before = cluster.owner(struck.stream)
            replica = cluster.nodes[cluster.nodes.index(before) + 3]
            async with at_work(cluster.url, loads, recovery=recovery), anyio.create_task_group() as producing:
                for load in loads:
                    producing.start_soon(load.run, cluster.url)
                await wait_until(lambda: all(len(load.completions) >= BEFORE for load in loads), "jobs are done")
                gone_at = anyio.current_time()
                before.kill()
                kept = jobs_at(replica, struck.stream)
                assert await cluster.has_failed_over(struck.stream, before) is replica
                back_at = anyio.current_time()
                others = [load for load in loads if load is not struck]
                assert all(load.done_since(gone_at) for load in others)
                await wait_until(lambda: all(len(load.done_since(back_at)) >= AFTER for load in loads), "jobs are done")
                producing.cancel_scope.cancel()
                for load in others:
                    await judge(load, client, load.enqueued)
                await judge(struck, client, kept | struck.since(gone_at), counts_kept=False)


async def test_streams_of_a_pattern_are_found_on_every_node(masters: Cluster, client: Redis) -> None:
    loads = [Load(f"jobs:{stream}") for stream in masters.streams()]
    for load in loads[:-1]:
        await strand(client, load, masters.url)
    times: dict[str, Any] = {"lease_ttl": scaled(2), "visibility_timeout": scaled(VISIBILITY_S)}
    pattern = f"jobs:*/{GROUP}"
    async with AsyncExitStack() as running:
        reaper = await running.enter_async_context(
            scene.running_reaper(masters.url, groups=pattern, discovery_interval=0.2, **times)
        )
        await wait_until(lambda: len(reaper.watched) == len(loads) - 1, "all streams are found")
        await strand(client, loads[-1], masters.url)
        async with AsyncExitStack() as working:
            for load in loads:
                changes = {"stream": load.stream, "visibility_timeout": times["visibility_timeout"]}
                await working.enter_async_context(scene.running_worker(masters.url, load.handle, **changes))
            for load in loads:
                await judge(load, client, load.enqueued)
        for load in loads:
            await client.delete(load.stream)
        await wait_until(lambda: reaper.watched == (), "all are dropped")
