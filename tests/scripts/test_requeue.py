"""ready_again.lua: an operator gives lost deliveries back as copies; entries that are not lost are left alone."""

from typing import Any

import pytest

from tests.scripts.scene import TOO_MANY, Scene
from workers.protocol.calls import GroupCalls
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

GONE, REQUEUED, PENDING, READY, HELD, PUT_OFF = (
    b"missing", b"done", b"pending", b"ready", b"undeliverable", b"put_off",
)  # fmt: skip


async def requeue(scene: Scene, *ids: str, source: str = "", budget: int = 10**9) -> list[Any]:
    """Run ``requeue``."""
    words = GroupCalls(scene.keys, 1_000).spell(source or "orders", "stream", 0, budget, "", *ids)
    reply = await load_script("reaper", "ready_again").run(scene.client, *words)
    rows: list[Any] = reply[1:] if reply[0] == b"ok" else reply
    return rows


async def lost(scene: Scene, *flat: str | int, source: str = "") -> str:
    """Add an entry whose delivery was lost."""
    stream = source or scene.keys.stream
    entry = await scene.add(*flat, stream=stream)
    await scene.deliver(entry, stream=stream)
    await scene.client.execute_command("XACK", stream, scene.keys.group, entry)
    return entry


async def test_a_lost_delivery_becomes_a_copy_with_the_deliveries_that_were_counted_before(scene: Scene) -> None:
    entry = await lost(scene, "n", 1, "reaper.job", "job-1", "reaper.deliveries", 1, "reaper.generation", 2)
    [[code, new, job]] = await requeue(scene, entry)
    assert (code, job) == (REQUEUED, b"job-1")
    [[found, *fields]] = (await scene.state())["orders"]["entries"]
    flat = [str(one) for one in fields]
    assert "reaper.copies" in flat
    for name, value in (("reaper.job", "job-1"), ("reaper.deliveries", "1"), ("reaper.generation", "2")):
        assert flat[flat.index(name) + 1] == value
    [(event, event_job, data)] = (await scene.state())["{orders}:journal"]
    assert (event, event_job, data["entry"], data["new_entry"]) == ("requeued", "job-1", entry, found)
    assert new.decode() != entry
    assert await requeue(scene, entry) == [[GONE, b"", b""]]


async def test_entries_that_are_not_lost_are_left_alone(scene: Scene) -> None:
    pending, ready = await scene.stalled(), await scene.add()
    before = await scene.state()
    rows = await requeue(scene, pending, ready, "9-9")
    assert [row[0] for row in rows] == [PENDING, READY, GONE]
    assert await scene.state() == before


async def test_an_entry_that_other_groups_may_need_stays(scene: Scene) -> None:
    await scene.set_settings(policy="retry-stream")
    await scene.client.xgroup_create("orders", "other", "0")
    entry = await lost(scene)
    [[code, *_]] = await requeue(scene, entry)
    assert code == REQUEUED
    assert await scene.client.xlen("orders") == 1
    assert await scene.client.xlen(scene.keys.retry) == 1


async def test_an_entry_of_the_retry_stream_is_copied_from_there(scene: Scene) -> None:
    await scene.set_settings(policy="retry-stream")
    await scene.client.xgroup_create(scene.keys.retry, "billing", "0", mkstream=True)
    entry = await lost(scene, source=scene.keys.retry)
    assert [row[0] for row in await requeue(scene, entry, source=scene.keys.retry)] == [REQUEUED]
    assert [row[0] for row in await requeue(scene, entry, source=scene.keys.retry)] == [GONE]
    assert await scene.client.xlen(scene.keys.retry) == 1


async def test_an_entry_that_cannot_be_copied_stays(scene: Scene) -> None:
    entry = await lost(scene, *(one.decode() for one in TOO_MANY))
    [[code, why, _]] = await requeue(scene, entry)
    assert (code, why) == (HELD, b"too many fields")
    assert await scene.client.xlen("orders") == 1


async def test_a_call_is_bounded_by_bytes(scene: Scene) -> None:
    one, other = await lost(scene), await lost(scene)
    assert [row[0] for row in await requeue(scene, one, other, budget=0)] == [REQUEUED, PUT_OFF]


@pytest.mark.parametrize("gone", ["group", "stream"])
async def test_without_the_group_nothing_is_copied(scene: Scene, gone: str) -> None:
    entry = await lost(scene)
    if gone == "group":
        await scene.client.xgroup_destroy("orders", "billing")
    else:
        await scene.client.delete("orders")
    before = await scene.state()
    assert await requeue(scene, entry) == [b"no_group"]
    assert await scene.state() == before
