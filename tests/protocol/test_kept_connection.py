"""A connection that is kept: its calls never mix, and a caller learns whether its command was sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tests.conftest import StartProxy, StartServer
from tests.support.patience import scaled
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.connection import KeptConnection, commands_client
from workers.protocol.meaning import NotSentError, is_contact_error, was_not_run
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio


@pytest.fixture
async def kept(server: RedisServer) -> AsyncIterator[KeptConnection]:
    """A kept connection to ``server``."""
    async with commands_client(server.url) as owner:
        yield KeptConnection(owner)


async def test_a_kept_connection_serves_all_calls_error_replies_included(kept: KeptConnection) -> None:
    first = await kept.execute_command("CLIENT", "ID")
    with pytest.raises(ResponseError, match="unknown command"):
        await kept.execute_command("NO_SUCH_COMMAND")
    assert await kept.execute_command("CLIENT", "ID") == first


async def test_a_cancelled_call_leaves_no_reply_for_the_next(client: Redis, kept: KeptConnection) -> None:
    async def blocked() -> bool:
        return bool((await client.info("clients"))["blocked_clients"])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kept.execute_command, "BLPOP", "list", 0)
        await wait_until(blocked, "the call waits")
        tasks.cancel_scope.cancel()
    await client.rpush("list", "late")
    assert await kept.execute_command("ECHO", "fresh") == b"fresh"


async def test_a_kept_connection_that_was_closed_while_idle_is_replaced(client: Redis, kept: KeptConnection) -> None:
    first = await kept.execute_command("CLIENT", "ID")
    await client.execute_command("CLIENT", "KILL", "ID", first)
    assert await kept.execute_command("CLIENT", "ID") != first


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "of the pool"])
async def test_a_reset_connection_is_replaced_and_fails_no_call(
    server: RedisServer, client: Redis, proxy: StartProxy, is_kept: bool
) -> None:
    """The next sender would take its unsent command for one with a lost reply."""
    through = await proxy(server)
    async with commands_client(through.url) as owner:
        caller = KeptConnection(owner) if is_kept else owner
        await caller.execute_command("SET", "counter", 1)
        [connection] = (*owner.connection_pool._in_use_connections, *owner.connection_pool._available_connections)
        reader = connection._reader
        assert reader is not None
        await through.disconnect(by_reset=True)
        await wait_until(lambda: reader.exception() is not None, "it knows that it was reset")
        assert await caller.execute_command("INCR", "counter") == 2
    assert await client.get("counter") == b"2"


async def test_a_kept_connection_gives_up_a_server_that_does_not_answer(start_server: StartServer) -> None:
    server = start_server()
    async with commands_client(server.url, timeout_s=0.1) as owner:
        kept = KeptConnection(owner)

        async def pong() -> Any:
            with suppress(RedisTimeoutError, NotSentError):  # on a busy machine
                return await kept.execute_command("PING")

        await wait_until(pong, "it answers")
        server.pause()
        with pytest.raises(RedisTimeoutError):
            await kept.execute_command("PING")
        with pytest.raises(NotSentError, match="no connection to send PING on within"):  # in the next one's handshake
            await kept.execute_command("PING")
        server.resume()
        await wait_until(pong, "it answers again")


async def test_a_kept_connection_tells_what_was_never_sent(start_server: StartServer) -> None:
    server = start_server()
    async with commands_client(server.url) as owner:
        kept = KeptConnection(owner)
        await kept.execute_command("PING")
        server.kill()
        errors = []
        for _ in range(2):
            with pytest.raises((RedisConnectionError, OSError)) as raised:
                await kept.execute_command("PING")
            errors.append(raised.value)
        assert isinstance(errors[-1], NotSentError)
        assert (is_contact_error(errors[-1]), was_not_run(errors[-1])) == (True, True)


async def test_a_call_waits_for_its_turn_no_longer_than_a_call_may_take(start_server: StartServer) -> None:
    """Its statement about its deliveries counts no longer than that (seed 12758)."""
    server = start_server()
    async with commands_client(server.url, timeout_s=scaled(0.5)) as owner:
        kept = KeptConnection(owner)
        await kept.execute_command("PING")
        server.pause()
        met = await asyncio.gather(*(kept.execute_command("PING") for _ in range(3)), return_exceptions=True)
        server.resume()
    assert [type(one) for one in met] == [RedisTimeoutError, NotSentError, NotSentError]


async def test_a_kept_connection_leaves_a_server_that_is_no_master_any_more(start_server: StartServer) -> None:
    server = start_server()
    async with commands_client(server.url) as owner:
        kept = KeptConnection(owner)
        first = await kept.execute_command("CLIENT", "ID")
        server.command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(ReadOnlyError):
            await kept.execute_command("SET", "n", 1)
        server.command("REPLICAOF", "NO", "ONE")
        assert await kept.execute_command("CLIENT", "ID") != first


async def test_a_script_that_a_kept_connection_finds_unknown_is_loaded_on_it(kept: KeptConnection) -> None:
    script = load_script("reaper", "pause_group")
    assert await script.run(kept, ["{orders}:group:billing"], [1]) == 1


async def test_a_kept_connection_is_closed_with_its_client(server: RedisServer, client: Redis) -> None:
    async with commands_client(server.url) as owner:
        connection_id = await KeptConnection(owner).execute_command("CLIENT", "ID")

    async def closed() -> bool:
        return str(connection_id) not in {row["id"] for row in await client.client_list()}

    await wait_until(closed, "the server sees it closed")
