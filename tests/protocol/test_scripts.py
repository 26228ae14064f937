"""Scripts load themselves, run once, and are repeated only where that is harmless."""

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from tests.conftest import StartProxy
from tests.support.proxy import runs
from tests.support.servers import RedisServer
from workers.protocol import scripts
from workers.protocol.connection import commands_client
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

HAND = load_script("reaper", "lease_hand")
KEYS = ["{orders}:lease:billing", "{orders}:group:billing", "{orders}:journal"]
ARGS: tuple[str | int, ...] = ("billing", 0, "me", "", 1, "stopped")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "RETRY_DELAYS_S", (0.001, 0.001))


async def test_a_script_the_server_does_not_know_is_loaded(client: Redis) -> None:
    assert await client.script_exists(HAND.digest) == [False]
    assert await HAND.run(client, KEYS, ARGS) == 0
    assert await client.script_exists(HAND.digest) == [True]
    await client.script_flush()
    assert await HAND.run(client, KEYS, ARGS) == 0


async def test_a_loaded_script_is_run_by_its_digest(server: RedisServer, proxy: StartProxy) -> None:
    through = await proxy(server)
    async with commands_client(through.url) as client:
        for _ in range(3):
            await HAND.run(client, KEYS, ARGS)
    assert (through.commands["EVAL"], through.commands["EVALSHA"]) == (1, 3)


async def test_an_error_of_the_script_is_no_reason_to_load_it_again(client: Redis) -> None:
    await client.rpush(KEYS[0], "in the way")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await HAND.run(client, KEYS, ARGS)


async def test_a_plain_run_whose_reply_was_lost_is_not_repeated(server: RedisServer, proxy: StartProxy) -> None:
    through = await proxy(server)
    async with commands_client(through.url) as client:
        await HAND.run(client, KEYS, ARGS)
        drop = through.drop_reply(runs(HAND))
        with pytest.raises(RedisConnectionError):
            await HAND.run(client, KEYS, ARGS)
    assert (drop.happened, through.commands["EVALSHA"]) == (True, 2)


async def test_an_idempotent_run_is_repeated_until_its_reply_arrives(server: RedisServer, proxy: StartProxy) -> None:
    through = await proxy(server)
    async with commands_client(through.url) as client:
        await HAND.run(client, KEYS, ARGS)
        drops = [through.drop_reply(runs(HAND)) for _ in range(2)]
        assert await HAND.run_idempotent(client, KEYS, ARGS) == 0
    assert ([drop.happened for drop in drops], through.commands["EVALSHA"]) == ([True, True], 4)


async def test_an_idempotent_run_gives_up_in_the_end(server: RedisServer, proxy: StartProxy) -> None:
    through = await proxy(server)
    async with commands_client(through.url) as client:
        await through.cut()
        with pytest.raises(RedisConnectionError):
            await HAND.run_idempotent(client, KEYS, ARGS)


async def test_an_error_that_will_not_pass_is_not_repeated(server: RedisServer, proxy: StartProxy) -> None:
    through = await proxy(server)
    async with commands_client(through.url) as client:
        await client.rpush(KEYS[0], "in the way")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await HAND.run_idempotent(client, KEYS, ARGS)
    assert (through.commands["EVAL"], through.commands["EVALSHA"]) == (1, 1)
