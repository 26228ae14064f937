"""Clients find the master that the Sentinels name, leave one that is demoted, and say why there is none."""

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.conftest import StartServer
from tests.support.sentinel import NAME, Setup, started_setup
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import wait_until
from workers.protocol import directory
from workers.protocol.address import parse_address
from workers.protocol.connection import (
    KeptConnection,
    blocking_client,
    commands_client,
    own_connection,
    reader_client,
)
from workers.protocol.directory import Directory
from workers.protocol.errors import UnreachableError
from workers.protocol.meaning import NoMasterError, NoMasterYetError, NotSentError, is_contact_error, kind_of
from workers.protocol.server import check_server
from workers.protocol.slots import SLOTS, SlotTable

pytestmark = pytest.mark.anyio

PASSWORD = "p@ss/word"  # noqa: S105
IN_URL = "p%40ss%2Fword"


@pytest.fixture(scope="module")
def setup(binary: Path) -> Iterator[Setup]:
    """A master with a password, one replica and one Sentinel: enough to be asked, and to be told to fail over."""
    with started_setup(binary, replicas=1, sentinels=1, requirepass=PASSWORD, masterauth=PASSWORD) as running:
        running.login = f":{IN_URL}@"
        yield running


@pytest.fixture
async def client(setup: Setup) -> AsyncIterator[Redis]:
    async with commands_client(setup.url) as client:
        yield client


async def port_of(client: Redis) -> int:
    """Return the port of the server that answers."""
    return int((await client.info("server"))["tcp_port"])


async def test_the_master_is_found_by_every_kind_of_client(setup: Setup, client: Redis) -> None:
    port = setup.master.port
    assert await port_of(client) == port
    assert str(await check_server(client, setup.url))
    assert await KeptConnection(client).execute_command("SET", "n", "1") == b"OK"
    async with reader_client(setup.url) as reader, own_connection(client) as own:
        assert await port_of(reader) == port
        await own.send_command("GET", "n")
        assert await own.read_response() == b"1"
    with closing(blocking_client(setup.url)) as blocking:
        assert int(blocking.info("server")["tcp_port"]) == port


async def test_a_planned_failover_is_followed_by_connections_before_they_send(
    setup: Setup, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=directory.__name__)
    before, kept = setup.master, KeptConnection(client)
    # Sentinels demote it late, and drop its clients. Here they cannot, so clients leave it only by themselves.
    before.command("ACL", "SETUSER", "default", "-slaveof", "-replicaof")
    await kept.execute_command("PING")
    with closing(blocking_client(setup.url)) as blocking:
        blocking.ping()
        async with own_connection(client) as own:
            await own.send_command("SUBSCRIBE", "channel")
            setup.sentinels[0].command("SENTINEL", "FAILOVER", NAME)
            after = await setup.has_failed_over(before)

            async def is_rejected() -> bool:
                try:
                    await own.send_command("PING")
                except NotSentError:
                    return True
                return False

            await wait_until(is_rejected, "a subscription ends with the next ping")
        await wait_until(lambda: _leads_to(client, after), "commands go to the new one")
        await wait_until(lambda: _kept_leads_to(kept, after), "so does a connection that is kept")

        async def follows() -> bool:
            return int(blocking.info("server")["tcp_port"]) == after.port

        await wait_until(follows, "and the one of a thread")
    assert before.command("ROLE")[0] == b"master"
    before.command("ACL", "SETUSER", "default", "+slaveof", "+replicaof")
    assert any(record.message.endswith(f"address=127.0.0.1:{after.port}") for record in caplog.records)


async def _leads_to(client: Redis, node: RedisServer) -> bool:
    with suppress(RedisError):
        return await port_of(client) == node.port
    return False


async def _kept_leads_to(kept: KeptConnection, node: RedisServer) -> bool:
    with suppress(RedisError):
        return f"tcp_port:{node.port}\r\n".encode() in await kept.execute_command("INFO", "server")
    return False


async def test_a_sentinel_that_is_not_there_is_passed_over(setup: Setup) -> None:
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{setup.sentinels[0].port}"
    url = f"redis+sentinel://:{IN_URL}@{hosts}/{NAME}/0"
    async with commands_client(url) as client:
        assert await client.ping()
    with closing(blocking_client(url)) as blocking:
        assert blocking.ping()


@pytest.mark.parametrize("master", ["another", NAME])
async def test_why_there_is_no_master_is_told_in_one_sentence(setup: Setup, master: str) -> None:
    port = free_port() if master == NAME else setup.sentinels[0].port
    url = f"redis+sentinel://:{IN_URL}@127.0.0.1:{port}/{master}/0"
    why = "Error 111" if master == NAME else "no master is called 'another'"
    async with commands_client(url) as client:
        with pytest.raises(NoMasterError, match=f"the Sentinels at 127.0.0.1:{port} name no master .*{why}") as caught:
            await client.ping()
        assert (is_contact_error(caught.value), kind_of(caught.value)) == (True, "")
        with pytest.raises(UnreachableError, match=r"cannot use Redis at 'redis.sentinel://\*\*\*@"):
            await check_server(client, url)
    with closing(blocking_client(url)) as blocking, pytest.raises(NoMasterError):
        blocking.ping()


async def test_a_silent_sentinel_is_asked_once_for_all_callers_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "ANSWER_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        url = f"redis+sentinel://127.0.0.1:{silent.getsockname()[1]}/{NAME}/0"

        def questions() -> int:
            number = 0
            with suppress(BlockingIOError):
                while True:
                    silent.accept()[0].close()
                    number += 1
            return number

        async with commands_client(url) as client:
            failures = await asyncio.gather(*(client.ping() for _ in range(12)), return_exceptions=True)
            assert [type(one) for one in failures] == [NoMasterError] * 12
            assert questions() <= 2  # the second one is for callers that came after the first one was sent
            for _ in range(12):  # the callers do not wait for the answer
                with anyio.move_on_after(0):
                    await client.ping()
            await asyncio.gather(client.ping(), return_exceptions=True)
            assert questions() <= 3
        with closing(blocking_client(url, max_connections=12)) as blocking, ThreadPoolExecutor(12) as threads:
            calls = [threads.submit(blocking.ping) for _ in range(12)]
            assert [type(call.exception()) for call in calls] == [NoMasterError] * 12
            assert questions() <= 3


async def test_an_open_connection_goes_on_while_the_sentinels_hang(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "ANSWER_S", 60.0)
    async with commands_client(setup.url) as client:
        kept = KeptConnection(client)
        await kept.execute_command("PING")
        monkeypatch.setattr(directory, "LOOK_S", 0)
        setup.sentinels[0].pause()
        try:
            for _ in range(20):
                assert await kept.execute_command("PING") == b"PONG"
        finally:
            setup.sentinels[0].resume()


async def test_an_answer_that_comes_late_leads_the_next_call_of_an_open_connection(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with commands_client(setup.url, timeout_s=1.0) as client:
        kept = KeptConnection(client)
        await kept.execute_command("PING")
        kind: Any = client.connection_pool.connection_class
        asking: Directory = kind.route._directory
        monkeypatch.setattr(directory, "LOOK_S", 0)
        monkeypatch.setattr(asking, "look", partial(anyio.sleep, inf))  # no answer is ever in time
        assert await kept.execute_command("PING") == b"PONG"
        monkeypatch.setattr(asking, "table", SlotTable(((0, SLOTS - 1, ("127.0.0.1", 1)),)))
        with pytest.raises(RedisError):
            await kept.execute_command("PING")


@pytest.mark.parametrize("flags", [b"master,s_down", b"master,failover_in_progress", b"slave"])
def test_a_sentinel_whose_master_is_about_to_change_is_passed_over(flags: bytes) -> None:
    asking = Directory(parse_address(f"redis+sentinel://127.0.0.1:1/{NAME}/0"), {})
    row = [b"name", NAME.encode(), b"ip", b"127.0.0.1", b"port", b"2", b"flags"]
    assert asking._master([[*row, b"master"]]).masters == {("127.0.0.1", 2)}
    with pytest.raises(NoMasterYetError):
        asking._master([[*row, flags]])


async def test_sentinels_have_users_of_their_own(setup: Setup) -> None:
    (sentinel,) = setup.sentinels
    rights = ("+sentinel|masters", "+hello", "+ping") if sentinel.version >= (7,) else ("+sentinel", "+hello", "+ping")
    sentinel.command("ACL", "SETUSER", "watcher", "reset", "on", ">secret", *rights)
    sentinel.command("ACL", "SETUSER", "stranger", "reset", "on", ">secret")
    for user, password, why in (
        ("watcher", "secret", ""),
        ("watcher", "wrong", "invalid username-password pair|WRONGPASS"),
        ("stranger", "secret", "no permissions"),
    ):
        url = f"{setup.url}?sentinel_username={user}&sentinel_password={password}"
        async with commands_client(url) as client:
            if not why:
                assert await client.ping()
                continue
            with pytest.raises(NoMasterError, match=why) as caught:
                await client.ping()
            assert password not in str(caught.value)
        with closing(blocking_client(url)) as blocking, pytest.raises(NoMasterError):
            blocking.ping()


async def test_a_master_that_is_a_replica_rejects_writes_until_it_is_promoted(
    setup: Setup, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = start_server()
    replica.command("REPLICAOF", "127.0.0.1", str(free_port()))
    answer = SlotTable(((0, SLOTS - 1, ("127.0.0.1", replica.port)),))
    monkeypatch.setattr(Directory, "_answer", lambda _directory: answer)
    async with commands_client(setup.url.replace(setup.login, "")) as client:
        with pytest.raises(RedisError) as caught:
            await client.set("key", "1")
        assert is_contact_error(caught.value)
        replica.command("REPLICAOF", "NO", "ONE")
        assert await client.set("key", "1")


def test_the_connection_to_a_sentinel_closes_before_its_socket_is_collected(setup: Setup) -> None:
    asked = Directory(parse_address(setup.url), {"legacy_responses": False, "protocol": 2})
    asked.owner_blocking(0)
    [connection] = asked._open
    assert connection.is_connected
    del asked
    gc.collect()
    assert not connection.is_connected
