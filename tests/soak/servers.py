"""The server of a drill of the project's own, whose clock can be set, and its replica."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
from anyio import to_thread
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from reaper.drill.redis_server import ADVICE, Server, start, started_redis
from tests.soak.kinds import NEEDS_REPLICA, SoakKind
from tests.soak.settings import SoakSettings
from tests.support.clock import ServerClock
from tests.support.servers import FOLLOWS_AT_ONCE, RedisServer
from workers.protocol.connection import COMMAND_TIMEOUT_S, commands_client
from workers.testing.server import TIMEOUT_S, find_binary

OUR_NAME = "reaper-drill"
"""The client name of the drill's own connections."""
RETRY_S = 0.1
"""How often the drill tries to reach a server that it has ended."""
FORGETS_NOTHING = {"appendonly": "yes", "appendfsync": "always"}
"""Settings of a server that has on disk whatever it has acknowledged."""
_REPLICATES = {name.replace("_", "-"): value for name, value in FOLLOWS_AT_ONCE.items()}


@dataclass(frozen=True)
class SoakServer(Server):
    """A server with what faults need."""

    replica: RedisServer | None = None
    """The replica of one server, if a fault needs it. No client knows its address."""
    clock: ServerClock | None = None
    """The server's clock, if a fault sets it."""

    def client(self, *, patience_s: float, key: str = "") -> Redis:
        """Return a client for the slot of ``key``, which goes where the slot goes."""
        address = f"{self.url}?client_name={OUR_NAME}"
        client = commands_client(address, key=key, timeout_s=COMMAND_TIMEOUT_S + patience_s)
        client.set_retry(Retry(ConstantBackoff(RETRY_S), round((patience_s + TIMEOUT_S) / RETRY_S)))
        return client


@asynccontextmanager
async def soak_server(settings: SoakSettings, folder: Path) -> AsyncIterator[SoakServer]:
    """Run what the settings ask for, until the block ends. Raises NoServerError."""
    binary = settings.server or find_binary(ADVICE)
    clock = ServerClock(folder) if SoakKind.CLOCK_STEP in settings.kinds else None
    needs_replica = bool(settings.kinds & NEEDS_REPLICA)
    config = FORGETS_NOTHING if SoakKind.RESTART_REDIS in settings.kinds else {}
    config |= _REPLICATES if needs_replica else {}
    process = RedisServer(binary, folder, config, environment=clock.environment if clock else {})
    async with started_redis(process) as one:
        served = SoakServer(one.url, one.release, one.description, process=one.process, clock=clock)
        async with beside_a_replica(served, folder / "replica") if needs_replica else nullcontext(served) as server:
            yield server


@asynccontextmanager
async def beside_a_replica(server: SoakServer, folder: Path) -> AsyncIterator[SoakServer]:
    """Run a replica of one server until the block ends. Raises NoServerError."""
    assert server.process
    await anyio.Path(folder).mkdir()
    replica = RedisServer(server.process.binary, folder, dict(_REPLICATES))
    try:
        await start(replica)
        await to_thread.run_sync(replica.command, "REPLICAOF", "127.0.0.1", server.process.port)
        yield replace(server, replica=replica)
    finally:
        replica.kill()
