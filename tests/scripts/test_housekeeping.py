"""keep_house, restore_group, count_after, pause_group, register_replica: what is tidied and reported."""

from typing import Any

import pytest
from redis.asyncio import Redis

from tests.scripts.scene import FENCE, Scene, entry_id, rows
from tests.support.dump import dump
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

STALE = [None, "reaper:8:bob", "reaper:6:bob", "reaper:7:bob", "other:7:alice"]


async def keep_house(
    scene: Scene,
    silence_ms: int | str = "",
    *,
    fence: str = FENCE,
    caller: str = "alice",
    again: bool = False,
) -> Any:
    """Run ``keep_house``."""
    keys = scene.keys
    return await load_script("workers.protocol", "keep_house").run(
        scene.client,
        [keys.stream, keys.fence, keys.agreement, keys.journal, keys.retry, keys.notes, keys.schedule],
        [fence, keys.group, silence_ms, 1, 1_000, 7, caller, int(again)],
    )


async def restore(scene: Scene, *ids: str, made: int = 0) -> Any:
    """Run ``restore_group``; when the group was made is left out, and who made it."""
    keys = scene.keys
    reply = await load_script("reaper", "restore_group").run(
        scene.client,
        [keys.stream, keys.fence, keys.agreement],
        [FENCE, keys.group, "restored", 60_000, made, *ids],
    )
    return reply[:2]


async def made_again(scene: Scene) -> None:
    """Let a worker find that the group is gone, and join it."""
    keys = scene.keys
    await load_script("workers.protocol", "join_group").run(
        scene.client,
        [keys.stream, keys.retry, keys.agreement, keys.fence],
        [keys.group, "0", "", "", "", "reaper", "w1"],
    )


async def count_after(scene: Scene, last: str, most: int = 10_000, budget: int = 10**9) -> Any:
    """Run ``count_after``."""
    return await load_script("reaper", "count_after").run(scene.client, [scene.keys.stream], [last, most, budget])


async def pause(scene: Scene, flag: int) -> Any:
    """Run ``pause_group``."""
    return await load_script("reaper", "pause_group").run(scene.client, [scene.keys.agreement], [flag])


async def set_fence(scene: Scene, found: str | None) -> None:
    await scene.client.delete(scene.keys.fence)
    if found:
        await scene.client.set(scene.keys.fence, found)


async def test_the_groups_position_is_remembered(scene: Scene) -> None:
    for _ in range(3):
        await scene.add()
    await scene.client.xreadgroup("billing", "w1", {"orders": ">"}, count=2)
    assert await keep_house(scene) == [b"ok", 0, 0, 0]
    assert (await scene.state())["{orders}:group:billing"]["last_id"] == entry_id(2)


async def test_silent_consumers_are_deleted_only_when_asked_and_only_when_they_hold_nothing(scene: Scene) -> None:
    await scene.stalled(consumer="busy")
    await scene.client.xgroup_createconsumer("orders", "billing", "silent")
    moment = await scene.now_ms()
    while await scene.now_ms() < moment + 2:
        pass
    assert await keep_house(scene) == [b"ok", 0, 0, 0]
    assert await keep_house(scene, 3_600_000) == [b"ok", 0, 0, 0]
    assert await keep_house(scene, 0) == [b"ok", 1, 0, 0, b"silent"]
    consumers: Any = await scene.client.xinfo_consumers("orders", "billing")
    assert [consumer["name"] for consumer in consumers] == [b"busy", b"restored-by-reaper"]


async def _idle_ms(scene: Scene, name: bytes) -> int:
    consumers: Any = await scene.client.xinfo_consumers("orders", "billing")
    return next(int(consumer["idle"]) for consumer in consumers if consumer["name"] == name)


async def test_who_clears_away_silent_consumers_never_comes_upon_the_one_that_a_group_is_known_by(scene: Scene) -> None:
    await keep_house(scene)
    for _ in range(2):
        while await _idle_ms(scene, b"restored-by-reaper") < 20:
            pass
        asked_ms = await scene.now_ms()
        await keep_house(scene)
        assert await _idle_ms(scene, b"restored-by-reaper") <= await scene.now_ms() - asked_ms


async def test_what_the_consumer_that_a_group_is_known_by_holds_stays_its_own(scene: Scene) -> None:
    await keep_house(scene)
    await scene.stalled(consumer="restored-by-reaper")
    await keep_house(scene)
    assert await scene.pending() == [(entry_id(1), "restored-by-reaper", 1)]


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_group_that_lacks_it_is_another_one_unless_a_consumer_is_older_than_that(
    scene: Scene, is_new: bool
) -> None:
    await scene.client.xgroup_createconsumer("orders", "billing", "w1")
    await _milliseconds_pass(scene)
    await keep_house(scene)
    if is_new:
        await scene.client.xgroup_destroy("orders", "billing")
        await scene.client.xgroup_create("orders", "billing", "0")
        await scene.client.xgroup_createconsumer("orders", "billing", "w1")
    else:
        await scene.client.xgroup_delconsumer("orders", "billing", "restored-by-reaper")
    assert await keep_house(scene) == [b"ok", 0, 2 if is_new else 0, 0]
    assert await keep_house(scene) == [b"ok", 0, 0, 0]


async def test_a_consumer_that_asks_for_jobs_and_gets_none_is_as_old_as_its_last_one(scene: Scene) -> None:
    """From Redis 7.2 on a read that finds nothing starts its idle time over, and `inactive` tells of the last job."""
    added = await scene.add()
    await scene.client.xreadgroup("billing", "w1", {"orders": ">"})
    await scene.client.xack("orders", "billing", added)
    await _milliseconds_pass(scene)
    await keep_house(scene)
    await scene.client.xreadgroup("billing", "w1", {"orders": ">"})
    await scene.client.xgroup_delconsumer("orders", "billing", "restored-by-reaper")
    assert await keep_house(scene) == [b"ok", 0, 0, 0]


async def _milliseconds_pass(scene: Scene) -> None:
    moment = await scene.now_ms()
    while await scene.now_ms() < moment + 2:
        pass


@pytest.mark.parametrize(("ended_ms", "holds", "is_kept"), [(60_000, 0, True), (700_000, 0, False), (700_000, 1, True)])
async def test_words_that_a_leader_may_still_want_to_see_are_kept(
    scene: Scene, ended_ms: int, holds: int, is_kept: bool
) -> None:
    await scene.client.xgroup_createconsumer("orders", "billing", "w1")  # made again after somebody deleted it
    for _ in range(holds):
        await scene.stalled(consumer="w1")
    await scene.agree(**{"member:w1": f"1,30000,3,{await scene.now_ms() - ended_ms},"})
    await keep_house(scene)
    assert await scene.client.hexists(scene.keys.agreement, "member:w1") == is_kept


async def test_while_recovery_waits_nobody_is_silent_and_no_word_has_ended(scene: Scene) -> None:
    """Else after a step of the clock a worker that holds nothing has no word with its next job (seed 5100314)."""
    await scene.client.xgroup_createconsumer("orders", "billing", "w1")
    now = await scene.now_ms()
    await scene.agree(**dict.fromkeys(("member:w1", "member:gone"), f"1,30000,3,{now - 7200000},"))
    await scene.beats()
    await scene.agree(unbroken=now)
    assert await keep_house(scene, 0) == [b"ok", 0, 0, 0]
    assert await scene.client.hexists(scene.keys.agreement, "member:w1")
    await scene.beats()
    assert await keep_house(scene) == [b"ok", 0, 0, 1, b"gone"]
    assert not await scene.client.hexists(scene.keys.agreement, "member:w1")


async def test_a_destroyed_group_is_recreated_where_it_was_with_what_it_held(scene: Scene) -> None:
    for _ in range(4):
        await scene.add()
    await scene.client.xreadgroup("billing", "w1", {"orders": ">"}, count=3)
    await keep_house(scene)
    await scene.client.xgroup_destroy("orders", "billing")
    await scene.client.xdel("orders", entry_id(2))
    assert await restore(scene, entry_id(1), entry_id(2)) == [b"ok", 1]
    assert await scene.pending() == [(entry_id(1), "restored", 1)]
    reply: Any = await scene.client.xreadgroup("billing", "w1", {"orders": ">"})
    assert [one.decode() for one, _ in reply[0][1]] == [entry_id(4)]
    assert await scene.recover(entry_id(1)) == [b"made"], "the group is another one"
    made = int((await scene.client.hget(scene.keys.agreement, "made")) or 0)
    assert rows(await scene.recover(entry_id(1), made=made)) == [(1, "restored", entry_id(1), 1)]


@pytest.mark.parametrize("known", ["9-2", "5-9"])
@pytest.mark.parametrize("is_there", [True, False])
async def test_in_a_stream_that_was_made_anew_the_group_begins_anew(scene: Scene, known: str, is_there: bool) -> None:
    """With IDs of the producer's own they lie below what was known, and nobody would ever read them."""
    await scene.client.delete("orders")
    await scene.agree(last_id=known)
    if is_there:
        await scene.add(at="5-1")
    assert await restore(scene, "9-1") == [b"ok", 0]
    if not is_there:
        await scene.add(at="5-1")
    reply: Any = await scene.client.xreadgroup("billing", "w1", {"orders": ">"})
    assert [one for one, _ in reply[0][1]] == [b"5-1"]
    assert await scene.client.hget(scene.keys.agreement, "made_from") == b"0"


async def test_what_will_be_delivered_anew_anyway_is_not_put_back(scene: Scene) -> None:
    for _ in range(2):
        await scene.add()
    await scene.agree(last_id=entry_id(1))
    await scene.client.xgroup_destroy("orders", "billing")
    assert await restore(scene, entry_id(1), entry_id(2)) == [b"ok", 1]
    assert await scene.pending() == [(entry_id(1), "restored", 1)]


async def test_a_group_that_is_there_is_left_alone(scene: Scene) -> None:
    await scene.add()
    await scene.agree(last_id=entry_id(1))
    before = await scene.state()
    assert await restore(scene, entry_id(1)) == [b"exists"]
    assert await scene.state() == before


async def test_what_a_group_held_that_a_worker_has_made_again_is_put_back(scene: Scene) -> None:
    for _ in range(4):
        await scene.add()
    await scene.client.xreadgroup("billing", "w1", {"orders": ">"}, count=3)
    await keep_house(scene)
    await scene.client.xgroup_destroy("orders", "billing")
    await made_again(scene)
    assert await scene.recover(entry_id(1)) == [b"made"], "nothing was settled, it was forgotten"
    assert await restore(scene, entry_id(1), entry_id(2), entry_id(4)) == [b"ok", 2]
    assert await scene.pending() == [(entry_id(number), "restored", 1) for number in (1, 2)]
    made = int((await scene.client.hget(scene.keys.agreement, "made")) or 0)
    assert await restore(scene, entry_id(3), made=made) == [b"exists"]


async def test_what_somebody_holds_already_is_not_taken_from_him(scene: Scene) -> None:
    await scene.add()
    await scene.agree(last_id=entry_id(1))
    await scene.client.xgroup_destroy("orders", "billing")
    await made_again(scene)
    await scene.deliver(entry_id(1), consumer="w1", idle_ms=0)
    assert await restore(scene, entry_id(1)) == [b"ok", 0]
    assert await scene.pending() == [(entry_id(1), "w1", 1)]


@pytest.mark.parametrize(
    ("for_ms", "waits", "least", "most"),
    [
        (35_000, False, 0, 59_999),
        (-1, False, 60_000, 10**9),
        (-3_600_000, True, 0, 59_999),  # its word may have ended by a step of the clock alone
    ],
)
async def test_while_workers_of_ours_live_they_get_time_to_take_back_what_they_run(
    scene: Scene, for_ms: int, waits: bool, least: int, most: int
) -> None:
    await scene.add()
    await scene.agree(last_id=entry_id(1), **{"member:w1": f"1,60000,3,{await scene.now_ms() + for_ms},"})
    await scene.client.xgroup_destroy("orders", "billing")
    await scene.beats()
    if waits:
        await scene.agree(unbroken=await scene.now_ms())
    await restore(scene, entry_id(1))
    (idle_ms,) = (await scene.idle_ms()).values()
    assert least <= idle_ms <= most


async def test_a_group_that_is_to_begin_at_the_end_says_where_that_was(scene: Scene) -> None:
    await scene.add()
    await scene.client.xgroup_destroy("orders", "billing")
    keys = scene.keys
    await load_script("workers.protocol", "join_group").run(
        scene.client,
        [keys.stream, keys.retry, keys.agreement, keys.fence],
        [keys.group, "$", "", "", "", "reaper", "w1"],
    )
    assert await scene.client.hget(keys.agreement, "made_from") == entry_id(1).encode()


async def test_a_lost_agreement_is_no_destroyed_group(scene: Scene) -> None:
    stalled = await scene.stalled()
    assert rows(await scene.recover(stalled, made=10**13))[0][0] == 1


async def test_without_a_known_position_no_group_is_made(scene: Scene) -> None:
    await scene.client.xgroup_destroy("orders", "billing")
    before = await scene.state()
    assert await restore(scene) == [b"unknown"]
    assert await scene.state() == before


async def test_a_position_that_is_none_is_an_error(scene: Scene) -> None:
    await scene.client.xgroup_destroy("orders", "billing")
    await scene.agree(last_id="somewhere")
    with pytest.raises(Exception, match="Invalid stream ID"):
        await restore(scene)


@pytest.mark.parametrize("found", STALE)
async def test_only_the_whole_fence_lets_a_leader_keep_house(scene: Scene, found: str | None) -> None:
    await scene.agree(last_id="1-1")
    await scene.client.xgroup_createconsumer("orders", "billing", "silent")
    await set_fence(scene, found)
    before = await scene.state()
    stale = [b"stale", (found or "").encode()]
    assert (await keep_house(scene, 0), await restore(scene)) == (stale, stale)
    assert await scene.state() == before
    consumers: Any = await scene.client.xinfo_consumers("orders", "billing")
    assert len(consumers) == 1


@pytest.mark.parametrize(("recovery", "code"), [("embedded", b"ok"), ("reaper", b"stale"), ("", b"stale")])
async def test_without_a_fence_only_embedded_workers_keep_house(scene: Scene, recovery: str, code: bytes) -> None:
    await scene.agree(recovery=recovery)
    assert (await keep_house(scene, fence=""))[0] == code
    assert ("last_id" in (await scene.state())["{orders}:group:billing"]) == (code == b"ok")


async def test_a_leader_keeps_house_when_memory_is_full(scene: Scene) -> None:
    await scene.stalled()
    await scene.fill_memory()
    kept, paused = await keep_house(scene), await pause(scene, 1)
    await scene.free_memory()
    assert (kept, paused) == ([b"ok", 0, 0, 0], 1)


async def test_a_group_is_recreated_when_memory_is_full(scene: Scene) -> None:
    await scene.stalled()
    await keep_house(scene)
    await scene.client.xgroup_destroy("orders", "billing")
    await scene.fill_memory()
    restored = await restore(scene, entry_id(1))
    await scene.free_memory()
    assert restored == [b"ok", 1]


@pytest.mark.parametrize("entries", [0, 1, 3, 4, 5, 100, 250])
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


async def test_a_replica_registers_even_when_memory_is_full(client: Redis) -> None:
    register = load_script("reaper", "register_replica")
    await register.run(client, ["{reaper}:replicas"], ["r1", "{}"])
    await client.config_set("maxmemory", "1")
    assert await register.run(client, ["{reaper}:replicas"], ["r2", '{"leads":true}']) == 1
    await client.config_set("maxmemory", "0")
    assert await dump(client) == {"{reaper}:replicas": {"r1": "{}", "r2": '{"leads":true}'}}


async def test_where_a_consumer_is_deleted_long_after_its_worker_has_died_that_is_told_first(scene: Scene) -> None:
    long_ago = f"1,30000,3,{await scene.now_ms() - 3_600_000},"
    await scene.agree(**{"member:gone": long_ago})
    await made_again(scene)  # a worker joins, and clears away words
    assert await keep_house(scene) == [b"ok", 0, 0, 1, b"gone"]
    assert await scene.client.hexists(scene.keys.agreement, "member:gone")  # for the leader that puts back
    assert await keep_house(scene) == [b"ok", 0, 0, 0]
    assert not await scene.client.hexists(scene.keys.agreement, "member:gone")


async def test_a_word_that_has_ended_and_whose_consumer_is_gone_is_told_once(scene: Scene) -> None:
    await scene.client.xgroup_createconsumer("orders", "billing", "there")
    now = await scene.now_ms()
    ended, counts = f"1,30000,3,{now - 1_000},", f"1,30000,3,{now + 60_000},"
    await scene.agree(
        **{"member:there": ended, "member:gone": ended + "worker gone: it differs", "member:lives": counts}
    )
    assert await keep_house(scene) == [b"ok", 0, 0, 1, b"gone"]
    assert await keep_house(scene) == [b"ok", 0, 0, 0]
    words: Any = await scene.client.hmget(scene.keys.agreement, "member:gone", "member:there", "member:lives")
    assert [word.decode() for word in words] == [ended + "0,told", ended, counts]
    told = {"group": "billing", "mode": "reaper", "token": 7, "consumer": "gone", "visibility_ms": 30_000}
    ((event, job, data),) = (await scene.state())["{orders}:journal"]
    assert (event, job, data.keys() - told.keys()) == ("lost_consumer", "", {"until_ms"})
    assert {name: data[name] for name in told} == told


async def test_what_was_told_by_a_reply_that_was_lost_is_told_again_to_whoever_asked(scene: Scene) -> None:
    ended = f"1,30000,3,{await scene.now_ms() - 1_000},"
    await keep_house(scene)  # how it was before is seen
    await scene.client.xgroup_destroy("orders", "billing")
    await made_again(scene)
    await scene.agree(**{"member:gone": ended})
    told = [b"ok", 0, 1, 1, b"gone"]
    assert await keep_house(scene) == told
    assert await keep_house(scene, caller="bob", again=True) == [b"ok", 0, 0, 0], "he was told nothing"
    assert await keep_house(scene, again=True) == told
    assert await keep_house(scene, again=True) == told, "that reply was lost as well"
    await scene.agree(**{"member:later": ended})
    assert await keep_house(scene, again=True) == [b"ok", 0, 1, 2, b"later", b"gone"]
    assert await keep_house(scene) == [b"ok", 0, 0, 0]
    assert not await scene.client.hexists(scene.keys.agreement, "house_told")
    assert await keep_house(scene, again=True) == [b"ok", 0, 0, 0]


async def held_by(scene: Scene, consumer: str, *, seen_by: str) -> None:
    """Let a consumer hold something, as a leader of this term (an embedded worker: 0) has noted, and delete it."""
    await keep_house(scene)
    await scene.stalled(consumer=consumer)
    await keep_house(scene)
    assert await scene.client.hget(scene.keys.agreement, f"holds:{consumer}") == b"7"
    await scene.client.hset(scene.keys.agreement, f"holds:{consumer}", seen_by)
    await scene.client.xgroup_delconsumer("orders", "billing", consumer)


@pytest.mark.parametrize("seen_by", ["6", "0"])
@pytest.mark.parametrize("consumer", ["java-1", "ready-by-reaper", "waiting-by-reaper"])
async def test_a_foreign_consumer_that_is_gone_with_what_an_earlier_term_saw_is_told_once(
    scene: Scene, consumer: str, seen_by: str
) -> None:
    await held_by(scene, consumer, seen_by=seen_by)
    assert await keep_house(scene) == [b"ok", 0, 0, 1, consumer.encode()]
    assert await keep_house(scene) == [b"ok", 0, 0, 0]
    told = {"group": "billing", "mode": "reaper", "token": 7, "consumer": consumer}
    assert (await scene.state())["{orders}:journal"] == [("lost_consumer", "", told)]
    assert not await scene.client.hexists(scene.keys.agreement, f"holds:{consumer}")


async def test_of_what_a_leader_saw_itself_it_tells_by_the_delivery(scene: Scene) -> None:
    await held_by(scene, "java-1", seen_by="7")
    assert await keep_house(scene) == [b"ok", 0, 0, 0]
    assert not await scene.client.hexists(scene.keys.agreement, "holds:java-1")


async def test_embedded_workers_tell_it_whoever_saw_it(scene: Scene) -> None:
    await held_by(scene, "java-1", seen_by="0")
    await scene.client.delete(scene.keys.fence)
    await scene.agree(recovery="embedded")
    assert await keep_house(scene, fence="") == [b"ok", 0, 0, 1, b"java-1"]


async def test_of_our_own_consumer_that_is_made_anew_it_is_told_whoever_saw_it(scene: Scene) -> None:
    await scene.stalled(consumer="old")  # so that the group is no other one
    await held_by(scene, "restored-by-reaper", seen_by="7")
    assert await keep_house(scene) == [b"ok", 0, 0, 1, b"restored-by-reaper"]


async def test_who_has_settled_all_and_goes_is_not_told_of(scene: Scene) -> None:
    await keep_house(scene)
    await scene.stalled(consumer="java-1")
    await keep_house(scene)
    await scene.agree(**{"holds:java-1": "6"})
    await scene.client.xack("orders", "billing", entry_id(1))
    moment = await scene.now_ms()
    while await scene.now_ms() < moment + 2:
        pass
    assert await keep_house(scene, 0) == [b"ok", 1, 0, 0, b"java-1"]  # deleted by us
    assert not await scene.client.hexists(scene.keys.agreement, "holds:java-1")


async def test_what_a_group_held_that_was_destroyed_is_told_as_a_whole(scene: Scene) -> None:
    await held_by(scene, "java-1", seen_by="6")
    await scene.client.xgroup_destroy("orders", "billing")
    await made_again(scene)
    assert await keep_house(scene) == [b"ok", 0, 1, 0]
    assert not await scene.client.hexists(scene.keys.agreement, "holds:java-1")


async def test_workers_of_ours_are_known_by_their_words(scene: Scene) -> None:
    await scene.stalled(consumer="w1.0123456789ab")
    await keep_house(scene)
    assert not await scene.client.hexists(scene.keys.agreement, "holds:w1.0123456789ab")


async def test_of_a_worker_that_has_joined_there_is_a_consumer_before_it_reads(scene: Scene) -> None:
    keys, join = scene.keys, load_script("workers.protocol", "join_group")
    await join.run(
        scene.client,
        [keys.stream, keys.retry, keys.agreement, keys.fence],
        [keys.group, "0", "", "", "", "reaper", "w1", "w1.0", 35_000, 0, 0, "stream", 30_000, 3],
    )
    consumers: Any = await scene.client.xinfo_consumers("orders", "billing")
    assert [consumer["name"] for consumer in consumers] == [b"w1.0"]
