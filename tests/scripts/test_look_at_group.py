"""look_at_group: values for the gauges of a group, in both recovery modes."""

from typing import Any

import pytest
from redis.exceptions import RedisError

from reaper.operations.snapshot import take_snapshot
from reaper.recovery.scanner import LAST_ID
from reaper.settings import ReaperSettings
from tests.scripts.scene import QUARANTINE_SCORE, Scene
from tests.support.servers import RedisServer
from workers.protocol.calls.group_moves import GroupLoad, look_at_group
from workers.protocol.connection import commands_client
from workers.protocol.keys import group_keys, namespace_keys
from workers.runtime.settings import load_settings

pytestmark = pytest.mark.anyio

SLACK_MS = 5_000
"""How much older things may be than they were made, on a busy machine."""


async def look(scene: Scene) -> GroupLoad:
    return await look_at_group(scene.client, scene.keys)


async def stored(scene: Scene) -> dict[Any, Any]:
    """Return everything there is, as it is stored."""
    return {key: await scene.client.dump(key) for key in await scene.client.keys()}


async def a_bit_of_everything(scene: Scene) -> None:
    """2 pending and 1 ready in the stream, 1 pending and 2 ready in the retry stream, and more."""
    keys, now_ms = scene.keys, await scene.now_ms()
    await scene.client.xgroup_create(keys.retry, keys.group, "0", mkstream=True)
    first, second = await scene.add(at=f"{now_ms - 90_000}-0"), await scene.add(at=f"{now_ms - 80_000}-0")
    await scene.deliver(first, idle_ms=40_000)
    await scene.deliver(second, idle_ms=70_000)
    await scene.add(at=f"{now_ms - 20_000}-0")
    copy = await scene.add(at=f"{now_ms - 70_000}-0", stream=keys.retry)
    await scene.deliver(copy, idle_ms=50_000, stream=keys.retry)
    await scene.add(at=f"{now_ms - 30_000}-0", stream=keys.retry)
    await scene.add(at=f"{now_ms - 10_000}-0", stream=keys.retry)
    await scene.client.zadd(keys.schedule, {b"a": now_ms + 1, b"b": QUARANTINE_SCORE, b"c": QUARANTINE_SCORE + 1})
    await scene.client.zadd(keys.stream_schedule, {b"d": now_ms, b"e": now_ms, b"f": now_ms})
    await scene.client.hset(keys.quarantine, "1-1", "5")
    for _ in range(5):
        await scene.client.xadd(keys.dead, {"n": "1"})
    await scene.set_settings(policy="stream", visibility_ms=30_000, beat=now_ms, unbroken=1, paused=1)


async def test_everything_is_counted_and_ages_are_those_of_the_oldest(scene: Scene) -> None:
    await a_bit_of_everything(scene)
    before = await stored(scene)
    await scene.fill_memory()
    seen = await look(scene)
    await scene.free_memory()
    assert seen._replace(oldest_ready_ms=0, oldest_pending_ms=0) == GroupLoad(
        3, 0, 0, scheduled=4, quarantined=3, dead_letters=5, paused=1, recovery_waits_ms=0
    )
    assert 30_000 <= seen.oldest_ready_ms <= 30_000 + SLACK_MS
    assert 50_000 <= seen.oldest_pending_ms <= 50_000 + SLACK_MS  # of each source the one delivered first
    assert await stored(scene) == before


async def test_the_status_says_the_same(scene: Scene) -> None:
    await a_bit_of_everything(scene)
    settings = load_settings(ReaperSettings, flags={"groups": "orders/billing"})
    snapshot = await take_snapshot(scene.client, namespace_keys("reaper"), settings.watched)
    (group,) = snapshot.groups
    seen = await look(scene)
    assert (group.main.pending + group.retry.pending, group.scheduled) == (seen.in_flight, seen.scheduled)
    assert (group.quarantined + group.released, group.dead_letters) == (seen.quarantined, seen.dead_letters)
    assert (group.paused, seen.paused) == (True, 1)
    assert group.retry.oldest_ready_ms is not None
    assert group.retry.oldest_pending_ms is not None
    assert 0 <= seen.oldest_ready_ms - group.retry.oldest_ready_ms < SLACK_MS
    assert 0 <= seen.oldest_pending_ms - group.retry.oldest_pending_ms < SLACK_MS


async def test_it_shows_for_how_long_recovery_waits_as_the_status_does(scene: Scene) -> None:
    now_ms = await scene.now_ms()
    await scene.set_settings(policy="stream", visibility_ms=30_000, beat=now_ms, unbroken=now_ms, gap=12_000)
    seen = await look(scene)
    snapshot = await take_snapshot(scene.client, namespace_keys("reaper"), asked=[scene.keys])
    wait = snapshot.groups[0].recovery_wait
    assert wait is not None
    assert (wait.gap_ms, wait.gap_has_ended) == (12_000, True)
    assert 30_000 - SLACK_MS < wait.left_ms <= seen.recovery_waits_ms <= 30_000


async def test_a_producer_may_choose_the_last_id_of_all_and_nothing_is_ready_behind_it(scene: Scene) -> None:
    last = await scene.add(at=LAST_ID.decode())
    await scene.deliver(last)
    seen = await look(scene)
    assert (seen.in_flight, seen.oldest_ready_ms) == (1, 0)
    snapshot = await take_snapshot(scene.client, namespace_keys("reaper"), asked=[scene.keys])
    assert snapshot.groups[0].main.pending == 1


async def test_nothing_is_there(scene: Scene) -> None:
    nothing = GroupLoad(0, 0, 0, 0, 0, 0, 0, 0)
    assert await look(scene) == nothing
    assert await look_at_group(scene.client, group_keys("nowhere", "nobody")) == nothing
    assert await look_at_group(scene.client, group_keys("orders", "nobody")) == nothing


async def test_a_missing_right_is_an_error_and_no_zero(scene: Scene, server: RedisServer) -> None:
    setting = ["ACL", "SETUSER", "blind", "reset", "on", ">nothing", "~*", "+@all", "-xlen"]
    await scene.client.execute_command(*setting)
    blind = commands_client(f"redis://blind:nothing@127.0.0.1:{server.port}/0")
    try:
        with pytest.raises(RedisError, match=r"(?i)permission|can't run this command"):
            await look_at_group(blind, scene.keys)
    finally:
        await blind.aclose()
        await scene.client.execute_command("ACL", "DELUSER", "blind")
