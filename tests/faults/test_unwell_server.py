"""Redis is full of clients, loads its data, was demoted, or is a replica: one sentence, nobody dies, work goes on."""

import logging
from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.service import Reaper
from tests.conftest import StartServer
from tests.faults import scene
from tests.support.servers import RedisServer, free_port, version_of
from tests.support.waiting import wait_until
from workers.protocol.connection import commands_client

pytestmark = pytest.mark.anyio


def lines_with(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [line for line in lines if all(word in line for word in words)]


def misses(reaper: Reaper) -> bool:
    """Tell whether ``reaper`` cannot serve its group now."""
    return bool(reaper._tenures.errors())


def is_told_once(caplog: pytest.LogCaptureFixture, why: str, consumer: str) -> bool:
    """Tell whether an outage was told once; or twice, where a part was served again before another met its last."""
    told = len(lines_with(caplog, why, consumer))
    return told == 1 or told == 2 == len(lines_with(caplog, "Redis answers again", consumer))


async def test_a_server_that_lets_no_more_clients_in(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server, handler = start_server(), scene.Handler()
    async with commands_client(server.url, max_connections=1) as admin:
        await scene.create_group(admin)
        enqueued = await scene.enqueue(admin, 5, hold="")
        async with (
            scene.running_reaper(server.url, lease_ttl=1) as reaper,
            scene.running_worker(server.url, handler) as worker,
        ):
            await scene.holds(reaper)
            await handler.has_started(5)
            await admin.config_set("maxclients", "1")
            for kind in ("normal", "pubsub"):
                await admin.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
            await wait_until(lambda: lines_with(caplog, "max number of clients", worker.consumer), "it is told")
            await wait_until(lambda: misses(reaper), "the reaper notices")
            handler.open_gate()
            await admin.config_set("maxclients", "10000")
            enqueued |= await scene.enqueue(admin, 5)
            await scene.nothing_left(admin)
            await scene.holds(reaper)
        assert await scene.violations(admin, enqueued, [handler], finished=True) == []
    assert is_told_once(caplog, "max number of clients reached", worker.consumer)


async def test_a_server_that_loads_its_data(
    start_server: StartServer, binary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asks_for_debug = (version_of(binary) or ()) >= (7,)
    server = start_server(**({"enable-debug-command": "yes"} if asks_for_debug else {}))
    handler = scene.Handler()
    async with commands_client(server.url) as admin:
        await scene.create_group(admin)
        await admin.mset({f"ballast:{n}": "x" * 60_000 for n in range(500)})
        enqueued = await scene.enqueue(admin, 5, hold="")
        async with (
            scene.running_reaper(server.url, lease_ttl=1) as reaper,
            scene.running_worker(server.url, handler) as worker,
        ):
            await scene.holds(reaper)
            await handler.has_started(5)
            await admin.config_set("rdbcompression", "no")  # after each 2 MB that it loads, it answers who asks
            await admin.config_set("key-load-delay", "20000")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_reload, server)
                await wait_until(lambda: misses(reaper), "the reaper notices")
                handler.open_gate()
                await wait_until(lambda: lines_with(caplog, "loading the dataset", worker.consumer), "it is told")
                await _endure(server, "CONFIG", "SET", "key-load-delay", "0")
            enqueued |= await scene.enqueue(admin, 5)
            await scene.nothing_left(admin)
            await scene.holds(reaper)
        assert await scene.violations(admin, enqueued, [handler], finished=True) == []
    assert is_told_once(caplog, "loading the dataset", worker.consumer)


async def _reload(server: RedisServer) -> None:
    async with commands_client(server.url, timeout_s=60) as client:
        await client.execute_command("DEBUG", "RELOAD")


async def _endure(server: RedisServer, *words: str) -> None:
    """Send a command that a server which loads may refuse."""
    async with commands_client(server.url) as client:
        try:
            await client.execute_command(*words)
        except RedisError:
            return


def told_of_a_replica(caplog: pytest.LogCaptureFixture, consumer: str) -> list[str]:
    """Return what a worker logs about a server that takes no writes."""
    return lines_with(caplog, "read only replica", consumer)


async def test_a_master_that_is_demoted(start_server: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    server, handler = start_server(), scene.Handler()
    async with commands_client(server.url) as admin:
        await scene.create_group(admin)
        enqueued = await scene.enqueue(admin, 5, hold="")
        async with (
            scene.running_reaper(server.url, lease_ttl=1) as reaper,
            scene.running_worker(server.url, handler) as worker,
        ):
            await scene.holds(reaper)
            await handler.has_started(5)
            await admin.execute_command("REPLICAOF", "127.0.0.1", free_port())
            handler.open_gate()
            await wait_until(lambda: told_of_a_replica(caplog, worker.consumer), "the worker tells")
            await wait_until(lambda: lines_with(caplog, "cannot reach Redis", "read only replica"), "the reaper tells")
            await wait_until(lambda: misses(reaper), "the reaper notices")
            await admin.execute_command("REPLICAOF", "NO", "ONE")
            enqueued |= await scene.enqueue(admin, 5)
            await scene.nothing_left(admin)
            await scene.holds(reaper)
        assert await scene.violations(admin, enqueued, [handler], finished=True) == []
    told = told_of_a_replica(caplog, worker.consumer)
    assert len(told) == len(set(told)), "each once"


# --- at the start -------------------------------------------------------------------------------------------


async def _take_no_writes(admin: Redis) -> None:
    await admin.config_set("min-replicas-to-write", "1")


async def _let_nobody_in(admin: Redis) -> None:
    await admin.config_set("maxclients", "1")


async def _serve_again(admin: Redis) -> None:
    await admin.config_set("min-replicas-to-write", "0")
    await admin.config_set("maxclients", "10000")


async def test_a_worker_begins_once_the_server_serves_it(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server, handler = start_server(), scene.Handler()
    async with commands_client(server.url, max_connections=1) as admin:
        await scene.create_group(admin)
        enqueued = await scene.enqueue(admin, 3)
        await _take_no_writes(admin)
        async with anyio.create_task_group() as tasks:

            async def serve_again_once_it_is_told() -> None:
                await wait_until(lambda: lines_with(caplog, "NOREPLICAS", "joining the group"), "it is told")
                await _serve_again(admin)

            tasks.start_soon(serve_again_once_it_is_told)
            async with scene.running_worker(server.url, handler):
                await scene.nothing_left(admin)
        assert await scene.violations(admin, enqueued, [handler], finished=True) == []
    assert len(lines_with(caplog, "NOREPLICAS")) == 1


async def test_a_replica_begins_once_the_server_serves_it(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    async with commands_client(server.url, max_connections=1) as admin:
        await _let_nobody_in(admin)
        async with anyio.create_task_group() as tasks:

            async def serve_again_once_it_is_told() -> None:
                await wait_until(lambda: lines_with(caplog, "max number of clients reached"), "it is told")
                await _serve_again(admin)

            tasks.start_soon(serve_again_once_it_is_told)
            async with scene.running_reaper(server.url) as reaper:
                await scene.holds(reaper)
