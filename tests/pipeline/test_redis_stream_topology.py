"""The data source finds the master that Sentinels name, and says where an address leads to something else."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reaper.pipeline.redis_stream import RedisStreamError, UnreachableError
from reaper.pipeline.redis_stream.cluster import open_link
from reaper.pipeline.redis_stream.link import Link
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.writing import pack_command
from tests.conftest import StartServer
from tests.pipeline.streams import FOR_EVER_S, JOURNAL, add
from tests.support.sentinel import NAME, SentinelServer, started_setup
from tests.support.servers import free_port
from tests.support.waiting import wait_until, wait_until_here

pytestmark = [pytest.mark.anyio, pytest.mark.contract]


@contextmanager
def linked(url: str, retry_s: float = FOR_EVER_S) -> Iterator[Link]:
    """Make a link, and close it at the end."""
    link = open_link(url, retry_s)
    try:
        yield link
    finally:
        link.close()


async def test_readers_and_writers_follow_the_master(binary: Path) -> None:
    with started_setup(binary, replicas=1, sentinels=1) as setup, linked(setup.url) as link:
        before = setup.master
        add(before, 1, 2)
        assert link.ask_one("XLEN", JOURNAL) == 2
        wait_until_here(lambda: setup.nodes[1].command("XLEN", JOURNAL) == 2, "the replica has them")
        setup.sentinels[0].command("SENTINEL", "FAILOVER", NAME)
        after = await setup.has_failed_over(before)
        add(after, 3)
        await wait_until(lambda: link.ask_one("XLEN", JOURNAL) == 3, "it reads from the new master")
        link.write([pack_command([b"XADD", JOURNAL.encode(), b"*", b"n", b"4"])])
        assert after.command("XLEN", JOURNAL) == 4


async def test_a_master_that_is_killed_is_waited_for(binary: Path) -> None:
    with started_setup(binary, replicas=1, sentinels=1) as setup, linked(setup.url) as link:
        before = setup.master
        assert link.ask_one("XLEN", JOURNAL) == 0
        before.kill()
        assert link.ask_one("XLEN", JOURNAL) == 0
        assert (await setup.has_failed_over(before)).port != before.port


def test_sentinels_that_name_no_master_are_told_in_one_sentence() -> None:
    port = free_port()
    said = f"the Sentinels at 127.0.0.1:{port} name no master 'm' that is up"
    with linked(f"redis+sentinel://127.0.0.1:{port}/m", 0.0) as link, pytest.raises(UnreachableError, match=f"{said}$"):
        link.ask_one("XLEN", JOURNAL)


def test_sentinels_that_do_not_let_us_ask_are_told(binary: Path) -> None:
    with SentinelServer.started(binary) as sentinel:
        sentinel.command("ACL", "SETUSER", "stranger", "reset", "on", ">secret")
        login = "sentinel_username=stranger&sentinel_password=secret"
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/m?{login}"
        with linked(url) as link, pytest.raises(RedisStreamError, match=r"do not let us ask: .*no permissions"):
            link.ask_one("XLEN", JOURNAL)


def test_a_replica_is_no_place_to_read_from(start_server: StartServer) -> None:
    server = start_server()
    server.command("REPLICAOF", "127.0.0.1", str(free_port()))
    with linked(server.url, 0.0) as link, pytest.raises(UnreachableError, match="a replica answers there"):
        link.ask_one("XLEN", JOURNAL)


def test_a_sentinel_is_told(binary: Path) -> None:
    with (
        SentinelServer.started(binary) as sentinel,
        linked(sentinel.url) as link,
        pytest.raises(RedisStreamError, match=r"a Sentinel answers there.* write redis\+sentinel://"),
    ):
        link.ask_one("XLEN", JOURNAL)


def test_a_node_of_a_cluster_is_told(start_server: StartServer) -> None:
    with (
        linked(start_server(cluster_enabled="yes").url) as link,
        pytest.raises(RedisStreamError, match="a node of a cluster answers there"),
    ):
        link.ask_one("XLEN", JOURNAL)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("redis+cluster://h1,h2/1", "a cluster has no other database than 0"),
        ("redis+sentinel://h1", "comes /, and the name that they know the master by"),
        ("redis://h?protocol=3", "option 'protocol' is not for an address of redis://"),
    ],
)
def test_an_address_that_cannot_work_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(RedisStreamError, match=sentence):
        open_link(url, 0.0)


@pytest.mark.parametrize("name", ["password", "sentinel_password", "ssl_password"])
def test_no_password_is_in_an_option_of_spark(name: str) -> None:
    with pytest.raises(RedisStreamError, match="option url holds a password"):
        Options.parse({"url": f"rediss+sentinel://h/m?{name}=secret", "stream": JOURNAL})
