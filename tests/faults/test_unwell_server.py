"""Redis is full of clients, loads its data, was demoted, or is a replica: one sentence, nobody dies, work goes on."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
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
from workers import Worker
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


@dataclass
class Group:
    """A group with a worker that runs jobs, and a reaper, while the server is not well."""

    admin: Redis
    worker: Worker
    reaper: Reaper
    handler: scene.Handler


@asynccontextmanager
async def outlasting(server: RedisServer, max_connections: int = 10) -> AsyncIterator[Group]:
    """Run a group in which jobs are held while the block lasts. After it they are settled, and further jobs are."""
    handler = scene.Handler()
    async with commands_client(server.url, max_connections=max_connections) as admin:
        await scene.create_group(admin)
        enqueued = await scene.enqueue(admin, 5, hold="")
        async with (
            scene.running_reaper(server.url, lease_ttl=1) as reaper,
            scene.running_worker(server.url, handler) as worker,
        ):
            await scene.holds(reaper)
            await handler.has_started(5)
            yield Group(admin, worker, reaper, handler)
            enqueued |= await scene.enqueue(admin, 5)
            await scene.nothing_left(admin)
            await scene.holds(reaper)
        assert await scene.violations(admin, enqueued, [handler], finished=True) == []


async def test_a_server_that_lets_no_more_clients_in(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with outlasting(start_server(), max_connections=1) as group:
        await group.admin.config_set("maxclients", "1")
        for kind in ("normal", "pubsub"):
            await group.admin.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        consumer = group.worker.consumer
        await wait_until(lambda: lines_with(caplog, "max number of clients", consumer), "it is told")
        await wait_until(lambda: misses(group.reaper), "the reaper notices")
        group.handler.open_gate()
        await group.admin.config_set("maxclients", "10000")
    assert is_told_once(caplog, "max number of clients reached", consumer)


async def test_a_server_that_loads_its_data(
    start_server: StartServer, binary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asks_for_debug = (version_of(binary) or ()) >= (7,)
    server = start_server(**({"enable-debug-command": "yes"} if asks_for_debug else {}))
    async with outlasting(server) as group, anyio.create_task_group() as tasks:
        await group.admin.mset({f"ballast:{n}": "x" * 60_000 for n in range(500)})
        await group.admin.config_set("rdbcompression", "no")  # after each 2 MB that it loads, it answers who asks
        await group.admin.config_set("key-load-delay", "20000")
        consumer = group.worker.consumer
        tasks.start_soon(_reload, server)
        await wait_until(lambda: misses(group.reaper), "the reaper notices")
        group.handler.open_gate()
        await wait_until(lambda: lines_with(caplog, "loading the dataset", consumer), "it is told")
        await _endure(server, "CONFIG", "SET", "key-load-delay", "0")
    assert is_told_once(caplog, "loading the dataset", consumer)


async def _reload(server: RedisServer) -> None:
    async with commands_client(server.url, timeout_s=60) as client:
        await client.execute_command("DEBUG", "RELOAD")


async def _endure(server: RedisServer, *words: str) -> None:
    """Send a command that a server which loads may reject."""
    async with commands_client(server.url) as client:
        try:
            await client.execute_command(*words)
        except RedisError:
            return


async def test_a_master_that_is_demoted(start_server: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    async with outlasting(start_server()) as group:
        consumer = group.worker.consumer
        await group.admin.execute_command("REPLICAOF", "127.0.0.1", free_port())
        group.handler.open_gate()
        await wait_until(lambda: lines_with(caplog, "read only replica", consumer), "the worker tells")
        await wait_until(lambda: lines_with(caplog, "cannot reach Redis", "read only replica"), "the reaper tells")
        await wait_until(lambda: misses(group.reaper), "the reaper notices")
        await group.admin.execute_command("REPLICAOF", "NO", "ONE")
    told = lines_with(caplog, "read only replica", consumer)
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
