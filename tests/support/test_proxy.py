"""The proxy makes exactly the faults it promises."""

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tests.conftest import StartProxy
from tests.support.proxy import command, runs
from tests.support.servers import RedisServer
from tests.support.waiting import answers, wait_until
from workers.protocol.connection import commands_client
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

KEYS, ARGS = ("lease", "group", "journal"), ("me", "", 1, "billing", "stopped", 0, 100)


async def test_everything_passes_when_no_fault_is_asked_for(server: RedisServer, proxy: StartProxy) -> None:
    through = await proxy(server)
    async with commands_client(through.url) as client:
        async with client.pipeline(transaction=True) as pipeline:
            for number in range(100):
                pipeline.rpush("list", b"\r\n*1" * number)
            lengths = await pipeline.execute()
        stored = await client.lrange("list", 0, -1)
    assert lengths == list(range(1, 101))
    assert stored == [b"\r\n*1" * number for number in range(100)]


async def test_a_dropped_reply_leaves_the_work_done(server: RedisServer, proxy: StartProxy, client: Redis) -> None:
    through = await proxy(server)
    drop = through.drop_reply(command("incrby"), nth=2)
    async with commands_client(through.url) as victim:
        assert await victim.incr("counter") == 1
        with pytest.raises(RedisConnectionError):
            await victim.incr("counter")
        assert drop.happened
        assert await client.get("counter") == b"2"
        assert await victim.incr("counter") == 3


async def test_of_a_pipeline_only_the_replies_before_the_dropped_one_arrive(
    server: RedisServer, proxy: StartProxy, client: Redis
) -> None:
    through = await proxy(server)
    through.drop_reply(lambda request: request.words[:2] == (b"SET", b"b"))
    async with commands_client(through.url) as victim, victim.pipeline(transaction=False) as pipeline:
        for key in ("a", "b", "c"):
            pipeline.set(key, "1")
        with pytest.raises(RedisConnectionError):
            await pipeline.execute()
    assert await client.mget("a", "b", "c") == [b"1", b"1", b"1"]


async def test_a_script_is_matched_by_digest_and_by_source(server: RedisServer, proxy: StartProxy) -> None:
    through = await proxy(server)
    script = load_script("reaper", "lease_hand")
    async with commands_client(through.url) as victim:
        drops = [through.drop_reply(runs(script)) for _ in range(2)]
        with pytest.raises(RedisConnectionError):  # EVALSHA, which answers NOSCRIPT
            await script.run(victim, KEYS, ARGS)
        with pytest.raises(RedisConnectionError):
            await victim.execute_command("EVAL", script.source, len(KEYS), *KEYS, *ARGS)
        assert [drop.happened for drop in drops] == [True, True]
        assert await script.run(victim, KEYS, ARGS) == 0


async def test_a_held_request_reaches_the_server_when_it_is_released(
    server: RedisServer, proxy: StartProxy, client: Redis
) -> None:
    through = await proxy(server)
    held = through.hold_request(command("set"))
    async with commands_client(through.url) as victim, anyio.create_task_group() as tasks:

        async def write() -> None:
            await victim.set("late", "1")

        tasks.start_soon(write)
        await held.wait()
        assert await client.get("late") is None
        held.release()
    assert await client.get("late") == b"1"


async def test_requests_are_held_however_often_a_client_asks_again(
    server: RedisServer, proxy: StartProxy, client: Redis
) -> None:
    through = await proxy(server)
    held = through.hold_requests(command("incrby"))
    async with commands_client(through.url, timeout_s=0.2) as victim:
        for _ in range(2):
            with pytest.raises(RedisTimeoutError):
                await victim.incr("asked")
        assert (held.happened, await client.get("asked")) == (True, None)
        held.release()
    async with commands_client(through.url) as patient:
        assert await patient.incr("asked") > 0


async def test_a_cut_resets_connections_and_refuses_new_ones_until_mended(
    server: RedisServer, proxy: StartProxy
) -> None:
    through = await proxy(server)
    async with commands_client(through.url) as victim:
        assert await victim.ping()
        await through.cut()
        for _ in range(2):  # the old connection, then a new one
            with pytest.raises(RedisConnectionError):
                await victim.ping()
        await through.mend()
        await wait_until(lambda: answers(victim), "it answers again")


async def test_a_cut_ends_a_blocked_read_at_once(server: RedisServer, proxy: StartProxy) -> None:
    through = await proxy(server)
    blocked = through.hold_request(lambda request: request.command == b"BLPOP")
    async with commands_client(through.url) as victim, anyio.create_task_group() as tasks:

        async def read() -> None:
            with pytest.raises(RedisConnectionError):
                await victim.blpop(["nothing"], timeout=4)

        tasks.start_soon(read)
        await blocked.wait()
        blocked.release()
        await through.cut()


async def test_a_black_hole_accepts_and_stays_silent_and_keeps_what_it_swallowed(
    server: RedisServer, proxy: StartProxy, client: Redis
) -> None:
    through = await proxy(server)
    async with commands_client(through.url, timeout_s=0.1) as victim:
        await wait_until(lambda: answers(victim), "it answers")
        through.blackhole()
        with pytest.raises(RedisTimeoutError):
            await victim.set("swallowed", "1")
        assert await client.get("swallowed") is None
        await through.mend()
        await wait_until(lambda: answers(victim), "it answers again")


async def test_a_delay_makes_replies_late(server: RedisServer, proxy: StartProxy) -> None:
    through = await proxy(server)
    async with commands_client(through.url, timeout_s=0.1) as victim:
        await wait_until(lambda: answers(victim), "it answers")
        through.delay(60)
        with pytest.raises(RedisTimeoutError):
            await victim.ping()


async def test_commands_are_counted(server: RedisServer, proxy: StartProxy) -> None:
    through = await proxy(server)
    async with commands_client(through.url) as victim:
        for _ in range(3):
            await victim.get("key")
    assert through.commands["GET"] == 3


async def test_a_dead_server_looks_dead_through_the_proxy(server: RedisServer, proxy: StartProxy) -> None:
    unreachable = RedisServer(server.binary, server.folder, port=1)
    through = await proxy(unreachable)
    async with commands_client(through.url) as victim:
        with pytest.raises(RedisConnectionError):
            await victim.ping()
