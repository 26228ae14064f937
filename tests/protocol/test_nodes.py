"""A program learns at its start what kind of server answers, and what that server knows."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.conftest import StartServer
from tests.support.sentinel import SentinelServer
from tests.support.servers import RedisServer, free_port, release_of
from workers.protocol.connection import commands_client
from workers.protocol.errors import UnreachableError
from workers.protocol.meaning import Meaning, meaning_of
from workers.protocol.server import check_server, knows_claim

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["replica", "sentinel", "node"])
def stranger(request: pytest.FixtureRequest, binary: Path, start_server: StartServer) -> Iterator[tuple[str, str]]:
    """The address of a server of another kind, and the sentence about it."""
    if request.param == "replica":
        server = start_server()
        server.command("REPLICAOF", "127.0.0.1", str(free_port()))
        yield server.url, "a replica answers there. Name its master"
    elif request.param == "node":
        yield start_server(cluster_enabled="yes").url, r"a node of a cluster answers there.* redis\+cluster://"
    else:
        with SentinelServer.started(binary) as sentinel:
            yield sentinel.url, r"a Sentinel answers there.*Write redis\+sentinel://"


async def test_a_server_of_another_kind_is_rejected_in_one_sentence(stranger: tuple[str, str]) -> None:
    url, sentence = stranger
    async with commands_client(url) as client:
        with pytest.raises(UnreachableError, match=f"cannot use Redis at .*{sentence}"):
            await check_server(client, url)


async def test_a_user_without_rights_is_let_in(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "nobody", "reset", "on", ">p", "-@all")
    async with commands_client(server.url.replace("//", "//nobody:p@")) as client:
        with pytest.raises(RedisError, match=r"no permissions|NOPERM") as caught:
            await client.execute_command("PING")
        assert meaning_of(caught.value) is Meaning.DENIED
    server.command("ACL", "DELUSER", "nobody")


# ---- whether the server knows CLAIM


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
