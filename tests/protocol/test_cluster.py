"""Clients find the node that has a key, go along when that moves, and say why nobody has it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from tests.support.cluster import Cluster, started_cluster
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.connection import KeptConnection, blocking_client, commands_client, reader_client
from workers.protocol.errors import UnreachableError
from workers.protocol.meaning import Meaning, meaning_of
from workers.protocol.server import check_server

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def cluster(binary: Path) -> Iterator[Cluster]:
    with started_cluster(binary) as running:
        yield running


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Redis]:
    async with commands_client(cluster.url) as client:
        yield client


def keys_everywhere(cluster: Cluster) -> list[str]:
    """Return a key for each node."""
    found: dict[int, str] = {}
    for number in range(100):
        found.setdefault(cluster.owner(f"key{number}").port, f"key{number}")
    assert len(found) == len(cluster.nodes)
    return list(found.values())


async def test_each_command_goes_to_the_node_that_has_its_key(cluster: Cluster, client: Redis) -> None:
    assert str(await check_server(client, cluster.url))
    for key in keys_everywhere(cluster):
        await client.set(key, key)
        assert cluster.owner(key).command("GET", key) == key.encode()
        pipeline = client.pipeline(transaction=True)
        pipeline.time()
        pipeline.get(key)
        assert (await pipeline.execute())[1] == key.encode()


async def test_a_client_of_one_key_leads_to_its_node(cluster: Cluster) -> None:
    for key in keys_everywhere(cluster):
        async with commands_client(cluster.url, key=key) as client, reader_client(cluster.url, key=key) as reader:
            port = cluster.owner(key).port
            assert (await client.info("server"))["tcp_port"] == port
            connection_id = await KeptConnection(reader).execute_command("CLIENT", "ID")
            assert f"id={connection_id} ".encode() in cluster.owner(key).command("CLIENT", "LIST", "ID", connection_id)
        with closing(blocking_client(cluster.url, key=key)) as blocking:
            assert blocking.info("server")["tcp_port"] == port


async def test_a_slot_moves_and_clients_go_along(cluster: Cluster, client: Redis) -> None:
    key = "{moving}:a"
    from_ = cluster.owner(key)
    to = next(node for node in cluster.nodes if node is not from_)
    async with commands_client(cluster.url, key=key) as own:
        with closing(blocking_client(cluster.url, key=key)) as blocking:
            kept = KeptConnection(own)
            for each in (client, own, kept):
                await each.execute_command("SET", key, "1")
            blocking.execute_command("SET", key, "1")
            cluster.begin_move(key, to)
            cluster.move_keys(key, to)
            for each in (client, own, kept):  # a half-moved slot is served by no node, and that passes
                with pytest.raises(ResponseError) as rejected:
                    await each.execute_command("GET", key)
                assert meaning_of(rejected.value) is Meaning.AWAY
            cluster.end_move(key, to)

            async def answers(asked: Redis | KeptConnection) -> bool:
                try:
                    return bool(await asked.execute_command("GET", key) == b"1")
                except (RedisError, OSError) as error:
                    if meaning_of(error) is not Meaning.AWAY:
                        raise
                    return False

            for each in (client, own, kept):
                await wait_until(partial(answers, each), "the new node answers")
            blocking.connection_pool.disconnect()
            assert blocking.execute_command("GET", key) == b"1"
    assert to.command("GET", key) == b"1"


async def test_an_address_says_what_it_is(cluster: Cluster, server: RedisServer) -> None:
    for url, said in (
        (f"redis://127.0.0.1:{cluster.nodes[0].port}/0", "Write redis\\+cluster://"),
        (f"redis+cluster://127.0.0.1:{server.port}", "cluster support disabled"),
    ):
        async with commands_client(url) as client:
            with pytest.raises(UnreachableError, match=said):
                await check_server(client, url)
