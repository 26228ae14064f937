"""lease_hand.lua: the holder offers its lease to one replica, or frees it. Writers meanwhile."""

from typing import Any

import pytest

from tests.scripts.leases import TTL_MS, expire, found, hand, holder_of, take, taken, tick
from tests.scripts.scene import Scene

pytestmark = pytest.mark.anyio

A, A_AGAIN, B = holder_of("alice", "a"), holder_of("alice", "b"), holder_of("bob", "c")


@pytest.fixture
async def scene(scene: Scene) -> Scene:
    """A group whose lease alice holds."""
    await scene.client.delete(scene.keys.lease)
    await take(scene, A)
    return scene


async def test_a_lease_is_offered_for_a_moment(scene: Scene) -> None:
    assert await hand(scene, A, "bob") == 1
    assert await found(scene) == "offer:bob"
    assert 0 < await scene.client.pttl(scene.keys.lease) <= 2_000


async def test_a_lease_is_freed_and_an_idle_group_gets_no_journal_for_it(scene: Scene) -> None:
    assert await hand(scene, A, "") == 1
    assert await found(scene) is None
    assert not await scene.client.exists(scene.keys.journal)


@pytest.mark.parametrize("to", ["bob", ""])
@pytest.mark.parametrize("lease", [None, B, A_AGAIN, "offer:alice"])
async def test_nobody_hands_over_what_is_not_its_own(scene: Scene, lease: str | None, to: str) -> None:
    await scene.client.xadd(scene.keys.journal, {"event": "joined", "group": "billing"})
    await scene.client.delete(scene.keys.lease)
    if lease is not None:
        await scene.client.set(scene.keys.lease, lease, px=TTL_MS)
    before = await scene.state()
    assert await hand(scene, A, to) == 0
    assert await scene.state() == before


async def test_a_hand_over_that_is_repeated_after_a_lost_reply_is_not_ours_any_more(scene: Scene) -> None:
    await hand(scene, A, "bob")
    await take(scene, B)
    assert await hand(scene, A, "bob") == 0
    assert await found(scene) == B


@pytest.mark.parametrize("to", ["bob", ""])
async def test_replicas_that_wait_for_the_lease_are_woken(scene: Scene, to: str) -> None:
    async with scene.client.pubsub() as channel:
        await channel.subscribe(scene.keys.lease)
        await channel.get_message(timeout=5)
        await hand(scene, A, to)
        message: Any = await channel.get_message(ignore_subscribe_messages=True, timeout=5)
    assert (message["channel"].decode(), message["data"].decode()) == (scene.keys.lease, to)


async def test_the_end_of_a_term_is_told_of_where_there_is_a_journal(scene: Scene) -> None:
    await scene.client.xadd(scene.keys.journal, {"event": "joined", "group": "billing"})
    await hand(scene, A, "bob")
    [_, told] = (await scene.state())["{orders}:journal"]
    assert told == ("lease_left", "", {"group": "billing", "holder": A, "token": 1, "reason": "stopped"})


async def test_a_broken_journal_keeps_nobody_from_leaving(scene: Scene) -> None:
    await scene.client.set(scene.keys.journal, "in the way")
    assert await hand(scene, A, "bob") == 1


@pytest.mark.parametrize("to", ["bob", ""])
async def test_a_lease_can_be_handed_over_when_memory_is_full(scene: Scene, to: str) -> None:
    await scene.fill_memory()
    handed = await hand(scene, A, to)
    await scene.free_memory()
    assert (handed, await found(scene)) == (1, "offer:bob" if to else None)


# ---- writers: recovery of one stalled entry


async def writes(scene: Scene, holder: str) -> bool:
    """Tell whether a replica may write by ``holder``: recover, and tick."""
    entry = await scene.stalled()
    reply = await scene.recover(entry, lease=holder)
    ticked = await tick(scene, holder)
    assert (reply[0] == b"ok") == (ticked != 0), (reply, ticked)
    return bool(reply[0] == b"ok")


@pytest.mark.parametrize("how", ["expired", "deleted"])
async def test_a_lease_that_is_gone_lets_nobody_write_until_it_is_taken(scene: Scene, how: str) -> None:
    await (expire(scene) if how == "expired" else scene.client.delete(scene.keys.lease))
    assert not await writes(scene, A)
    await take(scene, B)
    assert [await writes(scene, holder) for holder in (A, B)] == [False, True]


async def test_a_call_of_an_earlier_term_is_fenced_in_a_later_one_of_the_same_replica(scene: Scene) -> None:
    await expire(scene)
    await take(scene, B)
    await expire(scene)
    assert (await taken(scene, A_AGAIN)).token == 3
    assert [await writes(scene, holder) for holder in (A, B, A_AGAIN)] == [False, False, True]


async def test_an_offered_lease_is_nobodys_right_to_write(scene: Scene) -> None:
    await hand(scene, A, "bob")
    assert [await writes(scene, holder) for holder in (A, B, "offer:bob"[6:])] == [False, False, False]
    await take(scene, B)
    assert [await writes(scene, holder) for holder in (A, B)] == [False, True]


async def test_where_everything_was_deleted_a_term_of_the_same_token_is_another_one(scene: Scene) -> None:
    await scene.client.flushall()
    await scene.prepare(lease=None)
    assert (await taken(scene, B)).token == 1
    assert [await writes(scene, holder) for holder in (A, B)] == [False, True]


async def test_a_fenced_write_is_counted_and_names_the_lease_that_was_found(scene: Scene) -> None:
    entry = await scene.stalled()
    await expire(scene)
    await take(scene, B)
    assert await scene.recover(entry, lease=A) == [b"fenced", B.encode()]
    state = await scene.state()
    assert state["{orders}:group:billing"]["fenced"] == "1"
    assert state["{orders}:journal"][-1] == (
        "fenced", "", {"group": "billing", "verb": "recover", "token": 7, "lease": B},
    )  # fmt: skip
