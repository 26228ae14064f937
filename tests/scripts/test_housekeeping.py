"""maintain, report_lost, count_after, move_due, pause_group: their cleaning and their reports."""

from typing import Any

import pytest
from redis.exceptions import ResponseError

from tests.scripts.scene import HOLDER, Scene, entry_id
from workers.protocol.calls import GroupCalls
from workers.protocol.calls.group_moves import Authority, DueMoves, GroupMoves
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

STALE = [None, "bob.a1b2c3d4@10000", "alice-1-abc.0a@5000", "alice-1-abc.00@10000", "offer:alice-1-abc", "alice-1-abc"]


async def maintain(scene: Scene, silence_ms: int | str = "", *, lease: str = HOLDER) -> Any:
    """Run ``maintain_group``."""
    words = GroupCalls(scene.keys, 1_000).spell("orders", lease, 7, silence_ms, more_keys=[scene.keys.lease])
    code, *found = await load_script("workers.protocol", "maintain_group").run(scene.client, *words)
    if code != b"ok":
        return [code, *found]
    deleted, lost, *numbers = found
    return [code, len(deleted), *numbers, *deleted, *lost]


async def report_lost(scene: Scene, *ids: str, is_certain: bool = True, source: str = "") -> Any:
    """Run ``report_lost`` for entries that consumer w1 held."""
    words = GroupCalls(scene.keys, 1_000).spell(
        source or "orders", HOLDER, 7, "w1", int(is_certain), *ids, more_keys=[scene.keys.lease]
    )
    return await load_script("reaper", "report_lost").run(scene.client, *words)


async def made_again(scene: Scene) -> None:
    """Let a worker find that the group is gone, and join it."""
    keys = scene.keys
    await load_script("workers.protocol", "join_group").run(
        scene.client,
        [keys.stream, keys.retry, keys.settings, keys.lease],
        [keys.group, "0", "", "", "", "reaper", "stream", 30_000, 3, "reaper", "w1", "w1.0", 35_000, 0],
    )


async def count_after(scene: Scene, last: str, most: int = 10_000, budget: int = 10**9) -> Any:
    """Run ``count_after``."""
    return await load_script("reaper", "count_after").run(scene.client, [scene.keys.stream], [last, most, budget])


async def pause(scene: Scene, flag: int) -> Any:
    """Run ``pause_group``."""
    return await load_script("reaper", "pause_group").run(scene.client, [scene.keys.settings], [flag])


async def set_lease(scene: Scene, found: str | None) -> None:
    await scene.client.delete(scene.keys.lease)
    if found:
        await scene.client.set(scene.keys.lease, found)


async def test_jobs_that_no_consumer_reads_are_told(scene: Scene) -> None:
    await scene.client.xadd("orders", {"n": 1}, id=f"{await scene.now_ms() - 50_000}-0")
    unread_ms = (await maintain(scene))[3]
    assert 50_000 <= unread_ms < 60_000, "nobody has ever read"
    await scene.client.xgroup_createconsumer("orders", "billing", "w1")
    assert (await maintain(scene))[3] < 10_000, "a consumer is alive"
    await scene.client.xreadgroup("billing", "w1", {"orders": ">"})
    await scene.client.xadd("orders", {"n": 2})
    assert (await maintain(scene))[3] == 0, "a consumer is at work"


async def test_the_groups_position_is_remembered(scene: Scene) -> None:
    for _ in range(3):
        await scene.add()
    await scene.client.xreadgroup("billing", "w1", {"orders": ">"}, count=2)
    assert await maintain(scene) == [b"ok", 0, 0, 0]
    assert (await scene.state())["{orders}:group:billing"]["last_id"] == entry_id(2)


async def test_silent_consumers_are_deleted_only_when_asked_and_only_when_they_hold_nothing(scene: Scene) -> None:
    await scene.stalled(consumer="busy")
    await scene.client.xgroup_createconsumer("orders", "billing", "silent")
    moment = await scene.now_ms()
    while await scene.now_ms() < moment + 2:
        pass
    assert await maintain(scene) == [b"ok", 0, 0, 0]
    assert await maintain(scene, 3_600_000) == [b"ok", 0, 0, 0]
    assert await maintain(scene, 0) == [b"ok", 1, 0, 0, b"silent"]
    consumers: Any = await scene.client.xinfo_consumers("orders", "billing")
    assert [consumer["name"] for consumer in consumers] == [b"busy", b"marked-by-reaper"]


async def _idle_ms(scene: Scene, name: bytes) -> int:
    consumers: Any = await scene.client.xinfo_consumers("orders", "billing")
    return next(int(consumer["idle"]) for consumer in consumers if consumer["name"] == name)


async def test_who_clears_away_silent_consumers_never_comes_upon_the_one_that_a_group_is_known_by(scene: Scene) -> None:
    await maintain(scene)
    for _ in range(2):
        while await _idle_ms(scene, b"marked-by-reaper") < 20:
            pass
        asked_ms = await scene.now_ms()
        await maintain(scene)
        assert await _idle_ms(scene, b"marked-by-reaper") <= await scene.now_ms() - asked_ms
    await scene.stalled(consumer="marked-by-reaper")
    await maintain(scene)
    assert await scene.pending() == [(entry_id(1), "marked-by-reaper", 1)], "what it holds stays its own"


@pytest.mark.parametrize("how", ["destroyed", "emptied"])
async def test_a_group_without_its_marker_is_counted_once(scene: Scene, how: str) -> None:
    assert await maintain(scene) == [b"ok", 0, 0, 0], "a first group lacks it too"
    if how == "destroyed":
        await scene.client.xgroup_destroy("orders", "billing")
        await made_again(scene)
    else:
        await scene.client.xgroup_delconsumer("orders", "billing", "marked-by-reaper")
    assert await maintain(scene) == [b"ok", 0, 1, 0]
    assert await maintain(scene) == [b"ok", 0, 1, 0]


async def test_without_group_settings_nothing_tells_that_it_is_another_group(scene: Scene) -> None:
    await maintain(scene)
    await scene.client.delete(scene.keys.settings)
    await scene.client.xgroup_delconsumer("orders", "billing", "marked-by-reaper")
    assert await maintain(scene) == [b"ok", 0, 0, 0]


@pytest.mark.parametrize(("ended_ms", "holds", "is_kept"), [(60_000, 0, True), (700_000, 0, False), (700_000, 1, True)])
async def test_registrations_of_the_last_minutes_are_kept(
    scene: Scene, ended_ms: int, holds: int, is_kept: bool
) -> None:
    await scene.client.xgroup_createconsumer("orders", "billing", "w1")  # made again after somebody deleted it
    for _ in range(holds):
        await scene.stalled(consumer="w1")
    await scene.set_settings(**{"registration:w1": f"{await scene.now_ms() - ended_ms},"})
    await maintain(scene)
    assert await scene.client.hexists(scene.keys.settings, "registration:w1") == is_kept


async def test_while_recovery_waits_nobody_is_silent_and_no_word_has_ended(scene: Scene) -> None:
    """Else after a step of the clock a worker that holds nothing has no word with its next job (seed 5100314)."""
    await scene.client.xgroup_createconsumer("orders", "billing", "w1")
    now = await scene.now_ms()
    await scene.set_settings(
        policy="stream", **dict.fromkeys(("registration:w1", "registration:gone"), f"{now - 7200000},")
    )
    await scene.beats()
    await scene.set_settings(unbroken=now)
    assert await maintain(scene, 0) == [b"ok", 0, 0, 0]
    assert await scene.client.hexists(scene.keys.settings, "registration:w1")
    await scene.beats()
    assert await maintain(scene) == [b"ok", 0, 0, 0, b"gone"]
    assert not await scene.client.hexists(scene.keys.settings, "registration:w1")


async def test_entries_that_went_with_a_consumer_are_reported(scene: Scene) -> None:
    lost, pending = await scene.stalled("n", 1, "reaper.job", "job-1", "reaper.generation", 2), await scene.stalled()
    deleted, ready = await scene.stalled(), await scene.add()
    await scene.client.xdel("orders", deleted)
    await scene.client.xack("orders", "billing", lost)
    assert await report_lost(scene, lost, pending, deleted, ready) == [b"ok", lost.encode()]
    state = await scene.state()
    data = {
        "group": "billing", "mode": "reaper", "token": 7, "entry": lost, "source": "stream", "consumer": "w1",
        "generation": 2, "enqueued_ms": int(lost.split("-")[0]), "certain": 1,
    }  # fmt: skip
    assert state["{orders}:journal"] == [("lost_delivery", "job-1", data)]
    assert state["{orders}:group:billing"]["lost_delivery"] == "1"
    assert [row[0] for row in await scene.pending()] == [pending, deleted]


async def test_what_is_in_doubt_is_not_counted_and_entries_of_a_retry_stream_are_named_as_such(scene: Scene) -> None:
    retry = scene.keys.retry
    await scene.client.xgroup_create(retry, "billing", "0", mkstream=True)
    lost = await scene.add(stream=retry)
    await scene.deliver(lost, stream=retry)
    await scene.client.xack(retry, "billing", lost)
    assert await report_lost(scene, lost, source=retry, is_certain=False) == [b"ok", lost.encode()]
    state = await scene.state()
    ((_, _, data),) = state["{orders}:journal"]
    assert (bool(data["certain"]), data["source"]) == (False, "retry")
    assert "lost_delivery" not in state.get("{orders}:group:billing", {})


async def test_without_the_group_no_entry_is_reported(scene: Scene) -> None:
    lost = await scene.stalled()
    await scene.client.xgroup_destroy("orders", "billing")
    with pytest.raises(ResponseError, match="NOGROUP"):
        await report_lost(scene, lost)


@pytest.mark.parametrize("found", STALE)
async def test_only_the_holder_of_the_lease_maintains_a_group(scene: Scene, found: str | None) -> None:
    await scene.set_settings(last_id="1-1")
    await scene.client.xgroup_createconsumer("orders", "billing", "silent")
    await set_lease(scene, found)
    before = await scene.state()
    stale = [b"fenced", (found or "").encode()]
    assert (await maintain(scene, 0), await report_lost(scene)) == (stale, stale)
    assert await scene.state() == before
    consumers: Any = await scene.client.xinfo_consumers("orders", "billing")
    assert len(consumers) == 1


@pytest.mark.parametrize(("recovery", "code"), [("embedded", b"ok"), ("reaper", b"fenced"), ("", b"fenced")])
async def test_without_a_lease_only_embedded_workers_maintain(scene: Scene, recovery: str, code: bytes) -> None:
    await scene.set_settings(policy="stream", visibility_ms=30_000, recovery=recovery)
    assert (await maintain(scene, lease=""))[0] == code
    assert ("last_id" in (await scene.state())["{orders}:group:billing"]) == (code == b"ok")


async def test_a_holder_maintains_a_group_when_memory_is_full(scene: Scene) -> None:
    await scene.stalled()
    await scene.fill_memory()
    kept, paused = await maintain(scene), await pause(scene, 1)
    await scene.free_memory()
    assert (kept, paused) == ([b"ok", 0, 0, 0], 1)


@pytest.mark.parametrize("entries", [0, 1, 4, 250])
async def test_entries_behind_an_id_are_counted(scene: Scene, entries: int) -> None:
    start = await scene.add()
    ids = [await scene.add() for _ in range(entries)]
    before = await scene.state()
    first, last = (ids[0], ids[-1]) if ids else ("", start)
    assert await count_after(scene, start) == [entries, last.encode(), 1, first.encode()]
    assert await scene.state() == before


async def test_counting_goes_on_where_it_stopped(scene: Scene) -> None:
    ids = [await scene.add("blob", "x" * 1_000) for _ in range(50)]
    counted, calls, last, ended = 0, 0, b"0-0", 0
    while not ended:
        more, last, ended, _ = await count_after(scene, last.decode(), most=30, budget=10_000)
        counted, calls = counted + more, calls + 1
    assert (counted, last.decode()) == (50, ids[-1])
    assert calls >= 4


async def test_a_group_is_paused_and_resumed(scene: Scene) -> None:
    before = await scene.state()
    assert [await pause(scene, 1), await pause(scene, 1)] == [1, 0]
    assert (await scene.state())["{orders}:group:billing"] == {"paused": "1"}
    assert [await pause(scene, 0), await pause(scene, 0)] == [1, 0]
    assert await scene.state() == before


@pytest.mark.parametrize("ago_ms", [1_000, 3_600_000])
async def test_an_ended_registration_without_its_consumer_is_reported_once(scene: Scene, ago_ms: int) -> None:
    await scene.client.xgroup_createconsumer("orders", "billing", "there")
    now = await scene.now_ms()
    ended, counts, lately = (f"{now + by}," for by in (-ago_ms, 60_000, -1_000))
    await scene.set_settings(
        **{"registration:there": lately, "registration:gone": ended + "it differs", "registration:lives": counts}
    )
    await made_again(scene)  # a worker joins
    await scene.beats()
    assert await maintain(scene) == [b"ok", 0, 0, 0, b"gone"]
    assert await maintain(scene) == [b"ok", 0, 0, 0]
    words: Any = await scene.client.hmget(
        scene.keys.settings, "registration:gone", "registration:there", "registration:lives"
    )
    assert words == [None, lately.encode(), counts.encode()]
    told = {"group": "billing", "mode": "reaper", "token": 7, "consumer": "gone"}
    ((event, job, data),) = (await scene.state())["{orders}:journal"]
    assert (event, job, data.keys() - told.keys()) == ("lost_consumer", "", {"until_ms"})
    assert {name: data[name] for name in told} == told


async def test_a_field_of_the_quarantine_that_is_no_entry_id_holds_nothing_up(scene: Scene) -> None:
    await scene.set_settings(policy="stream", visibility_ms=30_000)
    await scene.client.hset(scene.keys.quarantine, "junk", "junk")
    moves = GroupMoves(scene.keys, 1_000, Authority(HOLDER, 7))
    moved = await moves.move_due(scene.client)
    assert isinstance(moved, DueMoves)
    assert moved.settled == 1
    assert await scene.client.exists(scene.keys.quarantine) == 0
