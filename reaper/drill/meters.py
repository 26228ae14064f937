"""Reads what an act uses: the server's own counters, and the CPU time of every process."""

import time
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from reaper.drill.supervisor import Supervisor
from reaper.drill.usage import Reading, cpu_by_role
from workers.protocol.messages import text


class OwnRequests:
    """Counts what a client of ours sends, so that it can be told from what others send: a pipeline is one request."""

    def __init__(self, client: Redis) -> None:
        self.sent = 0
        pool = client.connection_pool
        pool.connection_class = _counting(pool.connection_class, self)


def _counting(kind: type[AbstractConnection], counter: OwnRequests) -> type[AbstractConnection]:
    async def send_packed_command(connection: Any, command: Any, check_health: bool = True) -> None:
        counter.sent += 1
        await kind.send_packed_command(connection, command, check_health)

    return type(kind.__name__, (kind,), {"send_packed_command": send_packed_command})


class Meters:
    """All meters of one act. What is sent by ``client`` from now on is the drill's own, and not counted."""

    def __init__(self, client: Redis, *, counts: bool = True) -> None:
        """``counts``: one server has all of it. Of several that fail over, no figure is whole, so there is none."""
        self._client = client
        self._counts = counts
        self._own = OwnRequests(client)

    async def read(self, supervisor: Supervisor) -> Reading:
        """Read them now. Raises what redis-py raises."""
        supervisor.measure()
        if not self._counts:
            return Reading(time.monotonic(), cpu_s=cpu_by_role(supervisor.history), counted=False)
        pipeline = self._client.pipeline(transaction=False)
        pipeline.info("stats")
        pipeline.info("cpu")
        pipeline.info("server")
        stats, cpu, server = await pipeline.execute()
        return Reading(
            time.monotonic(),
            int(stats["total_reads_processed"]) - self._own.sent,
            float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]),
            cpu_by_role(supervisor.history),
            text(server["run_id"]),
        )
