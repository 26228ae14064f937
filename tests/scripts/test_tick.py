"""tick.lua: the holder extends its lease, notes a beat, and learns new and due deliveries."""

from typing import Any

import pytest

from tests.scripts.leases import HOUR_MS, TTL_MS, found, holder_of, take, tick
from tests.scripts.scene import QUARANTINE_SCORE, Scene
from tests.support.servers import RedisServer
from workers.protocol.connection import commands_client

pytestmark = pytest.mark.anyio

IDLE = [-1, 1, [], [], b""]
"""A tick that finds nothing to do."""
A, B = holder_of("alice", "a", HOUR_MS), holder_of("bob", "b", HOUR_MS)


@pytest.fixture
async def scene(scene: Scene) -> Scene:
    """A group whose lease alice holds for an hour."""
    await scene.client.delete(scene.keys.lease)
    await take(scene, A, ttl_ms=HOUR_MS)
    return scene


async def tick_of_alice(scene: Scene, **options: Any) -> Any:
    return await tick(scene, A, ttl_ms=HOUR_MS, **options)


# ---- the lease


async def test_an_idle_tick_extends_the_lease(scene: Scene) -> None:
    await scene.client.pexpire(scene.keys.lease, HOUR_MS // 2)
    before = await scene.state()
    assert await tick_of_alice(scene) == IDLE
    assert await scene.client.pttl(scene.keys.lease) > HOUR_MS // 2
    assert await scene.state() == before


@pytest.mark.parametrize("lease", [None, B, "offer:alice", "alice", A[:-1], holder_of("alice", "b", HOUR_MS)])
async def test_whose_lease_it_is_not_gets_0_and_nothing_is_written(scene: Scene, lease: str | None) -> None:
    await scene.stalled()
    await scene.client.delete(scene.keys.lease)
    if lease is not None:
        await scene.client.set(scene.keys.lease, lease, px=TTL_MS)
    await scene.set_settings(beat="5", unbroken="4")
    before = await scene.state(), await scene.client.hgetall(scene.keys.settings)
    assert await tick_of_alice(scene) == 0
    assert (await scene.state(), await scene.client.hgetall(scene.keys.settings)) == before
    assert await scene.client.pttl(scene.keys.lease) <= TTL_MS


# ---- the beat


async def test_a_tick_notes_a_beat(scene: Scene) -> None:
    await scene.set_settings(beat="5", unbroken="4")
    await tick_of_alice(scene)
    beat = int(await scene.client.hget(scene.keys.settings, "beat") or 0)
    assert abs(beat - await scene.now_ms()) < 5_000
    assert int(await scene.client.hget(scene.keys.settings, "gap") or 0) > 0


async def test_without_the_group_there_is_no_beat_and_the_lease_is_ours_all_the_same(scene: Scene) -> None:
    await scene.client.xgroup_destroy("orders", "billing")
    await scene.client.pexpire(scene.keys.lease, HOUR_MS // 2)
    *_, error = await tick_of_alice(scene)
    assert b"NOGROUP" in error
    assert await scene.client.hget(scene.keys.settings, "beat") is None
    assert await scene.client.pttl(scene.keys.lease) > HOUR_MS // 2


@pytest.mark.parametrize("command", ["xpending", "xrange", "xclaim", "hset"])
async def test_where_a_heartbeat_is_denied_a_tick_notes_no_beat(
    scene: Scene, server: RedisServer, command: str
) -> None:
    await scene.set_settings(beat="5", unbroken="4")
    await scene.client.execute_command("ACL", "SETUSER", "w", "reset", "on", ">x", "~*", "&*", "+@all", f"-{command}")
    async with commands_client(server.url.replace("redis://", "redis://w:x@")) as user:
        *_, error = await tick(Scene(user), A, ttl_ms=HOUR_MS)
    assert error
    assert await scene.client.hget(scene.keys.settings, "beat") == b"5"


# ---- new deliveries


async def test_pending_entries_behind_a_position_are_told(scene: Scene) -> None:
    ids = [await scene.stalled() for _ in range(4)]
    due_ms, has_settings, rows, retry_rows, error = await tick_of_alice(scene, after=f"({ids[0]}", page=2)
    assert (due_ms, has_settings, retry_rows, error) == (-1, 1, [], b"")
    assert [(row[0].decode(), row[1], row[3]) for row in rows] == [(one, b"w1", 1) for one in ids[1:3]]
    assert await tick_of_alice(scene, after=f"({ids[-1]}") == IDLE
    assert not await scene.client.exists(scene.keys.journal)


async def test_those_of_the_retry_stream_are_told_where_it_is_asked_for(scene: Scene) -> None:
    await take(scene, A, ttl_ms=HOUR_MS, policy="retry-stream")
    copy = await scene.add(stream=scene.keys.retry)
    await scene.deliver(copy, stream=scene.keys.retry)
    assert await tick_of_alice(scene) == IDLE
    _, _, rows, retry_rows, error = await tick_of_alice(scene, retry_after="-")
    assert (rows, [row[0].decode() for row in retry_rows], error) == ([], [copy], b"")


async def test_a_lost_retry_stream_hides_nothing_of_the_stream(scene: Scene) -> None:
    stalled = await scene.stalled()
    _, _, rows, retry_rows, error = await tick_of_alice(scene, retry_after="-")
    assert ([row[0].decode() for row in rows], retry_rows, b"NOGROUP" in error) == ([stalled], [], True)


# ---- due deliveries


async def schedule(scene: Scene, key: str, in_ms: int, member: str = "job") -> None:
    await scene.client.zadd(key, {member: await scene.now_ms() + in_ms})


async def due_ms(scene: Scene) -> int:
    """Return when something is due, -1 = never."""
    reply = await tick_of_alice(scene)
    return -1 if reply == 1 else int(reply[0])


@pytest.mark.parametrize("which", ["schedule", "stream_schedule"])
async def test_a_tick_says_when_the_first_scheduled_job_is_due(scene: Scene, which: str) -> None:
    key: str = getattr(scene.keys, which)
    await schedule(scene, key, 60_000, "later")
    assert 50_000 < await due_ms(scene) <= 60_000
    await schedule(scene, key, 30_000)
    assert 20_000 < await due_ms(scene) <= 30_000
    other = {"schedule": scene.keys.stream_schedule, "stream_schedule": scene.keys.schedule}[which]
    await schedule(scene, other, 10_000)
    assert 0 < await due_ms(scene) <= 10_000, "the earlier one of both schedules counts"
    await schedule(scene, key, -1, "late")
    assert await due_ms(scene) == 0


@pytest.mark.parametrize("others_in_ms", [None, 60_000])
async def test_a_quarantined_job_that_waits_is_due_at_once(scene: Scene, others_in_ms: int | None) -> None:
    await scene.client.zadd(scene.keys.schedule, {"quarantined": QUARANTINE_SCORE + 7})
    if others_in_ms is not None:
        await schedule(scene, scene.keys.schedule, others_in_ms)
    assert await due_ms(scene) == 0


# ---- a fault in the group does not cost the lease


@pytest.mark.parametrize("which", ["stream", "schedule", "stream_schedule"])
async def test_a_key_of_another_type_costs_no_lease(scene: Scene, which: str) -> None:
    key: str = getattr(scene.keys, which)
    await scene.client.delete(key)
    await scene.client.set(key, "in the way")
    await scene.client.pexpire(scene.keys.lease, HOUR_MS // 2)
    *_, error = await tick_of_alice(scene)
    assert b"WRONGTYPE" in error
    assert await scene.client.pttl(scene.keys.lease) > HOUR_MS // 2


async def test_one_schedule_of_another_type_does_not_hide_the_other(scene: Scene) -> None:
    await scene.client.set(scene.keys.stream_schedule, "in the way")
    await schedule(scene, scene.keys.schedule, -1)
    assert (await tick_of_alice(scene))[0] == 0


async def test_lost_settings_are_noticed(scene: Scene) -> None:
    await scene.client.delete(scene.keys.settings)
    due, has_settings, rows, retry_rows, error = await tick_of_alice(scene)
    assert (due, has_settings, rows, retry_rows, error) == (-1, 0, [], [], b"")
    assert await found(scene) == A


async def test_a_lease_can_be_extended_when_memory_is_full(scene: Scene) -> None:
    await scene.client.pexpire(scene.keys.lease, HOUR_MS // 2)
    await scene.fill_memory()
    reply = await tick_of_alice(scene)
    await scene.free_memory()
    assert reply == IDLE
    assert await scene.client.pttl(scene.keys.lease) > HOUR_MS // 2


# ---- before a full scan


async def test_before_a_full_scan_it_tells_where_the_journal_ends_and_whether_there_is_a_retry_stream(
    scene: Scene,
) -> None:
    await scene.client.delete(scene.keys.journal)
    assert await tick_of_alice(scene, scans=True) == [*IDLE, b"0-0", 0]
    last = await scene.client.xadd(scene.keys.journal, {"event": "recovered"})
    await scene.client.xadd(scene.keys.retry, {"n": 1})
    assert await tick_of_alice(scene, scans=True) == [*IDLE, last, 1]


async def test_a_full_scan_begins_though_the_journal_is_no_stream(scene: Scene) -> None:
    await scene.client.delete(scene.keys.journal)
    await scene.client.set(scene.keys.journal, "no stream")
    assert await tick_of_alice(scene, scans=True) == [*IDLE, b"0-0", 0]
