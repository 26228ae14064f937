"""register.lua: a replica says that it lives, and learns which others do that may hold its groups."""

from typing import Any

import pytest
from redis.asyncio import Redis

from workers.protocol.keys import namespace_keys
from workers.protocol.scripts import load_script
from workers.runtime.clock import server_ms

pytestmark = pytest.mark.anyio

KEYS = namespace_keys("reaper")
GONE_MS, FORGET_MS = 60_000, 600_000
OURS, OTHERS = "0a1b2c", "ffffff"
"""Digests of settings."""


async def register(client: Redis, replica: str, word: str = "", *, digest: str = OURS) -> list[str]:
    """Return the replicas that may hold groups, in any order."""
    _, _, _, *able = await answer(client, replica, word, digest=digest)
    return sorted(one.decode() for one in able)


async def answer(
    client: Redis, replica: str, word: str = "", *, digest: str = OURS, scan_ms: int | str = ""
) -> list[Any]:
    """Register, and return what the script answers behind the time."""
    at_ms, *rest = await load_script("reaper", "register").run(
        client,
        [KEYS.replicas, KEYS.live, KEYS.drained, KEYS.groups, KEYS.watched, KEYS.scanned],
        [digest, replica, word, GONE_MS, FORGET_MS, "", scan_ms],
    )
    assert abs(at_ms - await server_ms(client)) < 5_000
    return list(rest)


async def gets_turn(client: Redis, replica: str, *, digest: str = OURS) -> bool:
    """Register as a replica that scans every minute, and return whether it is to scan now."""
    _, _, is_our_turn, *_ = await answer(client, replica, digest=digest, scan_ms=60_000)
    return bool(is_our_turn)


async def seen(client: Redis, replica: str, ago_ms: int, *, digest: str = OURS) -> None:
    """Let a replica have registered a while ago, and have said something of itself."""
    at_ms = await server_ms(client) - ago_ms
    await client.zadd(KEYS.live, {f"{digest}/{replica}": at_ms})
    await client.hset(KEYS.replicas, replica, "{}")


async def live(client: Redis) -> list[str]:
    """Return the members of the sorted set of live replicas."""
    members: Any = await client.zrange(KEYS.live, 0, -1)
    return sorted(member.decode() for member in members)


async def test_a_replica_that_registers_is_alive_and_says_what_it_says(client: Redis) -> None:
    assert await register(client, "alice", '{"v":1}') == ["alice"]
    assert await live(client) == [f"{OURS}/alice"]
    assert await client.hgetall(KEYS.replicas) == {b"alice": b'{"v":1}'}
    score = await client.zscore(KEYS.live, f"{OURS}/alice")
    assert score is not None
    assert abs(score - await server_ms(client)) < 5_000


async def test_its_word_stays_where_it_has_nothing_new_to_say(client: Redis) -> None:
    await register(client, "alice", '{"v":1}')
    await register(client, "alice")
    assert await client.hgetall(KEYS.replicas) == {b"alice": b'{"v":1}'}
    await register(client, "bob")
    assert await client.hgetall(KEYS.replicas) == {b"alice": b'{"v":1}'}


@pytest.mark.parametrize(
    ("ago_ms", "is_able"),
    [(GONE_MS - 10_000, True), (GONE_MS + 1, False), (10_000 - GONE_MS, True), (-GONE_MS - 10_000, False)],
)
async def test_a_replica_is_gone_that_registered_long_ago_or_far_ahead_because_the_clock_was_set_back(
    client: Redis, ago_ms: int, is_able: bool
) -> None:
    await seen(client, "bob", ago_ms)
    assert await register(client, "alice") == ["alice", *["bob"] * is_able]
    assert f"{OURS}/bob" in await live(client), "it is not forgotten yet"


@pytest.mark.parametrize("ago_ms", [FORGET_MS + 1, -(FORGET_MS + 10_000)])
async def test_a_replica_that_is_long_gone_is_forgotten(client: Redis, ago_ms: int) -> None:
    await seen(client, "bob", ago_ms)
    await seen(client, "carol", GONE_MS + 1)
    await register(client, "alice")
    assert await live(client) == [f"{OURS}/alice", f"{OURS}/carol"]
    assert await client.hkeys(KEYS.replicas) == [b"carol"]


async def test_a_replica_that_registers_after_a_long_silence_is_alive(client: Redis) -> None:
    await seen(client, "alice", FORGET_MS + 1)
    assert await register(client, "alice") == ["alice"]
    assert await client.hexists(KEYS.replicas, "alice"), "its own word is not forgotten"


async def test_replicas_with_other_settings_take_no_groups_from_each_other(client: Redis) -> None:
    await register(client, "bob", digest=OTHERS)
    assert await register(client, "alice") == ["alice"]
    assert await register(client, "bob", digest=OTHERS) == ["bob"]
    assert await live(client) == [f"{OURS}/alice", f"{OTHERS}/bob"]


async def test_a_replica_that_has_other_settings_now_is_not_alive_twice(client: Redis) -> None:
    await register(client, "bob", digest=OTHERS)
    await register(client, "alice")
    assert await register(client, "bob") == ["alice", "bob"]
    assert await live(client) == [f"{OURS}/alice", f"{OURS}/bob"]
    assert await register(client, "alice") == ["alice", "bob"]


async def test_a_drained_replica_may_hold_nothing_until_then(client: Redis) -> None:
    await register(client, "bob")
    await client.zadd(KEYS.drained, {"bob": await server_ms(client) + 60_000, "gone": 1})
    assert await register(client, "alice") == ["alice"]
    assert await register(client, "bob") == ["alice"], "it learns so itself"
    assert await client.zrange(KEYS.drained, 0, -1) == [b"bob"]
    await client.zadd(KEYS.drained, {"bob": await server_ms(client) - 1})
    assert await register(client, "bob") == ["alice", "bob"]
    assert not await client.exists(KEYS.drained)


async def test_a_replica_can_register_when_memory_is_full(client: Redis) -> None:
    await client.config_set("maxmemory", "1")
    able = await register(client, "alice", '{"v":1}')
    await client.config_set("maxmemory", "0")
    assert able == ["alice"]
    assert await client.hexists(KEYS.replicas, "alice")


async def test_a_member_that_no_replica_wrote_is_passed_over(client: Redis) -> None:
    await client.zadd(KEYS.live, {"nobody": await server_ms(client), "xyz/bob": await server_ms(client)})
    assert await register(client, "alice") == ["alice"]


# ---- scanning for the streams of patterns


async def test_one_replica_of_those_with_the_same_settings_scans_in_an_interval(client: Redis) -> None:
    assert [await gets_turn(client, one) for one in ("alice", "bob", "alice")] == [True, False, False]
    assert await gets_turn(client, "eve", digest=OTHERS), "it looks for other streams"


@pytest.mark.parametrize("in_ms", [-1, 70_000], ids=["it is due", "the clock was set back"])
async def test_a_scan_is_due_at_its_time_and_not_later_than_in_one_interval(client: Redis, in_ms: int) -> None:
    await client.zadd(KEYS.scanned, {OURS: await server_ms(client) + in_ms})
    assert await gets_turn(client, "alice")


async def test_a_replica_without_patterns_learns_the_version_of_watched_groups(client: Redis) -> None:
    assert await answer(client, "alice") == [0, b"", 0, b"alice"]
    assert not await client.exists(KEYS.scanned)
    await client.hset(KEYS.watched, "version", "7")
    assert (await answer(client, "host.1/x-2"))[1:] == [b"7", 0, b"alice", b"host.1/x-2"]
