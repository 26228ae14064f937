"""lease_take.lua: a replica takes the lease of a group that is free or offered to it, and writes the group settings."""

from dataclasses import replace

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from tests.scripts.leases import HOUR_MS, TTL_MS, Held, Taken, expire, found, hand, holder_of, take, taken
from tests.scripts.scene import Scene

pytestmark = pytest.mark.anyio

A, A_AGAIN, B = holder_of("alice", "a"), holder_of("alice", "b"), holder_of("bob", "c")
FIRST = {
    "policy": "stream", "visibility_ms": "30000", "max_deliveries": "3", "recovery": "reaper",
}  # fmt: skip


@pytest.fixture
async def scene(scene: Scene) -> Scene:
    """A group whose lease was never taken."""
    await scene.client.delete(scene.keys.lease)
    return scene


# ---- the holder


async def test_the_first_one_takes_a_free_lease_and_writes_the_group_settings(scene: Scene) -> None:
    assert await take(scene, A) == Taken(1, "", ("", "", "", ""))
    assert await scene.state() == {
        "orders": {"entries": [], "billing": []},
        "{orders}:lease:billing": A,
        "{orders}:group:billing": {"token": "1", **FIRST},
    }
    assert TTL_MS - 5_000 < await scene.client.pttl(scene.keys.lease) <= TTL_MS


async def test_while_it_is_held_the_others_learn_by_whom_and_for_how_long_and_change_nothing(scene: Scene) -> None:
    await take(scene, A)
    before = await scene.state()
    answer = await take(scene, B, visibility_ms=5_000)
    assert isinstance(answer, Held)
    assert (answer.holder, 0 < answer.left_ms <= TTL_MS) == (A, True)
    assert await take(scene, A_AGAIN) == Held(A, answer.left_ms) or await found(scene) == A
    assert await scene.state() == before


@pytest.mark.parametrize("who", [B, A, A_AGAIN], ids=["another", "the same value", "a new term"])
async def test_once_it_has_expired_anybody_takes_it_in_a_new_term(scene: Scene, who: str) -> None:
    await take(scene, A)
    await expire(scene)
    assert (await taken(scene, who)).token == 2
    assert await found(scene) == who


@pytest.mark.parametrize("holder", ["", B, A_AGAIN], ids=["nobody", "another", "a new term"])
async def test_a_term_goes_on_only_while_its_lease_is_there(scene: Scene, holder: str) -> None:
    await take(scene, A)
    assert (await taken(scene, A, token=1)).token == 1
    await expire(scene)
    if holder:
        await take(scene, holder)
    before = await scene.state()
    answer = await take(scene, A, token=1)
    assert isinstance(answer, Held)
    assert answer.holder == holder
    assert await scene.state() == before


async def test_the_new_holder_learns_the_former_group_settings(scene: Scene) -> None:
    await take(scene, A, visibility_ms=5_000)
    await expire(scene)
    assert (await taken(scene, B)).before == ("stream", "5000", "3", "reaper")
    assert (await scene.state())["{orders}:group:billing"] == {"token": "2", **FIRST}


async def test_an_attempt_whose_reply_was_lost_wins_again_with_the_same_token(scene: Scene) -> None:
    mine = holder_of("alice", "a", HOUR_MS)
    await take(scene, mine, ttl_ms=HOUR_MS)
    await scene.client.pexpire(scene.keys.lease, HOUR_MS // 2)
    before = await scene.state()
    assert (await taken(scene, mine, ttl_ms=HOUR_MS)).token == 1
    assert await scene.client.pttl(scene.keys.lease) > HOUR_MS // 2
    assert await scene.state() == before


async def test_a_holder_writes_the_settings_again_and_keeps_its_term(scene: Scene) -> None:
    await take(scene, A)
    await scene.client.delete(scene.keys.settings)
    assert await take(scene, A, visibility_ms=60_000) == Taken(1, "", ("", "", "", "")), "0 would say that it lost"
    group_settings = (await scene.state())["{orders}:group:billing"]
    assert group_settings == {**FIRST, "visibility_ms": "60000", "token": "1"}


async def test_a_holder_that_knows_its_token_writes_it_again(scene: Scene) -> None:
    await scene.set_settings(token="6")  # noqa: S106 - a number
    await take(scene, A)
    await scene.client.delete(scene.keys.settings)
    assert (await taken(scene, A, token=7)).token == 7
    await expire(scene)
    assert (await taken(scene, B)).token == 8


async def test_an_offer_lets_in_the_one_that_it_is_for_and_nobody_else(scene: Scene) -> None:
    await take(scene, A)
    await hand(scene, A, "bob")
    carol, alice = await take(scene, holder_of("carol")), await take(scene, A)
    assert isinstance(carol, Held)
    assert isinstance(alice, Held)
    assert (carol.holder, 0 < carol.left_ms <= 2_000) == ("offer:bob", True)
    assert (await taken(scene, B)).token == 2
    assert await found(scene) == B
    assert await scene.client.pttl(scene.keys.lease) > 2_000


async def test_an_offer_that_nobody_has_taken_ends(scene: Scene) -> None:
    await take(scene, A)
    await hand(scene, A, "bob")
    await expire(scene)
    assert (await taken(scene, A_AGAIN)).token == 2


@pytest.mark.parametrize("lost", ["many", "-1", "1.5", ""])
async def test_a_token_that_is_no_number_begins_anew(scene: Scene, lost: str) -> None:
    await scene.set_settings(token=lost)
    assert (await taken(scene, A)).token == 1
    assert (await scene.state())["{orders}:group:billing"]["token"] == "1"  # noqa: S105 - a number


@pytest.mark.parametrize("expiry_ms", [None, 10 * HOUR_MS], ids=["no expiry", "clock set back"])
@pytest.mark.parametrize(
    ("lease", "longest_ms"),
    [(holder_of("bob", "c", 40_000), 40_000), ("who is this", TTL_MS), ("offer:carol", TTL_MS)],
    ids=["its own TTL", "ours", "an offer"],
)
async def test_an_endless_lease_is_cut(scene: Scene, lease: str, longest_ms: int, expiry_ms: int | None) -> None:
    await scene.client.set(scene.keys.lease, lease, px=expiry_ms)
    assert await take(scene, A) == Held(lease, longest_ms)
    assert longest_ms - 5_000 < await scene.client.pttl(scene.keys.lease) <= longest_ms
    assert await found(scene) == lease


async def test_a_lease_longer_than_ours_is_left_alone(scene: Scene) -> None:
    theirs = holder_of("bob", "c", 10 * TTL_MS)
    await scene.client.set(scene.keys.lease, theirs, px=9 * TTL_MS)
    answer = await take(scene, A)
    assert isinstance(answer, Held)
    assert (answer.holder, TTL_MS < answer.left_ms <= 9 * TTL_MS) == (theirs, True)


async def test_a_replica_may_have_dots_and_at_signs_in_its_name(scene: Scene) -> None:
    mine = holder_of("host.1@x")
    await take(scene, A)
    await hand(scene, A, "host.1@x")
    assert (await taken(scene, mine)).token == 2
    assert isinstance(await take(scene, holder_of("host")), Held)


@pytest.mark.parametrize("denied", ["set", "hset"])
async def test_a_replica_that_misses_a_permission_takes_no_lease(scene: Scene, denied: str) -> None:
    await take(scene, B)
    await hand(scene, B, "")
    await scene.client.acl_setuser("poor", enabled=True, nopass=True, keys=["*"], commands=["+@all", f"-{denied}"])
    other = scene.client.connection_pool.connection_kwargs
    async with Redis(host=other["host"], port=other["port"], username="poor", password="x") as client:  # noqa: S106 - of a test's server
        with pytest.raises(ResponseError):
            await take(replace(scene, client=client), A)
    assert await scene.client.get(scene.keys.lease) is None
    assert (await taken(scene, A)).token > 1, "no two terms have the same token"


# ---- replies


async def test_a_term_is_told_of_where_there_is_a_journal(scene: Scene) -> None:
    await scene.client.xadd(scene.keys.journal, {"event": "joined", "group": "billing"})
    await take(scene, A)
    await take(scene, A)
    [_, told] = (await scene.state())["{orders}:journal"]
    assert told == ("lease_taken", "", {"group": "billing", "holder": A, "token": 1})


async def test_an_idle_group_gets_no_journal_for_it(scene: Scene) -> None:
    await take(scene, A)
    assert not await scene.client.exists(scene.keys.journal)


async def test_a_broken_journal_keeps_nobody_from_the_lease(scene: Scene) -> None:
    await scene.client.set(scene.keys.journal, "in the way")
    assert (await taken(scene, A)).token == 1


# ---- the layout of the stream


async def test_a_policy_that_cannot_work_here_is_reported(scene: Scene) -> None:
    await scene.client.xgroup_create("orders", "audit", "0")
    assert (await taken(scene, A)).unsupported == "several_groups"
    assert (await taken(scene, A, policy="retry-stream")).unsupported == ""


async def test_an_empty_stream_that_a_library_made_by_one_entry_is_served(scene: Scene) -> None:
    """As walrus makes it; and a group on it, which begins there."""
    for made in ("0-1", "5-1"):
        await scene.client.delete("orders")
        await scene.add(at=made)
        await scene.client.xdel("orders", made)
        await scene.client.xgroup_create("orders", "billing", "0")
        knows = made == "0-1" or "entries-added" in await scene.client.xinfo_stream("orders")
        assert (await taken(scene, A)).unsupported == ("" if knows else "explicit_ids")


async def test_a_stream_of_explicit_ids_is_reported_though_it_is_empty_by_now(scene: Scene) -> None:
    for made in ("5-1", "6-1"):
        await scene.add(at=made)
        assert (await taken(scene, A)).unsupported == "explicit_ids"
        await scene.client.xdel("orders", made)
    assert (await taken(scene, A)).unsupported == "explicit_ids"


async def test_the_retry_stream_is_made_with_its_group_where_the_policy_needs_it(scene: Scene) -> None:
    await take(scene, A, policy="retry-stream")
    assert (await scene.state())["{orders}:retry:billing"] == {"entries": [], "billing": []}


async def test_a_stream_that_does_not_exist_yet_can_be_served(scene: Scene) -> None:
    await scene.client.delete("orders")
    assert (await taken(scene, A)).unsupported == ""
    assert "orders" not in await scene.state()


@pytest.mark.parametrize("key", ["stream", "lease"])
async def test_a_key_of_another_type_is_an_error_and_changes_nothing(scene: Scene, key: str) -> None:
    broken: str = getattr(scene.keys, key)
    await scene.client.delete(broken)
    await scene.client.hset(broken, "in", "the way")
    before = await scene.state()
    with pytest.raises(Exception, match="WRONGTYPE"):
        await take(scene, A)
    assert await scene.state() == before


async def test_a_lease_can_be_taken_when_memory_is_full(scene: Scene) -> None:
    await scene.fill_memory()
    answer = await take(scene, A, policy="retry-stream")
    again = await take(scene, A, policy="retry-stream")
    await scene.free_memory()
    assert isinstance(answer, Taken)
    assert isinstance(again, Taken)
    assert "{orders}:retry:billing" in await scene.state()


# ---- former values


async def in_force(scene: Scene, name: str) -> int | None:
    """Return a number of the group_settings."""
    value = await scene.client.hget(scene.keys.settings, name)
    return None if value is None else int(value)


async def test_other_fields_of_the_group_settings_stay(scene: Scene) -> None:
    await scene.set_settings(paused="1", recovered="5", last_id="1-1")
    await take(scene, A)
    group_settings = (await scene.state())["{orders}:group:billing"]
    assert {"paused": "1", "recovered": "5", "last_id": "1-1"}.items() <= group_settings.items()


async def test_former_values_are_kept_for_a_while_if_they_are_lowered(scene: Scene) -> None:
    await scene.set_settings(policy="stream", visibility_ms=60_000, max_deliveries=5, recovery="reaper")
    await take(scene, A, visibility_ms=20_000)
    assert await in_force(scene, "former_visibility_ms") == 60_000
    assert await in_force(scene, "former_max_deliveries") == 5
    await take(scene, A, visibility_ms=6_000)
    assert await in_force(scene, "former_visibility_ms") == 60_000, "the longest of those that somebody may go by"
    assert await in_force(scene, "former_left") == 35_000
    await scene.set_settings(former_left=0)
    await take(scene, A, visibility_ms=4_000)
    assert await in_force(scene, "former_visibility_ms") == 6_000


@pytest.mark.parametrize(
    ("since_beat_ms", "left_ms"), [(1_000, 36_000), (-1_000, 35_000), (30_000, 35_000), (-3_600_000, 35_000)]
)
async def test_the_next_beat_does_not_take_off_earlier_time(scene: Scene, since_beat_ms: int, left_ms: int) -> None:
    """The settings may change long after the last beat, and the clock may have been set back between the two."""
    now_ms = await scene.now_ms()
    beat = {"beat": now_ms - since_beat_ms, "unbroken": 1}
    await scene.set_settings(policy="stream", visibility_ms=60_000, max_deliveries=5, recovery="reaper", **beat)
    await take(scene, A, visibility_ms=20_000)
    left = await in_force(scene, "former_left")
    assert left is not None
    assert left_ms <= left < left_ms + 5_000


async def test_first_and_raised_settings_keep_no_former_values(scene: Scene) -> None:
    await take(scene, A, visibility_ms=6_000, max_deliveries=2)
    await take(scene, A)
    assert await in_force(scene, "former_visibility_ms") is None
    assert await in_force(scene, "former_left") is None
