"""acquire, renew and release the lease, and raise the token: leadership and its number."""

from typing import Any

import pytest
from redis.asyncio import Redis

from tests.support.dump import dump
from workers.protocol.keys import namespace_keys
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

KEYS = namespace_keys("reaper")
TTL_MS = 10_000
HOUR_MS = 3_600_000
"""A lease that no busy machine lets expire."""


async def acquire(client: Redis, holder: str = "alice", ttl_ms: int = TTL_MS) -> tuple[int, int, str, int]:
    """Return won, token, holder now, and the lease's remaining ms."""
    reply = await load_script("reaper", "acquire_lease").run(
        client, [KEYS.lease, KEYS.token, KEYS.replicas, KEYS.journal, KEYS.step_down], [holder, ttl_ms, 1_000]
    )
    seconds, _ = await client.time()
    assert abs(reply[4] - seconds * 1000) < 5_000
    return reply[0], reply[1], reply[2].decode(), reply[3]


async def renew(client: Redis, holder: str = "alice", ttl_ms: int = TTL_MS) -> int:
    """Return 1 renewed, 0 not ours, 2 asked to step down."""
    renewed, server_ms = await load_script("reaper", "renew_lease").run(
        client, [KEYS.lease, KEYS.step_down], [holder, ttl_ms]
    )
    seconds, _ = await client.time()
    assert abs(server_ms - seconds * 1000) < 5_000
    return int(renewed)


async def release(client: Redis, holder: str = "alice") -> Any:
    """Return 1 released, 0 not ours."""
    return await load_script("reaper", "release_lease").run(
        client, [KEYS.lease, KEYS.journal], [holder, 1, "resigned", 1_000]
    )


async def raise_token(client: Redis, at_least: int, holder: str = "alice") -> Any:
    """Return 1 raised or high enough, 0 not the holder."""
    return await load_script("reaper", "raise_token").run(client, [KEYS.lease, KEYS.token], [holder, at_least])


async def test_the_first_one_wins_the_lease_and_a_token(client: Redis) -> None:
    assert await acquire(client) == (1, 1, "alice", TTL_MS)
    assert await dump(client) == {
        "{reaper}:lease": "alice",
        "{reaper}:token": "1",
        "{reaper}:journal": [("lease_acquired", "", {"holder": "alice", "token": 1})],
    }
    assert 0 < await client.pttl(KEYS.lease) <= TTL_MS


async def test_while_it_is_held_the_others_lose_and_learn_for_how_long(client: Redis) -> None:
    await acquire(client)
    before = await dump(client)
    won, token, holder, left = await acquire(client, "bob")
    assert (won, token, holder, 0 < left <= TTL_MS) == (0, 0, "alice", True)
    assert await dump(client) == before


async def test_an_attempt_whose_reply_was_lost_wins_again_with_the_same_token(client: Redis) -> None:
    await acquire(client, ttl_ms=HOUR_MS)
    await client.pexpire(KEYS.lease, HOUR_MS // 2)
    before = await dump(client)
    assert await acquire(client, ttl_ms=HOUR_MS) == (1, 1, "alice", HOUR_MS)
    assert await dump(client) == before
    assert await client.pttl(KEYS.lease) > HOUR_MS // 2


async def test_a_lease_of_ours_whose_token_was_lost_gets_a_new_one(client: Redis) -> None:
    await acquire(client)
    await client.delete(KEYS.token)
    assert (await acquire(client))[:2] == (1, 1)


async def test_each_term_has_a_higher_token(client: Redis) -> None:
    tokens = []
    for holder in ("alice", "bob", "alice"):
        tokens.append((await acquire(client, holder))[1])
        await client.delete(KEYS.lease)
    assert tokens == [1, 2, 3]


@pytest.mark.parametrize("expiry_ms", [None, 10 * TTL_MS], ids=["no expiry", "clock set back"])
async def test_a_lease_that_would_never_end_is_shortened(client: Redis, expiry_ms: int | None) -> None:
    await client.set(KEYS.lease, "gone", px=expiry_ms)
    assert await acquire(client) == (0, 0, "gone", TTL_MS)
    assert 0 < await client.pttl(KEYS.lease) <= TTL_MS


async def test_a_lease_longer_than_ours_is_left_alone(client: Redis) -> None:
    theirs = f"bob@{10 * TTL_MS}"
    await client.set(KEYS.lease, theirs, px=9 * TTL_MS)
    won, _, holder, left_ms = await acquire(client)
    assert (won, holder) == (0, theirs)
    assert TTL_MS < left_ms <= 9 * TTL_MS


async def test_a_leader_can_be_elected_when_memory_is_full(client: Redis) -> None:
    await client.config_set("maxmemory", "1")
    won = await acquire(client)
    renewed, raised = await renew(client), await raise_token(client, 9)
    released = await release(client)
    await client.config_set("maxmemory", "0")
    assert (won, renewed, raised, released) == ((1, 1, "alice", TTL_MS), 1, 1, 1)


@pytest.mark.parametrize("broken", [KEYS.journal, KEYS.replicas])
async def test_a_broken_journal_or_register_stops_no_election(client: Redis, broken: str) -> None:
    await client.set(broken, "in the way")
    assert (await acquire(client), await release(client)) == ((1, 1, "alice", TTL_MS), 1)


async def test_a_counter_that_is_none_is_an_error_and_no_lease_is_taken(client: Redis) -> None:
    await client.set(KEYS.token, "many")
    with pytest.raises(Exception, match="not an integer"):
        await acquire(client)
    assert await client.get(KEYS.lease) is None


async def test_the_holder_renews(client: Redis) -> None:
    await acquire(client, ttl_ms=HOUR_MS)
    await client.pexpire(KEYS.lease, HOUR_MS // 2)
    before = await dump(client)
    assert await renew(client, ttl_ms=HOUR_MS) == 1
    assert await client.pttl(KEYS.lease) > HOUR_MS // 2
    assert await dump(client) == before


@pytest.mark.parametrize("holder", [None, "bob"])
async def test_nobody_else_renews(client: Redis, holder: str | None) -> None:
    if holder:
        await client.set(KEYS.lease, holder, px=50_000)
    before = await dump(client)
    assert await renew(client) == 0
    assert await dump(client) == before
    assert holder is None or await client.pttl(KEYS.lease) > TTL_MS


async def test_the_holder_releases_and_says_why(client: Redis) -> None:
    await acquire(client)
    assert await release(client) == 1
    state = await dump(client)
    assert "{reaper}:lease" not in state
    assert state["{reaper}:journal"][1:] == [
        ("lease_released", "", {"holder": "alice", "token": 1, "reason": "resigned"})
    ]


@pytest.mark.parametrize("holder", [None, "bob"])
async def test_nobody_else_releases(client: Redis, holder: str | None) -> None:
    if holder:
        await client.set(KEYS.lease, holder)
    before = await dump(client)
    assert await release(client) == 0
    assert await dump(client) == before


@pytest.mark.parametrize(("current", "raised"), [(None, "7"), ("3", "7"), ("7", "7"), ("9", "9"), ("x", "7")])
async def test_the_holder_raises_the_token_and_never_lowers_it(client: Redis, current: str | None, raised: str) -> None:
    await acquire(client)
    await client.delete(KEYS.token)
    if current:
        await client.set(KEYS.token, current)
    assert await raise_token(client, 7) == 1
    assert (await dump(client))["{reaper}:token"] == raised


@pytest.mark.parametrize("holder", [None, "bob"])
async def test_nobody_else_raises_the_token(client: Redis, holder: str | None) -> None:
    if holder:
        await client.set(KEYS.lease, holder)
    before = await dump(client)
    assert await raise_token(client, 7) == 0
    assert await dump(client) == before


# --- stepping down

ALICE, ALICE_AGAIN, BOB = "host.alice-1.0a@10000", "host.alice-1.0b@10000", "host.bob-2.0c@10000"


async def ask_to_step_down(client: Redis, holder: str = ALICE, cooldown_ms: int = 60_000) -> int:
    """Return 1 asked, 0 not the holder."""
    reply: int = await load_script("reaper", "step_down").run(
        client, [KEYS.lease, KEYS.step_down], [holder, cooldown_ms]
    )
    return reply


async def test_a_holder_that_was_asked_to_step_down_renews_no_more(client: Redis) -> None:
    await acquire(client, ALICE)
    await client.pexpire(KEYS.lease, 5_000)
    assert await ask_to_step_down(client) == 1
    assert await renew(client, ALICE) == 2
    assert 0 < await client.pttl(KEYS.lease) <= 5_000
    assert 0 < await client.pttl(KEYS.step_down) <= 60_000


async def test_its_replica_leaves_the_lease_to_others_for_the_cooldown(client: Redis) -> None:
    await acquire(client, ALICE)
    await ask_to_step_down(client)
    await release(client, ALICE)
    won, token, holder, left_ms = await acquire(client, ALICE_AGAIN)
    assert (won, token, holder, 10_000 < left_ms <= 60_000) == (0, 0, "", True)
    assert await acquire(client, BOB) == (1, 2, BOB, TTL_MS)
    assert await renew(client, BOB) == 1


async def test_after_the_cooldown_it_may_be_elected_again(client: Redis) -> None:
    await acquire(client, ALICE)
    await ask_to_step_down(client)
    await release(client, ALICE)
    await client.pexpire(KEYS.step_down, 0)
    assert await acquire(client, ALICE_AGAIN) == (1, 2, ALICE_AGAIN, TTL_MS)


async def test_who_is_not_the_holder_is_not_asked(client: Redis) -> None:
    await acquire(client, BOB)
    before = await dump(client)
    assert await ask_to_step_down(client, ALICE) == 0
    assert await dump(client) == before


async def test_an_operator_can_ask_when_memory_is_full(client: Redis) -> None:
    await acquire(client, ALICE)
    await client.config_set("maxmemory", "1")
    asked, renewed, released = await ask_to_step_down(client), await renew(client, ALICE), await release(client, ALICE)
    await client.config_set("maxmemory", "0")
    assert (asked, renewed, released) == (1, 2, 1)
