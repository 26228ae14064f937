"""Clients of ours never send twice, never wait for ever, and never show a password."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tests.conftest import StartProxy, StartServer
from tests.support.patience import scaled
from tests.support.proxy import command
from tests.support.servers import RedisServer, shown
from tests.support.waiting import answers, wait_until, wait_until_here
from workers.protocol.address import FORMS, OPTIONS
from workers.protocol.connection import KeptConnection, blocking_client, commands_client, reader_client
from workers.protocol.errors import ConfigurationError, UnreachableError, UnsupportedServerError
from workers.protocol.server import check_server, release_of

pytestmark = pytest.mark.anyio


async def add_by_commands(url: str) -> None:
    async with commands_client(url) as victim:
        await victim.xadd("orders", {"n": 1})


async def add_by_kept_connection(url: str) -> None:
    async with commands_client(url) as owner:
        await KeptConnection(owner).execute_command("XADD", "orders", "*", "n", 1)


async def add_by_thread(url: str) -> None:
    with closing(blocking_client(url)) as victim:
        await anyio.to_thread.run_sync(victim.execute_command, "XADD", "orders", "*", "n", 1)


@pytest.mark.parametrize("add", [add_by_commands, add_by_kept_connection, add_by_thread])
async def test_a_command_is_not_sent_twice_when_its_reply_is_lost(
    server: RedisServer, client: Redis, proxy: StartProxy, add: Callable[[str], Awaitable[None]]
) -> None:
    through = await proxy(server)
    drop = through.drop_reply(command("XADD"))
    with pytest.raises(RedisConnectionError):
        await add(through.url)
    assert (drop.happened, await client.xlen("orders")) == (True, 1)


async def test_a_lost_batch_is_not_read_twice(server: RedisServer, client: Redis, proxy: StartProxy) -> None:
    await client.xgroup_create("orders", "billing", "0", mkstream=True)
    for n in range(4):
        await client.xadd("orders", {"n": n})
    through = await proxy(server)
    through.drop_reply(command("XREADGROUP"))
    async with reader_client(through.url) as victim:
        with pytest.raises(RedisConnectionError):
            await victim.xreadgroup("billing", "w", {"orders": ">"}, count=2)
        rest: Any = await victim.xreadgroup("billing", "w", {"orders": ">"})
        assert len(rest[0][1]) == 2


def test_the_blocking_client_gives_a_server_up_in_time_that_does_not_answer(start_server: StartServer) -> None:
    server = start_server()
    victim = blocking_client(server.url, timeout_s=0.1)

    def pong() -> bool:
        with suppress(RedisTimeoutError):  # on a busy machine
            return bool(victim.ping())
        return False

    wait_until_here(pong, "it answers")
    server.pause()
    with pytest.raises(RedisTimeoutError):
        victim.ping()
    server.resume()
    wait_until_here(pong, "it answers again")
    victim.close()


async def test_a_call_that_is_cancelled_ends_whenever_that_is(server: RedisServer) -> None:
    """`asyncio.wait_for` of Python 3.11 swallows a cancellation that comes when what it waits for has just ended."""
    async with commands_client(server.url) as victim:
        await victim.ping()
        for turns in range(12):
            call = asyncio.get_running_loop().create_task(victim.execute_command("BLPOP", "nothing", "0"))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
            assert call.cancelled(), turns


async def test_a_server_that_does_not_answer_is_given_up_in_time(start_server: StartServer) -> None:
    server = start_server()
    async with commands_client(server.url, timeout_s=0.1) as victim:
        await wait_until(lambda: answers(victim), "it answers")
        server.pause()
        with pytest.raises(RedisTimeoutError):
            await victim.ping()
        server.resume()
        await wait_until(lambda: answers(victim), "it answers again")


async def test_a_blocking_read_may_take_as_long_as_it_blocks(server: RedisServer, client: Redis) -> None:
    await client.xgroup_create("orders", "billing", "0", mkstream=True)
    timeout_s = scaled(1.5)
    block_ms = round(timeout_s * 1_050)
    async with reader_client(server.url, block_ms=block_ms, timeout_s=timeout_s) as reader:
        assert not await reader.xreadgroup("billing", "w", {"orders": ">"}, block=block_ms)


async def test_a_connection_that_is_closed_while_it_sends_is_a_lost_contact(client: Redis) -> None:
    """The reader on a connection closes it when it ends, also while another task is sending."""
    connection = await client.connection_pool.get_connection()

    async def send() -> None:
        # Python 3.12 may have sent it already, 3.11 has given it to a task that has not begun.
        with suppress(RedisConnectionError):
            await connection.send_command("PING")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        await checkpoint()
        await connection.disconnect(nowait=True)
    await client.connection_pool.release(connection)


async def test_more_requests_than_connections_wait_instead_of_failing(server: RedisServer) -> None:
    async with commands_client(server.url, max_connections=2) as client:
        assert await asyncio.gather(*(client.incr("n") for _ in range(50)))
        clients = await client.client_list()
        assert len(clients) <= 3


async def test_open_connections_are_used_while_the_server_is_full(server: RedisServer, client: Redis) -> None:
    async with commands_client(server.url) as one:
        pool = one.connection_pool
        kept, lost = await pool.get_connection(), await pool.get_connection()
        await pool.release(kept)
        await lost.disconnect()
        await pool.release(lost)
        await client.config_set("maxclients", str(len(await client.client_list())))
        try:
            assert [await one.ping() for _ in range(3)] == [True] * 3
            answers = await asyncio.gather(*(one.ping() for _ in range(2)), return_exceptions=True)
            assert sorted(map(str, answers)) == ["True", "max number of clients reached"]
            assert [await one.ping() for _ in range(3)] == [True] * 3
        finally:
            await client.config_set("maxclients", "10000")


async def test_so_it_is_by_threads(server: RedisServer, client: Redis) -> None:
    one = blocking_client(server.url, max_connections=3)
    pool = one.connection_pool
    kept, lost = pool.get_connection(), pool.get_connection()
    pool.release(kept)
    lost.disconnect()
    pool.release(lost)
    await client.config_set("maxclients", str(len(await client.client_list())))
    try:
        assert [one.ping() for _ in range(3)] == [True] * 3
        taken = pool.get_connection()
        with pytest.raises(RedisConnectionError, match="max number of clients reached"):
            one.ping()
        pool.release(taken)
        assert [one.ping() for _ in range(3)] == [True] * 3
    finally:
        await client.config_set("maxclients", "10000")
        one.close()


# ---- addresses


REJECTED = (
    "decode_responses=true", "protocol=3", "legacy_responses=true", "retry_on_timeout=1", "retry_on_error=x", "retry=3",
    "max_connections=0", "max_connections=-1", "timeout=0", "socket_timeout=0.001", "socket_connect_timeout=0",
    "health_check_interval=1", "encoding=utf-16", "encoding_errors=ignore", "connection_class=x", "parser_class=x",
    "credential_provider=x", "single_connection_client=true", "host=elsewhere", "port=1", "path=/x",
    "ssl_cert_reqs=none", "decode_responses=", "db=1&db=2", "db=x",
)  # fmt: skip


FACTORIES: list[Callable[[str], Any]] = [commands_client, reader_client, blocking_client]


@pytest.mark.parametrize("option", REJECTED)
def test_an_option_that_cannot_work_is_rejected(option: str) -> None:
    for factory in FACTORIES:
        with pytest.raises(ConfigurationError, match=r"redis_url 'redis://.*' cannot be used: .*option"):
            factory(f"redis://h/0?{option}")


def test_the_options_that_can_work_are_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        commands_client("redis://:secret@h?protocol=3&decode_responses=1&password=secret&ssl_password=secret")
    assert str(caught.value) == (
        "redis_url 'redis://***' cannot be used: "
        "unknown option after the '?': redis:// takes "
        f"client_name, db, password, socket_keepalive, username. {FORMS}"
    )


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://h/orders", "the part after the host must be the number of a database"),
        ("redis://h/1/2", "must be the number"),
        ("rediss://h?ssl_cert_reqs=nonsense", "the value of an option \\('ssl_cert_reqs'\\)"),
        ("unix:///tmp/x?socket_keepalive=1", "unknown option"),
        ("rediss://h?ssl_validate_ocsp=1", "unknown option"),
    ],
)
def test_other_words_that_cannot_work_are_rejected(url: str, why: str) -> None:
    for factory in FACTORIES:
        with pytest.raises(ConfigurationError, match=why):
            factory(url)


@pytest.mark.parametrize("scheme", [scheme for scheme in OPTIONS if "cluster" not in scheme])
def test_every_option_that_is_let_through_is_taken(scheme: str) -> None:
    """By redis-py, for each kind of connection."""
    values = {"db": "1", "ssl_cert_reqs": "none", "ssl_check_hostname": "false", "ssl_min_version": "771"}
    query = "&".join(f"{name}={values.get(name, 'x')}" for name in sorted(OPTIONS[scheme]))
    for factory in FACTORIES:
        factory(f"{scheme}://{'' if scheme == 'unix' else 'h'}/{'m' if 'sentinel' in scheme else ''}?{query}")


async def test_allowed_options_work(server: RedisServer) -> None:
    async with commands_client(f"{server.url}?client_name=shop&socket_keepalive=true") as client:
        assert await client.client_getname() == "shop"
        assert await client.echo("\xff".encode("latin-1")) == b"\xff"


async def test_why_a_server_turns_new_clients_away_is_told_though_its_word_is_lost() -> None:
    met: list[bytes] = []

    async def full(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.append(b"")
        if len(met) == 1:  # its message is dropped with the reset, as by the kernel of a client that has written
            met[0] = await reader.read(100)
            writer.transport.abort()
            return
        writer.write(b"-ERR max number of clients reached\r\n")
        writer.close()

    server = await asyncio.start_server(full, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, commands_client(f"redis://127.0.0.1:{port}/0") as client:
        with pytest.raises(RedisConnectionError, match=r"^max number of clients reached$"):
            await client.ping()
    assert (bool(met[0]), len(met)) == (True, 2)


async def test_the_check_returns_the_release_of_the_server(server: RedisServer, client: Redis) -> None:
    assert await check_server(client, server.url) == shown(server.binary)


async def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    url = "redis://:secret@127.0.0.1:1/0"
    async with commands_client(url) as client:
        with pytest.raises(UnreachableError, match=r"redis://\*\*\*@127\.0\.0\.1:1/0") as caught:
            await check_server(client, url)
    assert "secret" not in str(caught.value)


async def test_a_wrong_password_is_said_and_not_shown(start_server: StartServer) -> None:
    server = start_server()
    server.command("CONFIG", "SET", "requirepass", "right")
    url = f"redis://:wrong@127.0.0.1:{server.port}/0"
    async with commands_client(url) as client:
        with pytest.raises(UnreachableError, match="invalid username-password") as caught:
            await check_server(client, url)
    assert "wrong@" not in str(caught.value)


@pytest.mark.parametrize(
    ("says", "objection"),
    [
        ({"redis_version": "6.0.16"}, r"Redis 6\.0\.16 is too old: recovery needs Redis 6\.2 or later"),
        ({"redis_version": "6.1.240"}, r"Redis 6\.1\.240 is too old"),
        ({"redis_version": "7.2.4", "valkey_version": "7.1.9"}, r"Valkey 7\.1\.9 is too old"),
        ({"tcp_port": "6379"}, "neither Redis nor Valkey"),
    ],
    ids=["Redis 6.0", "a release candidate of 6.2", "Valkey", "neither"],
)
async def test_a_server_that_cannot_be_used_is_rejected(
    says: dict[str, str], objection: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def info(*_: object) -> dict[str, str]:
        return says

    monkeypatch.setattr(client, "info", info)
    with pytest.raises(UnsupportedServerError, match=objection):
        await check_server(client, "redis://host")


@pytest.mark.parametrize(
    ("says", "release"),
    [
        ({"redis_version": "7.0.4"}, "Redis 7.0.4"),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}, "Valkey 9.1.2"),
        ({"redis_version": "255.255.255"}, "Redis 255.255.255"),
    ],
)
def test_a_server_is_called_what_it_is(says: dict[str, str], release: str) -> None:
    assert release_of(says) == release


async def test_a_connection_whose_end_takes_too_long_is_closed_all_the_same() -> None:
    class NeverClosed:
        closed = False

        def close(self) -> None:
            self.closed = True

        async def wait_closed(self) -> None:
            await asyncio.Event().wait()

    async with commands_client("redis://127.0.0.1:1") as idle:
        connection: Any = idle.connection_pool.make_connection()
        connection._reader, connection._writer = object(), (writer := NeverClosed())
        connection.socket_connect_timeout = 0.0  # it has passed, as if the event loop was blocked for longer
        await connection.disconnect()
    assert writer.closed
    assert not connection.is_connected
