"""What a server can is asked of it, and asking does nothing."""

import pytest
from redis.asyncio import Redis

from tests.conftest import StartServer
from tests.support.servers import RedisServer, release_of
from workers.protocol.connection import commands_client
from workers.protocol.messages import text
from workers.protocol.server import UNSEEN, Capability, capabilities_of, capabilities_quietly, in_words

pytestmark = pytest.mark.anyio

SINCE = {Capability.CLAIM: (8, 4), Capability.XNACK: (8, 8)}
"""As Redis's documentation has it. Valkey 9.1 has none."""


def expected_of(server: RedisServer) -> dict[Capability, bool]:
    product, version = release_of(server.binary)
    return {name: product == "Redis" and version >= since for name, since in SINCE.items()}


async def test_each_capability_is_found_where_it_is_and_nothing_is_written(server: RedisServer, client: Redis) -> None:
    assert await capabilities_of(client, "absent") == expected_of(server)
    assert await client.dbsize() == 0


async def test_asking_does_nothing_even_where_the_key_is_there(server: RedisServer, client: Redis) -> None:
    await client.xadd("there", {"f": "v"})
    await client.xgroup_create("there", "h", "0")
    before = await client.xinfo_stream("there"), await client.xinfo_groups("there")
    assert await capabilities_of(client, "there") == expected_of(server)
    assert (await client.xinfo_stream("there"), await client.xinfo_groups("there")) == before


async def test_what_our_user_may_not_ask_is_unknown(server: RedisServer, client: Redis) -> None:
    await client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">p", "-@all", "+ping", "~*")
    async with commands_client(server.url.replace("//", "//limited:p@")) as limited:
        found = await capabilities_of(limited, "absent")
    assert found == expected_of(server) | {Capability.CLAIM: None}


async def test_what_is_asked_quietly_is_not_refused_whoever_asks(server: RedisServer, client: Redis) -> None:
    await client.execute_command("ACL", "LOG", "RESET")
    await client.execute_command("ACL", "SETUSER", "nobody", "reset", "on", ">p", "-@all")
    async with commands_client(server.url.replace("//", "//nobody:p@")) as nobody:
        found = await capabilities_quietly(nobody)
    assert found == {name: can for name, can in expected_of(server).items() if name is not Capability.CLAIM}
    # redis-py introduces itself, which takes a right from 7.2 on.
    denied = {text(entry[entry.index(b"object") + 1]) for entry in await client.execute_command("ACL", "LOG")}
    assert denied <= {"client|setinfo", "client"}


async def test_a_replica_is_no_reason_to_deny_what_it_can(start_server: StartServer) -> None:
    server = start_server()
    async with commands_client(server.url, max_connections=1) as client:
        await client.ping()  # whoever connects later is told that it is a replica
        server.command("REPLICAOF", "127.0.0.1", str(server.port))
        found = await capabilities_of(client, "absent")
    expected = expected_of(server)
    assert all(can in (None, expected[name]) for name, can in found.items())
    assert found[Capability.XNACK] is expected[Capability.XNACK]


def test_people_read_the_features_of_the_server_and_those_that_are_unknown() -> None:
    can = dict.fromkeys(Capability, False)
    assert in_words(can) == in_words({}) == ""
    assert in_words(can | {Capability.CLAIM: True}) == "CLAIM"
    assert in_words(can | {Capability.CLAIM: None}) == "CLAIM unknown"
    assert in_words({Capability.CLAIM: True, Capability.XNACK: True}) == f"CLAIM, XNACK ({UNSEEN})"
