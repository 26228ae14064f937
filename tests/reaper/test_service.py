"""A replica inside a program, with its life, its reports, its registration, and its traces in Redis."""

import asyncio
import logging
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from reaper.drill.history import read_events
from reaper.lease import PAGE
from reaper.metrics import ReplicaMetrics
from reaper.recovery.group_watch import GroupWatch
from reaper.replicas import Replica
from reaper.service import Reaper
from reaper.settings import ReaperSettings
from tests.conftest import StartProxy
from tests.scripts.scene import Scene, entry_id
from tests.support.beats import let_beat_of
from tests.support.paced import PacedSettings
from tests.support.servers import RedisServer, free_port, shown
from tests.support.waiting import wait_until
from workers import Job, Worker
from workers.protocol.errors import UnreachableError
from workers.protocol.keys import group_keys, namespace_keys

pytestmark = pytest.mark.anyio

KEYS = namespace_keys("reaper")
LEASE = group_keys("orders", "billing").lease


def settings_for(server: Any, **given: Any) -> ReaperSettings:
    """Times are long, so that events come from the test only. Heartbeats look as if they were served for long."""
    fixed = {"redis_url": server.url, "groups": "orders/billing", "lease_ttl": 60, "tick_interval": 0.05}
    settings = PacedSettings(**(fixed | given))
    let_beat_of(server.url, [group.keys for group in settings.watched])
    return settings


@pytest.fixture
async def scene(client: Redis) -> Scene:
    """A stream ``orders`` with a group ``billing`` that no leader has served yet."""
    prepared = Scene(client)
    await prepared.prepare(lease=None)
    return prepared


async def holding(reaper: Reaper) -> int:
    """Wait until it holds a group. Return the token of the term."""
    await wait_until(lambda: reaper.held, "it holds the group")
    return max(report.token for report in reaper.reports().values())


async def recovered(client: Redis, count: int, group: str = "billing") -> None:
    async def enough() -> bool:
        return int(await client.hget(group_keys("orders", group).settings, "recovered") or 0) >= count

    await wait_until(enough, f"{count} are recovered")


async def alone(client: Redis) -> bool:
    """Return whether this client is the only connected one."""
    connections: Any = await client.client_list()
    return len(connections) == 1


# ---- life


async def test_inside_the_block_it_takes_part_and_after_it_nothing_is_left(server: RedisServer, client: Redis) -> None:
    async with Reaper(settings_for(server)) as reaper:
        assert await holding(reaper) == 1
        holder: Any = await client.get(LEASE)
        assert holder.startswith(reaper.replica_id.encode() + b".")
    assert not reaper.held
    assert await client.exists(LEASE, KEYS.replicas, KEYS.live) == 0


async def test_stop_ends_run(server: RedisServer) -> None:
    reaper = Reaper(settings_for(server))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reaper.run)
        await holding(reaper)
        reaper.stop()
    assert not reaper.held


async def test_a_stop_before_run_keeps_it_from_beginning(server: RedisServer, client: Redis) -> None:
    reaper = Reaper(settings_for(server))
    await client.flushdb()
    reaper.stop()
    await reaper.run()
    assert await client.keys("*") == []


async def test_one_that_ends_unasked_says_so(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is cancelled without a reason ends all others, as if the program wanted it. So it is an error."""

    async def cancelled_by_nobody(_metrics: ReplicaMetrics) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(ReplicaMetrics, "run", cancelled_by_nobody)
    with pytest.raises(RuntimeError, match="reaper stopped unexpectedly"):
        await Reaper(settings_for(server)).run()


async def test_an_instance_runs_once(server: RedisServer) -> None:
    reaper = Reaper(settings_for(server))
    async with reaper:
        pass
    with pytest.raises(RuntimeError, match=r"runs once\. Make a new one"):
        await reaper.run()


async def test_an_error_of_the_block_comes_out_as_it_is(server: RedisServer, client: Redis) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block's own error
        async with Reaper(settings_for(server)) as reaper:
            await holding(reaper)
            raise ZeroDivisionError
    assert await client.exists(LEASE) == 0


async def test_redis_out_of_reach_is_said_at_once_and_disturbs_nothing_around_it() -> None:
    async with anyio.create_task_group() as around:
        around.start_soon(anyio.lowlevel.checkpoint)
        with pytest.raises(UnreachableError, match="cannot use Redis at"):
            async with Reaper(ReaperSettings(redis_url=f"redis://127.0.0.1:{free_port()}/0")):
                pytest.fail("it took part without a Redis")
        await anyio.lowlevel.checkpoint()
    assert not around.cancel_scope.cancel_called


async def test_a_hung_redis_does_not_keep_it_from_stopping_nor_its_connections_open(
    server: RedisServer, proxy: StartProxy, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reaper.service.FAREWELL_S", 0.1)
    monkeypatch.setattr("reaper.sharing.tenure.LEAVE_S", 0.1)
    through = await proxy(server)
    async with Reaper(settings_for(server, redis_url=through.url)) as reaper:
        await holding(reaper)
        through.blackhole()
    await through.mend()
    await wait_until(lambda: alone(client), "only the test's own connection is left")


# ---- serving


async def test_what_happens_is_logged_in_order(
    server: RedisServer, client: Redis, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reaper.sharing.tenure")
    caplog.set_level(logging.INFO, "workers.upkeep")
    await scene.stalled("n", "1", consumer="gone")
    async with Reaper(settings_for(server)):
        await recovered(client, 1)
        await wait_until(lambda: any("recovered" in line for line in caplog.messages), "it is logged")
    of = "group=orders/billing"
    assert [line for line in caplog.messages if of in line] == [
        f"lease taken: {of} token=1",
        f"recovered stalled deliveries: {of} consumers=gone redelivered=1",
        f"lease left: {of} token=1 reason=stopped",
    ]


@pytest.mark.usefixtures("scene")
async def test_a_full_scan_that_keeps_failing_is_repeated_more_and_more_seldom(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def fail(watch: GroupWatch) -> None:
        pauses.append(watch._next_full_s - watch._scanned_s)
        raise ResponseError("MISCONF")

    monkeypatch.setattr("reaper.recovery.group_watch.FULL_RETRY_S", 0.001)
    monkeypatch.setattr(GroupWatch, "_scan_fully", fail)
    async with Reaper(settings_for(server)):
        await wait_until(lambda: len(pauses) > 4, "it tries again")
    assert pauses[1:5] == pytest.approx([0.001, 0.002, 0.004, 0.008])


async def test_a_quarantined_job_is_released(server: RedisServer, client: Redis, scene: Scene) -> None:
    stalled = await scene.stalled(times=2)

    async def released() -> list[str]:
        events = await read_events(client, scene.keys)
        return [event.job for event in events if event.data.get("reason") == "released"]

    async with Reaper(settings_for(server)):
        assert await wait_until(released, "the quarantined job is out") == [stalled]


@pytest.mark.usefixtures("scene")
async def test_what_stalls_in_the_retry_stream_is_recovered_too(
    server: RedisServer, client: Redis, scene: Scene
) -> None:
    retry = scene.keys.retry
    await client.xgroup_create(retry, "billing", "0", mkstream=True)
    await scene.deliver(await scene.add("n", 1, stream=retry), stream=retry)
    async with Reaper(settings_for(server, redelivery="retry-stream")):
        await recovered(client, 1)
    assert (await scene.pending(retry), await client.xlen(retry)) == ([], 1)


async def test_a_new_term_looks_after_quarantined_jobs_that_were_out_before_it(
    server: RedisServer, client: Redis, scene: Scene
) -> None:
    await client.hset(scene.keys.quarantine, entry_id(1), "stream")  # settled without a leader
    async with Reaper(settings_for(server)):
        await wait_until(lambda: _is_gone(client, scene.keys.quarantine), "it is not out any more")


async def _is_gone(client: Redis, key: str) -> bool:
    return await client.exists(key) == 0


async def test_group_settings_that_were_lost_are_written_again_in_the_same_term(
    server: RedisServer, client: Redis, scene: Scene
) -> None:
    async with Reaper(settings_for(server)) as reaper:
        token = await holding(reaper)
        await client.delete(scene.keys.settings)
        await wait_until(
            lambda: client.hget(scene.keys.settings, "visibility_ms"), "the group settings are there again"
        )
        assert (token, max(report.token for report in reaper.reports().values())) == (1, 1)


async def test_a_replica_that_finds_another_holder_ends_its_term(
    server: RedisServer, client: Redis, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reaper")
    async with Reaper(settings_for(server, tick_interval=0.05)) as reaper:
        await holding(reaper)
        await client.set(scene.keys.lease, "bob.0@60000", px=60_000)
        await scene.stalled()
        await wait_until(lambda: not reaper.held, "its term is over")
    assert "lease left: group=orders/billing token=1 reason=not_ours" in caplog.messages


async def test_a_rejected_write_ends_the_term_before_the_next_tick(
    server: RedisServer,
    client: Redis,
    scene: Scene,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "reaper")
    ask, asked = GroupWatch._ask, list[GroupWatch]()

    def ask_once(watch: GroupWatch) -> None:
        if not asked:
            asked.append(watch)
            ask(watch)

    monkeypatch.setattr(GroupWatch, "_ask", ask_once)
    async with Reaper(settings_for(server)) as reaper:
        await wait_until(
            lambda: any(report.last_full_scan_ms for report in reaper.reports().values()), "its only tick is over"
        )
        await client.set(scene.keys.lease, "bob.0@60000", px=60_000)
        await client.publish(scene.keys.schedule, "0")  # it looks for due jobs
        await wait_until(lambda: not reaper.held or caplog.text.count("write fenced") > 1, "its write is rejected")
        assert not reaper.held
    assert "lease left: group=orders/billing token=1 reason=not_ours" in caplog.messages


# ---- registration


async def registered(client: Redis) -> dict[str, Replica]:
    heartbeats: Any = await client.hgetall(KEYS.replicas)
    return {replica_id.decode(): Replica.from_json(heartbeat) for replica_id, heartbeat in heartbeats.items()}


async def test_replicas_register_what_they_are_and_what_they_hold(server: RedisServer, client: Redis) -> None:
    async def both() -> bool:
        found = (await registered(client)).values()
        return len(found) == 2 and sum(replica.held for replica in found) == 1

    async with Reaper(settings_for(server, name="a")) as one, Reaper(settings_for(server, name="b")) as other:
        await wait_until(both, "one holds the group")
        found = await registered(client)
    assert set(found) == {one.replica_id, other.replica_id}
    assert {replica.name for replica in found.values()} == {"a", "b"}
    assert {replica.watched for replica in found.values()} == {1}
    assert {replica.server for replica in found.values()} == {shown(server.binary)}
    assert len({replica.settings for replica in found.values()}) == 1


async def test_who_leaves_unregisters_and_the_others_stay(server: RedisServer, client: Redis) -> None:
    async def two() -> bool:
        return len(await registered(client)) == 2

    async with Reaper(settings_for(server)) as stays:
        await wait_until(lambda: registered(client), "it is registered")
        async with Reaper(settings_for(server)):
            await wait_until(two, "both are")
        assert list(await registered(client)) == [stays.replica_id]


async def test_a_tick_reads_all_new_deliveries_and_not_only_a_page(server: RedisServer, scene: Scene) -> None:
    client, number = scene.client, 3 * PAGE
    rarely = {"visibility_timeout": 86_400, "lease_ttl": 3_600, "tick_interval": 600, "full_scan_interval": 3_600}
    async with Reaper(settings_for(server, **rarely)) as reaper:
        await holding(reaper)
        watch = reaper._tenures._tenures["orders/billing"]._watch
        assert watch
        await wait_until(lambda: watch.report().last_full_scan_ms, "it has scanned everything")
        for n in range(number):
            await client.xadd("orders", {"n": n})
        await client.xreadgroup("billing", "w1", {"orders": ">"}, count=number)
        watch._tick()
        await wait_until(lambda: watch.report().timers == number, "one tick has found all of them")


# ---- together with a worker


async def test_reaper_and_worker_in_one_process_finish_the_job_of_a_worker_that_died(
    server: RedisServer, scene: Scene
) -> None:
    stalled = await scene.stalled("n", "1", consumer="died")
    done: list[tuple[str, int]] = []
    worker = Worker("orders", "billing", redis_url=server.url)

    @worker.handler
    async def handle(job: Job) -> None:
        done.append((job.id, job.deliveries))

    async with Reaper(settings_for(server)), anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await wait_until(lambda: done, "the job is run")
        worker.stop()
    assert done == [(stalled, 2)]
    assert await scene.pending() == []


# ---- stress


async def test_many_starts_and_stops_leave_no_task_connection_or_key_behind(server: RedisServer, scene: Scene) -> None:
    client = scene.client
    before = asyncio.all_tasks()
    for turn in range(40):
        reaper = Reaper(settings_for(server))
        async with reaper:
            if turn % 4 == 0:
                await wait_until(lambda: client.exists(LEASE), "it holds the group")
            for _ in range(turn):
                await anyio.lowlevel.checkpoint()
    assert asyncio.all_tasks() == before
    assert sorted(await client.keys("*")) == sorted(key.encode() for key in ("orders", scene.keys.settings))
    await wait_until(lambda: alone(client), "only the test's own connection is left")


@pytest.mark.usefixtures("scene")
async def test_disabled_recovery_and_its_end_are_registered_at_once(server: RedisServer, client: Redis) -> None:
    await client.xgroup_create("orders", "audit", "0")

    async def disabled() -> str | None:
        reports = [one.groups["orders/billing"] for one in (await registered(client)).values() if one.held]
        return reports[0].disabled if reports else None

    async with Reaper(settings_for(server, heartbeat_interval=3_600, visibility_timeout=1, tick_interval=0.05)):

        async def is_disabled() -> bool:
            return await disabled() == "several_groups"

        await wait_until(is_disabled, "that is registered")
        await client.xgroup_destroy("orders", "audit")
        await client.xadd("orders", {"n": 1})
        await client.xreadgroup("billing", "gone", {"orders": ">"})  # the call for stalled deliveries is not rejected

        async def is_served() -> bool:
            return await disabled() == ""

        await wait_until(is_served, "its end is registered")
