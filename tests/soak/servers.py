"""The servers of a drill of the project's own: one whose clock can be set, or several that fail over."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
from anyio import to_thread
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from reaper.drill.redis_server import ADVICE, Server, release_at, start, started_redis
from tests.soak.kinds import NEEDS_REPLICA, SoakKind
from tests.soak.patient import PatientClient
from tests.soak.settings import SoakSettings
from tests.support.clock import ServerClock
from tests.support.cluster import Cluster, started_cluster
from tests.support.sentinel import Setup, started_setup
from tests.support.servers import FOLLOWS_AT_ONCE, RedisServer
from workers.protocol.address import Topology
from workers.protocol.connection import COMMAND_TIMEOUT_S, commands_client
from workers.testing.server import TIMEOUT_S, find_binary

OUR_NAME = "reaper-drill"
"""The client name of the drill's own connections."""
RETRY_S = 0.1
"""How often the drill tries to reach a server that it has ended."""
FORGETS_NOTHING = {"appendonly": "yes", "appendfsync": "always"}
"""Settings of a server that has on disk whatever it has acknowledged."""
_REPLICATES = {name.replace("_", "-"): value for name, value in FOLLOWS_AT_ONCE.items()}
DOWN_AFTER_MS, NODE_TIMEOUT_MS = 1_500, 2_000
"""Longer than in other tests: no node may fail over only because the machine is busy."""


@dataclass(frozen=True)
class SoakServer(Server):
    """One server, or all of a topology."""

    nodes: Setup | Cluster | None = None
    """Servers that fail over. `url` is the address of all of them."""
    replica: RedisServer | None = None
    """The replica of one server, if a fault needs it. No client knows its address."""
    clock: ServerClock | None = None
    """The server's clock, if a fault sets it."""

    @property
    def ours(self) -> bool:
        """Whether the drill has started it."""
        return self.nodes is not None or self.process is not None

    def client(self, *, patience_s: float, key: str = "") -> Redis:
        """Return a client for the slot of ``key``, which goes where the slot goes."""
        address = f"{self.url}?client_name={OUR_NAME}"
        if self.nodes:
            return PatientClient(commands_client(address, key=key))
        client = commands_client(address, key=key, timeout_s=COMMAND_TIMEOUT_S + patience_s)
        client.set_retry(Retry(ConstantBackoff(RETRY_S), round((patience_s + TIMEOUT_S) / RETRY_S)))
        return client


@asynccontextmanager
async def soak_server(settings: SoakSettings, folder: Path) -> AsyncIterator[SoakServer]:
    """Run what the settings ask for, until the block ends. Raises NoServerError."""
    topology, binary = Topology(settings.topology), settings.server or find_binary(ADVICE)
    if topology is Topology.SINGLE:
        clock = ServerClock(folder) if SoakKind.CLOCK_STEP in settings.kinds else None
        needs_replica = bool(settings.kinds & NEEDS_REPLICA)
        config = FORGETS_NOTHING if SoakKind.RESTART_REDIS in settings.kinds else {}
        config |= _REPLICATES if needs_replica else {}
        process = RedisServer(binary, folder, config, environment=clock.environment if clock else {})
        async with started_redis(process) as one:
            served = SoakServer(one.url, one.release, one.description, process=one.process, clock=clock)
            async with beside_a_replica(served, folder / "replica") if needs_replica else nullcontext(served) as server:
                yield server
        return
    started = (
        started_cluster(binary, replicas=1, node_timeout_ms=NODE_TIMEOUT_MS)
        if topology is Topology.CLUSTER
        else started_setup(binary, down_after_ms=DOWN_AFTER_MS)
    )
    with started as nodes:
        release = await release_at(nodes.url)
        yield SoakServer(nodes.url, release, f"{release}: {nodes.description}", single=False, nodes=nodes)


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
