"""A server that an address was not meant for is recognised before anything is sent to it."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis.exceptions import RedisError

from tests.conftest import StartServer
from tests.support.sentinel import SentinelServer
from tests.support.servers import RedisServer, free_port
from workers import Producer
from workers.protocol.address import Topology
from workers.protocol.connection import blocking_client, commands_client, reader_client
from workers.protocol.errors import UnreachableError
from workers.protocol.meaning import Meaning, WrongNodeError, meaning_of
from workers.protocol.nodes import objection_to_node
from workers.protocol.server import check_server

pytestmark = pytest.mark.anyio

SINGLE, SENTINEL, CLUSTER = Topology.SINGLE, Topology.SENTINEL, Topology.CLUSTER


def hello(mode: bytes, role: bytes = b"master") -> list[Any]:
    """Return a reply to HELLO."""
    return [b"server", b"redis", b"proto", 2, b"id", 7, b"mode", mode, b"role", role, b"modules", []]


@pytest.mark.parametrize(
    ("reply", "topology", "objection"),
    [
        (hello(b"standalone"), SINGLE, ""),
        (hello(b"standalone"), SENTINEL, ""),
        (hello(b"standalone", b"replica"), SINGLE, "a replica answers"),
        (hello(b"standalone", b"slave"), SINGLE, "a replica answers"),
        (hello(b"standalone", b"replica"), SENTINEL, "have not finished"),
        (hello(b"sentinel"), SINGLE, "a Sentinel answers"),
        (hello(b"sentinel"), SENTINEL, "or a Sentinel"),
        (hello(b"cluster"), SINGLE, "a node of a cluster"),
        (hello(b"cluster", b"replica"), SINGLE, "a node of a cluster"),
        (hello(b"cluster"), SENTINEL, "a node of a cluster"),
        (hello(b"cluster"), CLUSTER, ""),
        (hello(b"cluster", b"replica"), CLUSTER, "they have not finished"),
        (hello(b"standalone"), CLUSTER, "no node of a cluster"),
        (hello(b"sentinel"), CLUSTER, "a Sentinel"),
        (None, SINGLE, ""),
        ([], SENTINEL, ""),
    ],
)
def test_what_a_server_says_of_itself_decides(reply: Any, topology: Topology, objection: str) -> None:
    found = objection_to_node(reply, topology)
    assert found.startswith(objection) or objection in found
    assert bool(found) == bool(objection)


@pytest.fixture(params=["replica", "sentinel", "cluster"])
def stranger(request: pytest.FixtureRequest, binary: Path, start_server: StartServer) -> Iterator[tuple[str, str]]:
    """The address of a server that is none of ours to use, and what is said of it."""
    if request.param == "replica":
        server = start_server()
        server.command("REPLICAOF", "127.0.0.1", str(free_port()))
        yield server.url, "a replica answers there, .*name its master"
    elif request.param == "cluster":
        yield start_server(cluster_enabled="yes").url, r"a node of a cluster answers there.* redis\+cluster://"
    else:
        with SentinelServer.started(binary) as sentinel:
            yield sentinel.url, r"a Sentinel answers there.*write redis\+sentinel://"


@pytest.mark.parametrize("factory", [commands_client, reader_client])
async def test_a_server_that_the_address_does_not_mean_is_told_in_one_sentence(
    stranger: tuple[str, str], factory: Callable[[str], Any]
) -> None:
    url, sentence = stranger
    async with factory(url) as client:
        with pytest.raises(WrongNodeError, match=sentence) as caught:
            await client.execute_command("XADD", "orders", "*", "n", "1")
        assert meaning_of(caught.value) is Meaning.AWAY
        with pytest.raises(UnreachableError, match=f"cannot use Redis at .*{sentence}"):
            await check_server(client, url)


def test_the_blocking_client_asks_who_answers_as_well(stranger: tuple[str, str]) -> None:
    url, sentence = stranger
    with closing(blocking_client(url)) as client, pytest.raises(WrongNodeError, match=sentence):
        client.ping()


async def test_a_producer_says_so_too(stranger: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.outbox.RETRY_FOR_S", 0.0)
    url, sentence = stranger
    async with Producer("orders", url) as orders:
        with pytest.raises(UnreachableError, match=sentence):
            await orders.enqueue({"n": 1})


async def test_who_may_do_nothing_at_all_is_let_in(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "nobody", "reset", "on", ">p", "-@all")
    async with commands_client(server.url.replace("//", "//nobody:p@")) as client:
        with pytest.raises(RedisError, match=r"no permissions|NOPERM") as caught:
            await client.execute_command("PING")
        assert meaning_of(caught.value) is Meaning.DENIED
    server.command("ACL", "DELUSER", "nobody")


async def test_who_is_not_let_in_hears_of_that_and_of_nothing_else(start_server: StartServer) -> None:
    server = start_server()
    server.command("CONFIG", "SET", "requirepass", "secret")
    async with commands_client(server.url) as client:
        with pytest.raises(RedisError, match="Authentication required") as caught:
            await client.execute_command("PING")
    assert meaning_of(caught.value) is Meaning.LOCKED_OUT


async def test_a_server_that_becomes_a_replica_is_left_and_met_again_when_it_is_a_master(server: RedisServer) -> None:
    async with commands_client(server.url, max_connections=1) as client:
        await client.ping()
        server.command("REPLICAOF", "127.0.0.1", str(free_port()))
        await client.connection_pool.disconnect()
        with pytest.raises(WrongNodeError):
            await client.ping()
        server.command("REPLICAOF", "NO", "ONE")
        with anyio.fail_after(30), suppress(RedisError):
            assert await client.ping()
