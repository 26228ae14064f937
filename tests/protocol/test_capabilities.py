"""A server is asked whether it knows CLAIM, and asking does nothing."""

import pytest
from redis.asyncio import Redis

from tests.support.servers import RedisServer, release_of
from workers.protocol.connection import commands_client
from workers.protocol.server import knows_claim

pytestmark = pytest.mark.anyio


def has_claim(server: RedisServer) -> bool:
    """Return whether Redis's documentation says so. Valkey 9.1 has none."""
    product, version = release_of(server.binary)
    return product == "Redis" and version >= (8, 4)


async def test_claim_is_found_and_asking_writes_nothing(server: RedisServer, client: Redis) -> None:
    assert await knows_claim(client, "absent") is has_claim(server)
    assert await client.dbsize() == 0


async def test_asking_does_nothing_even_where_the_key_is_there(server: RedisServer, client: Redis) -> None:
    await client.xadd("there", {"f": "v"})
    await client.xgroup_create("there", "h", "0")
    before = await client.xinfo_stream("there"), await client.xinfo_groups("there")
    assert await knows_claim(client, "there") is has_claim(server)
    assert (await client.xinfo_stream("there"), await client.xinfo_groups("there")) == before


async def test_what_our_user_may_not_ask_is_unknown(server: RedisServer, client: Redis) -> None:
    await client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">p", "-@all", "+ping", "~*")
    async with commands_client(server.url.replace("//", "//limited:p@")) as limited:
        assert await knows_claim(limited, "absent") is None
