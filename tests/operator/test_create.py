"""``reaper groups create``: an empty Redis gets the groups that a reaper needs."""

from functools import partial

import pytest
from redis.asyncio import Redis

from tests.operator.conftest import Command, run_command
from tests.support.dump import dump
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio


async def test_on_an_empty_server_it_creates_streams_and_groups(reaper: Command, client: Redis) -> None:
    answer = await reaper("groups", "create", "orders/billing", "mail/sender", "orders/billing")
    assert (answer.code, answer.out) == (0, "orders/billing: created\nmail/sender: created\n")
    (group,) = await client.xinfo_groups("orders")
    assert group["name"] == b"billing"


async def test_twice_changes_nothing(reaper: Command, client: Redis) -> None:
    await reaper("groups", "create", "orders/billing")
    await client.xadd("orders", {"order": 17})
    await client.xreadgroup("billing", "w1", {"orders": ">"})
    before = await dump(client)
    answer = await reaper("groups", "create", "orders/billing", "-o", "json")
    assert answer.data == [{"group": "orders/billing", "created": False}]
    assert await dump(client) == before


async def test_a_redelivery_that_fits_is_named_by_the_doctor(reaper: Command) -> None:
    groups = ("orders/billing", "orders/search")
    await reaper("groups", "create", *groups)
    ask = partial(reaper, "doctor", "--groups", ",".join(groups))
    findings = (await ask("-o", "json")).data["findings"]
    assert [one["group"] for one in findings if one["check"] == "layout" and "retry-stream" in one["text"]] == [*groups]
    assert "layout" not in (await ask("--redelivery", "retry-stream")).out


async def test_a_pattern_is_rejected(reaper: Command, client: Redis) -> None:
    answer = await reaper("groups", "create", "orders:*/billing")
    assert answer.code == 2
    assert "'orders:*/billing': it is a pattern" in answer.err
    assert await client.keys() == []


@pytest.mark.parametrize(("words", "ready"), [((), 1), (("--from", "now"), 0)], ids=["start", "now"])
async def test_a_new_group_gets_what_is_in_the_stream_unless_told_otherwise(
    reaper: Command, client: Redis, words: tuple[str, ...], ready: int
) -> None:
    await client.xadd("orders", {"order": 17})
    await reaper("groups", "create", "orders/billing", *words)
    read = await client.execute_command("XREADGROUP", "GROUP", "billing", "w1", "STREAMS", "orders", ">")
    assert len(read or ()) == ready


@pytest.mark.parametrize(("last_id", "ready"), [("5-0", 1), ("6-0", 0), ("7-0", 2), ("?", 2)])
async def test_a_destroyed_group_continues_where_it_was(
    reaper: Command, client: Redis, last_id: str, ready: int
) -> None:
    """A position behind the last entry is of an earlier stream."""
    for entry_id in ("5-0", "6-0"):
        await client.xadd("orders", {"order": 17}, id=entry_id)
    await client.hset("{orders}:group:billing", "last_id", last_id)
    await reaper("groups", "create", "orders/billing")
    read = await client.execute_command("XREADGROUP", "GROUP", "billing", "w1", "STREAMS", "orders", ">")
    assert len(read[0][1] if read else ()) == ready


async def test_a_key_that_is_no_stream_is_a_sentence(reaper: Command, client: Redis) -> None:
    await client.set("orders", "something else")
    answer = await reaper("groups", "create", "orders/billing")
    assert answer.code == 2
    assert "WRONGTYPE" in answer.err


async def test_who_may_not_create_groups_is_told_who_has_to_do_what(client: Redis, server: RedisServer) -> None:
    await client.execute_command("ACL", "SETUSER", "reader", "on", ">pass", "~*", "+@read", "+info", "+client")
    answer = await run_command(f"redis://reader:pass@127.0.0.1:{server.port}/0", "groups", "create", "orders/billing")
    assert answer.code == 2
    assert "XGROUP CREATE orders billing 0 MKSTREAM" in answer.err
