"""Reads what an act uses: the server's counters, and the CPU time of every process."""

import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from reaper.drill.records import ProcessRun
from workers.protocol.messages import text


@dataclass(frozen=True, slots=True)
class Reading:
    """All meters at one moment."""

    at: float = 0.0
    """Seconds of a clock that only goes forward."""
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    """CPU time by kind of process, also of those that have ended."""
    requests: int = 0
    """Requests to this Redis, without the drill's own: reads from its sockets, so a pipeline is one request."""
    redis_cpu_s: float = 0.0
    server_run: str | None = None
    """Which life of the server the two figures of Redis belong to. None: there are no such figures."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The difference of two readings. Redis's figures are None where it was started again in between."""

    seconds: float = 0.0
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    requests: int | None = 0
    redis_cpu_s: float | None = 0.0


def used_between(before: Reading, after: Reading) -> Usage:
    """Return the usage from one reading to the next."""
    cpu_s = {role: used - before.cpu_s.get(role, 0.0) for role, used in after.cpu_s.items()}
    if after.server_run is None or after.server_run != before.server_run:
        return Usage(after.at - before.at, cpu_s, None, None)
    requests, redis_cpu_s = after.requests - before.requests, after.redis_cpu_s - before.redis_cpu_s
    return Usage(after.at - before.at, cpu_s, requests, redis_cpu_s)


def cpu_s(pid: int) -> float:
    """Return the CPU time in seconds that all threads of process ``pid`` have used.

    0 where it has ended, and on systems other than Linux.
    """
    if not sys.platform.startswith("linux"):
        return 0.0
    clock = (~pid << 3) | 2  # clock_getcpuclockid(3), because /proc rounds to 10 ms
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0


class Meters:
    """All meters of one act. Requests that ``client`` sends from now on are the drill's own, and not counted."""

    def __init__(self, client: Redis, *, counts: bool = True) -> None:
        """``counts``: one server sees all requests. Several that fail over see parts, so Redis has no figures."""
        self._client, self._counts, self._sent = client, counts, 0
        kind: Any = client.connection_pool.connection_class

        async def send_packed_command(connection: Any, command: Any, check_health: bool = True) -> None:
            self._sent += 1
            await kind.send_packed_command(connection, command, check_health)

        client.connection_pool.connection_class = type(
            kind.__name__, (kind,), {"send_packed_command": send_packed_command}
        )

    async def read(self, processes: Iterable[ProcessRun]) -> Reading:
        """Read them now. Raises what redis-py raises."""
        used: dict[str, float] = {}
        for run in processes:
            used[run.role] = used.get(run.role, 0.0) + run.cpu_s
        if not self._counts:
            return Reading(time.monotonic(), used)
        pipeline = self._client.pipeline(transaction=False)
        for section in ("stats", "cpu", "server"):
            pipeline.info(section)
        stats, cpu, server = await pipeline.execute()
        return Reading(
            time.monotonic(),
            used,
            int(stats["total_reads_processed"]) - self._sent,
            float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]),
            text(server["run_id"]),
        )
