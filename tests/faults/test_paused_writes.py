"""A server that pauses its clients, as for a planned failover and for a shutdown. No process crashes then.

Redis 6.2 and 7.0 abort where a client that is paused is sent CLIENT UNBLOCK (Redis issue 14164, Valkey issue 2111).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.conftest import StartServer
from tests.faults import scene
from tests.support.modes import EMBEDDED_IN_PLACE, mode_settings
from tests.support.servers import RedisServer
from tests.support.tiers import by_claim
from tests.support.waiting import wait_until
from workers import Worker
from workers.protocol.connection import commands_client

pytestmark = pytest.mark.anyio

PAUSED_MS = 700
"""Longer than a read blocks here: meanwhile each worker sends the next one, which has to wait."""


@dataclass
class Group:
    """A group in which two workers wait for jobs, one of which is to leave while clients are paused."""

    client: Redis
    leaving: Worker
    handler: scene.Handler = field(default_factory=scene.Handler)
    enqueued: dict[str, Any] = field(default_factory=dict)

    async def add_jobs(self) -> None:
        """Enqueue jobs. That waits as long as writes are paused."""
        self.enqueued |= await scene.enqueue(self.client, 10)

    async def is_worked_off(self) -> None:
        """Wait until every job was run, and check that none was lost."""
        await scene.nothing_left(self.client)
        assert {done.job for done in self.handler.completions} == set(self.enqueued)


@asynccontextmanager
async def group_of(server: RedisServer, mode: str) -> AsyncIterator[Group]:
    """Run two workers, and a reaper where the mode has one, that have worked off some jobs."""
    async with commands_client(server.url) as client:
        await scene.create_group(client)
        handler = scene.Handler()
        working = scene.running_worker(server.url, handler, **mode_settings(mode))
        leaving = scene.running_worker(server.url, handler, **mode_settings(mode))
        async with working, leaving as one_that_leaves:
            group = Group(client, one_that_leaves, handler)
            if mode == "reaper":
                async with scene.running_reaper(server.url) as reaper:
                    await scene.holds(reaper)
                    await group.add_jobs()
                    yield group
            else:
                await group.add_jobs()
                yield group


async def last_long_enough(client: Redis) -> None:
    """Wait until the pause has lasted long enough. All earlier reads are over, and the next ones wait.

    The server's own time passes, without events.
    """
    begun_s, begun_us = await client.time()

    async def is_over() -> bool:
        now_s, now_us = await client.time()
        return (now_s - begun_s) * 1000 + (now_us - begun_us) / 1000 > PAUSED_MS

    await wait_until(is_over, "the pause has lasted for long enough")


async def has_left(group: Group) -> None:
    await wait_until(lambda: group.leaving.process is None or group.leaving.process.finished, "the worker has stopped")


# --- by hand -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["reaper", by_claim(EMBEDDED_IN_PLACE)])
async def test_writes_are_paused_while_a_worker_stops(start_server: StartServer, mode: str) -> None:
    server = start_server()
    async with group_of(server, mode) as group:
        await group.is_worked_off()
        await group.client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        await last_long_enough(group.client)
        group.leaving.stop()
        await last_long_enough(group.client)
        await group.client.execute_command("CLIENT", "UNPAUSE")
        await has_left(group)
        await group.add_jobs()
        await group.is_worked_off()


# --- by the server itself ------------------------------------------------------------------------------------


async def follow(replica: RedisServer, master: RedisServer) -> None:
    """Make it a replica that has all the data."""
    replica.command("REPLICAOF", "127.0.0.1", master.port)
    await wait_until(lambda: role_of(replica) == ("slave", "up"), "the replica has all the data")


def role_of(server: RedisServer) -> tuple[str, str | None]:
    told = server.command("INFO", "replication")
    return told["role"], told.get("master_link_status")


async def role_is(server: RedisServer, role: str) -> None:
    await wait_until(lambda: role_of(server)[0] == role, f"it is a {role}")


async def test_a_planned_failover_to_a_replica_that_is_behind(start_server: StartServer) -> None:
    master, replica = start_server(repl_diskless_sync_delay="0"), start_server()
    async with group_of(master, "embedded") as group:
        await follow(replica, master)
        replica.pause()
        await group.add_jobs()
        await group.client.execute_command("FAILOVER", "TIMEOUT", 60_000)
        await last_long_enough(group.client)
        group.leaving.stop()
        await last_long_enough(group.client)
        replica.resume()
        await role_is(replica, "master")
        await role_is(master, "slave")
        replica.command("FAILOVER")  # and back, because workers know only this address
        await role_is(master, "master")
        await has_left(group)
        await group.add_jobs()
        await group.is_worked_off()
