"""The data source follows Sentinels, clusters and TLS, and reports an address that leads to something else."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from reaper.pipeline.redis_stream import RedisStreamError, UnreachableError
from tests.conftest import StartServer
from tests.pipeline.streams import add, query, read_all, small_pages
from tests.support.cluster import Cluster, started_cluster
from tests.support.sentinel import NAME, SentinelServer, started_setup
from tests.support.servers import RedisServer, default_binary, free_port
from tests.support.tls import KEY_PASSWORD, Certificates, make_certificates, tunnel
from tests.support.waiting import wait_until_here

pytestmark = pytest.mark.anyio


def numbers(server: RedisServer | Cluster, **given: object) -> list[int]:
    return sorted(int(row["n"]) for row in read_all(server, **given))


# ---- Sentinels


async def test_a_query_follows_the_master_that_sentinels_name(binary: Path) -> None:
    with started_setup(binary, replicas=1, sentinels=1) as setup, query(setup) as running:
        before = setup.master
        add(before, 1, 2)
        assert running.batch() == [1, 2]
        wait_until_here(lambda: setup.nodes[1].command("XLEN", "journal") == 2, "the replica has them")
        setup.sentinels[0].command("SENTINEL", "FAILOVER", NAME)
        after = await setup.has_failed_over(before)
        add(after, 3)
        wait_until_here(lambda: running.batch() == [3], "the entry is read")


async def test_a_master_that_is_killed_is_waited_for(binary: Path) -> None:
    with started_setup(binary, replicas=1, sentinels=1) as setup, query(setup) as running:
        before = setup.master
        assert running.batch() == []
        before.kill()
        assert running.batch() == []
        assert (await setup.has_failed_over(before)).port != before.port


def test_an_address_that_leads_to_something_else_is_told(start_server: StartServer, binary: Path) -> None:
    server = start_server()
    with SentinelServer.started(binary) as sentinel:
        for url, sentence in (
            (sentinel.url, "unknown command"),
            (server.url.replace("redis://", "redis+cluster://"), "Cluster mode is not enabled"),
        ):
            with pytest.raises(RedisStreamError, match=sentence):
                read_all(server, url=url, retrySeconds=1)


@pytest.mark.parametrize("where", ["redis+sentinel://127.0.0.1:{port}/m", "redis+cluster://127.0.0.1:{port}"])
def test_sentinels_and_clusters_that_are_away_are_told_in_one_sentence(server: RedisServer, where: str) -> None:
    with pytest.raises(UnreachableError, match="no contact with Redis at redis") as caught:
        read_all(server, url=where.format(port=free_port()), retrySeconds=0)
    assert "\n" not in str(caught.value)


# ---- clusters


@pytest.fixture(scope="module")
def masters() -> Iterator[Cluster]:
    """Three masters that share the slots; each test has streams of its own."""
    with started_cluster(default_binary()) as cluster:
        yield cluster


@pytest.fixture
def streams(masters: Cluster) -> Iterator[list[str]]:
    """A name at each master; the masters are emptied afterwards."""
    yield masters.streams()
    for node in masters.nodes:
        node.flush()


def move(cluster: Cluster, stream: str) -> None:
    """Give the slot of a stream to another master."""
    to = next(node for node in cluster.nodes if node is not cluster.owner(stream))
    cluster.begin_move(stream, to)
    cluster.move_keys(stream, to)
    cluster.end_move(stream, to)


def test_a_query_follows_slots_that_move_between_and_within_batches(masters: Cluster, streams: list[str]) -> None:
    with small_pages(2), query(masters, streamPattern="jobs*", partitions=2) as running:
        for number, stream in enumerate(streams, start=1):
            add(masters.owner(stream), number, stream=stream)
        assert sorted(running.batch()) == [1, 2, 3] == numbers(masters, streamPattern="jobs*")
        move(masters, streams[0])
        for number, stream in enumerate(streams, start=1):
            add(masters.owner(stream), *range(10 * number, 10 * number + 5), stream=stream)
        end = running.plan()
        move(masters, streams[1])
        found, running.offset = running.read(), end
        assert sorted(int(row["n"]) for row in found) == [n + m for n in (10, 20, 30) for m in range(5)]
        for stream in streams:
            add(masters.owner(stream), 99, stream=stream)
        assert running.batch() == [99, 99, 99]


@pytest.mark.matrix
async def test_a_query_outlives_the_death_of_a_master() -> None:
    with started_cluster(default_binary(), replicas=1) as cluster:
        streams = cluster.streams()
        for number, stream in enumerate(streams, start=1):
            add(cluster.owner(stream), *range(100 * number, 100 * number + 50), stream=stream)
        before = cluster.owner(streams[0])
        heir = next(node for node in cluster.nodes[3:] if node.command("ROLE")[2] == before.port)
        wait_until_here(lambda: _entries(heir, streams[0]) == 50, "the replica has them")
        with small_pages(10), query(cluster, streamPattern="jobs*") as running:
            end = running.plan()
            before.kill()
            found, running.offset = running.read(), end
            assert sorted(int(row["n"]) for row in found) == [n + m for n in (100, 200, 300) for m in range(50)]
            after = await cluster.has_failed_over(streams[0], before)
            add(after, 1_000, stream=streams[0])
            assert running.batch() == [1_000]


def _entries(node: RedisServer, stream: str) -> int:
    with node.client() as client:
        own = client.client()
        own.execute_command("READONLY")
        number = int(own.execute_command("XLEN", stream))
        own.close()
    return number


# ---- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def files(ca: Path, client: Certificates) -> str:
    """Return the part of an address that names files."""
    given = {"ssl_ca_certs": ca, "ssl_certfile": client.client, "ssl_keyfile": client.client_key}
    return "?" + urlencode(given | {"ssl_password": KEY_PASSWORD})


@pytest.mark.only_on("valkey")  # TLS ends before the server, whichever that is
def test_streams_are_read_over_tls_and_another_authority_is_told_at_once(
    server: RedisServer, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server, 1, 2)
    stranger = make_certificates(tmp_path).ca
    with tunnel(server.port, certificates) as port:
        monkeypatch.setenv("TLS_URL", f"rediss://127.0.0.1:{port}/0{files(certificates.ca, certificates)}")
        assert numbers(server, url="", urlEnv="TLS_URL") == [1, 2]
        monkeypatch.setenv("TLS_URL", f"rediss://127.0.0.1:{port}/0{files(stranger, certificates)}")
        with pytest.raises(RedisStreamError, match=rf"rediss://127.0.0.1:{port}/0.*rejected a call: .*certificate"):
            read_all(server, url="", urlEnv="TLS_URL")
