"""watch.lua: people and scans change which groups are watched."""

import pytest
from redis.asyncio import Redis

from reaper.watched import PAGE, change_watched, read_found
from workers.protocol.keys import namespace_keys

pytestmark = pytest.mark.anyio

KEYS = namespace_keys("reaper")
FOUND = {"orders:1/billing": "orders:*/billing"}


async def version(client: Redis) -> int:
    """Return the version that replicas see as they register."""
    return int(await client.hget(KEYS.watched, "version") or 0)


async def test_a_scan_adds_what_it_found_and_removes_what_is_gone(client: Redis) -> None:
    assert await change_watched(client, KEYS, add=FOUND) == 1
    assert await read_found(client, KEYS) == FOUND
    assert await change_watched(client, KEYS, remove=["orders:1/billing"]) == 1
    assert await read_found(client, KEYS) == {}


async def test_a_scan_leaves_alone_what_a_person_added(client: Redis) -> None:
    await change_watched(client, KEYS, add={"orders:1/billing": ""}, by_person=True)
    assert await change_watched(client, KEYS, add=FOUND, remove=[*FOUND]) == 0
    assert await read_found(client, KEYS) == {"orders:1/billing": ""}


async def test_a_person_makes_a_found_group_a_named_one_and_removes_any(client: Redis) -> None:
    await change_watched(client, KEYS, add=FOUND)
    assert await change_watched(client, KEYS, add={"orders:1/billing": ""}, by_person=True) == 1
    assert await read_found(client, KEYS) == {"orders:1/billing": ""}
    assert await change_watched(client, KEYS, remove=[*FOUND], by_person=True) == 1
    assert await read_found(client, KEYS) == {}


async def test_each_change_is_a_new_version_and_nothing_else_is(client: Redis) -> None:
    await client.hset(KEYS.watched, "version", "999999999999999")
    await change_watched(client, KEYS, add=FOUND)
    changed = await version(client)
    assert changed == 1_000_000_000_000_000, "the clock of the server was set back"
    await change_watched(client, KEYS, add=FOUND)
    await change_watched(client, KEYS, remove=["absent/billing"])
    assert await version(client) == changed


async def test_many_groups_are_written_in_pages(client: Redis) -> None:
    many = {f"orders:{number}/billing": "orders:*/billing" for number in range(2 * PAGE + 1)}
    assert await change_watched(client, KEYS, add=many) == len(many)
    assert await read_found(client, KEYS) == many
    assert await change_watched(client, KEYS, remove=[*many]) == len(many)
