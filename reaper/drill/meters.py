"""Reads the costs of an act, which are the server's counters and the CPU time of every process."""

import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from reaper.drill.records import ProcessRun
from workers.protocol.messages import text


@dataclass(frozen=True, slots=True)
class Usage:
    """All meters at one moment, or between two moments."""

    seconds: float = 0.0
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    """CPU time by kind of process, also of those that have ended."""
    requests: float | None = 0
    """Requests to this Redis without the drill's own ones. A request is a read from a socket, so a pipeline is one."""
    redis_cpu_s: float | None = 0.0
    """This and ``requests`` are None with several servers, and after a restart of the server."""
    server_run: str | None = None

    def since(self, before: "Usage") -> "Usage":
        """Return the usage from one moment to this one."""
        cpu_s = {role: used - before.cpu_s.get(role, 0.0) for role, used in self.cpu_s.items()}
        is_same = self.server_run == before.server_run
        requests = _less(self.requests, before.requests) if is_same else None
        redis_cpu_s = _less(self.redis_cpu_s, before.redis_cpu_s) if is_same else None
        return Usage(self.seconds - before.seconds, cpu_s, requests, redis_cpu_s)


def _less(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else now - before


def cpu_s(pid: int) -> float:
    """Return the CPU time in seconds that all threads of process ``pid`` have used.

    It is 0 after the end, and on systems other than Linux.
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
        """``counts`` means that one server sees all requests. Otherwise Redis has no figures."""
        self._client, self._counts, self._sent = client, counts, 0
        kind: Any = client.connection_pool.connection_class

        async def send_packed_command(connection: Any, command: Any, check_health: bool = True) -> None:
            self._sent += 1
            await kind.send_packed_command(connection, command, check_health)

        client.connection_pool.connection_class = type(
            kind.__name__, (kind,), {"send_packed_command": send_packed_command}
        )

    async def read(self, processes: Iterable[ProcessRun]) -> Usage:
        """Read all meters now. Raises redis-py's errors."""
        used: dict[str, float] = {}
        for run in processes:
            used[run.role] = used.get(run.role, 0.0) + run.cpu_s
        if not self._counts:
            return Usage(time.monotonic(), used, None, None)
        pipeline = self._client.pipeline(transaction=False)
        for section in ("stats", "cpu", "server"):
            pipeline.info(section)
        stats, cpu, server = await pipeline.execute()
        return Usage(
            time.monotonic(),
            used,
            int(stats["total_reads_processed"]) - self._sent,
            float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]),
            text(server["run_id"]),
        )
