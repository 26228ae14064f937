"""Commands of many callers in pipelines over one connection."""

import itertools
from collections.abc import AsyncIterator
from contextlib import suppress

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from reaper.pipelined import MOST, PipelinedClient
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.address import Host
from workers.protocol.connection import KeptConnection, commands_client
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

NUMBER = 2 * MOST + 50


@pytest.fixture
async def pipelined(server: RedisServer) -> AsyncIterator[PipelinedClient]:
    async with commands_client(server.url) as client:
        pipelined = PipelinedClient(client)
        yield pipelined
        await pipelined.aclose()


async def test_each_caller_gets_its_reply_and_few_pipelines_are_sent(
    pipelined: PipelinedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, execute = list[int](), KeptConnection.execute_together

    async def counted(connection: KeptConnection, commands: list[list[object]]) -> list[object]:
        sent.append(len(commands))
        return await execute(connection, commands)

    monkeypatch.setattr(KeptConnection, "execute_together", counted)
    heard = list[object]()
    for number in range(NUMBER):
        pipelined.ask(("ECHO", str(number)), heard.append)
    await wait_until(lambda: len(heard) == NUMBER, "all are answered")
    assert heard == [str(number).encode() for number in range(NUMBER)]
    assert sent == [MOST, MOST, 50]


async def test_an_error_is_for_its_caller_alone(pipelined: PipelinedClient, client: Redis) -> None:
    await client.set("word", "orders")
    heard = list[object]()
    pipelined.ask(("LPUSH", "word", "x"), heard.append)
    assert await pipelined.get("word") == b"orders"
    assert isinstance(heard[0], ResponseError)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await pipelined.xinfo_groups("word")


async def test_a_caller_that_cannot_read_its_reply_keeps_no_other_from_its_own(pipelined: PipelinedClient) -> None:
    pipelined.ask(("ECHO", "one"), lambda reply: reply.missing)
    assert await pipelined.execute_command("ECHO", "two") == b"two"


async def test_each_caller_is_answered_also_after_an_error_that_nobody_expected(
    pipelined: PipelinedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the groups in the pipeline would get no tick any more, and nothing would be logged."""
    with monkeypatch.context() as patched:
        patched.setattr(KeptConnection, "execute_together", lambda _connection, _commands: int("no number"))
        heard = list[object]()
        for number in range(NUMBER):
            pipelined.ask(("ECHO", str(number)), heard.append)
        await wait_until(lambda: len(heard) == NUMBER, "all are answered")
        assert {type(one) for one in heard} == {ValueError}
    assert await pipelined.execute_command("ECHO", "two") == b"two"


class Moving:
    """A cluster in which the slot of a key moves to the other node with each call."""

    def __init__(self, nodes: tuple[Redis, Redis]) -> None:
        self._owners = itertools.cycle(nodes)

    def node_of(self, _key: bytes) -> Host:
        """Return a node that is not asked any more."""
        return "127.0.0.1", 1

    async def client_for(self, _key: bytes) -> Redis:
        """Return a client for the node that has the key now."""
        return next(self._owners)

    def failed(self, _error: Exception) -> None:
        """Have another node asked."""


async def test_connections_do_not_become_more_with_each_slot_that_moves(
    server: RedisServer, pipelined: PipelinedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with commands_client(server.url) as one, commands_client(server.url) as two:
        monkeypatch.setattr(pipelined, "_routed", Moving((one, two)))
        numbers = {await pipelined.execute_command("CLIENT", "ID") for _ in range(40)}
        assert len(numbers) == 2


async def test_a_script_is_loaded_where_the_server_does_not_know_it(pipelined: PipelinedClient, client: Redis) -> None:
    await client.script_flush()
    heard = list[object]()
    pipelined.ask_script(
        load_script("reaper", "lease_hand"), ["l", "a", "j"], ["x", "", 1, "g", "", "0", 1], heard.append
    )
    await wait_until(lambda: heard, "it is answered")
    assert heard == [0]


async def test_after_a_lost_contact_it_connects_again(pipelined: PipelinedClient, client: Redis) -> None:
    number = await pipelined.execute_command("CLIENT", "ID")
    await client.client_kill_filter(_id=str(number))
    with suppress(RedisConnectionError):  # the first call may find the loss
        await pipelined.ping()
    assert await pipelined.execute_command("CLIENT", "ID") > number


async def test_a_caller_that_gives_up_disturbs_no_other(pipelined: PipelinedClient) -> None:
    with anyio.move_on_after(0):
        await pipelined.execute_command("ECHO", "one")
    assert await pipelined.execute_command("ECHO", "two") == b"two"
