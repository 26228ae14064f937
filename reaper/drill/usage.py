"""What a drill's processes and its Redis use: CPU time and requests."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from reaper.drill.records import ProcessRun


def cpu_s(pid: int) -> float:
    """Return the CPU time in seconds that process ``pid`` has used, all its threads.

    0 where it has ended, and on systems other than Linux.
    """
    if not sys.platform.startswith("linux"):
        return 0.0
    clock = (~pid << 3) | 2  # clock_getcpuclockid(3); /proc knows no less than 10 ms
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0


def cpu_by_role(runs: Sequence[ProcessRun]) -> dict[str, float]:
    """Return the CPU time in seconds by kind of process, of those that have ended, too."""
    used: dict[str, float] = {}
    for run in runs:
        used[run.role] = used.get(run.role, 0.0) + run.cpu_s
    return used


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


@dataclass(frozen=True, slots=True)
class Reading:
    """All meters at one moment."""

    at: float = 0.0
    """Seconds of a clock that only goes forward."""
    requests: int = 0
    """What everybody but the drill has sent to this Redis: reads from its sockets, so a pipeline is one request."""
    redis_cpu_s: float = 0.0
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    """By kind of process."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used between two readings."""

    seconds: float = 0.0
    requests: int = 0
    redis_cpu_s: float = 0.0
    cpu_s: Mapping[str, float] = field(default_factory=dict)


def used_between(before: Reading, after: Reading) -> Usage:
    """Return what was used from one reading to the next."""
    return Usage(
        after.at - before.at,
        after.requests - before.requests,
        after.redis_cpu_s - before.redis_cpu_s,
        {role: used - before.cpu_s.get(role, 0.0) for role, used in after.cpu_s.items()},
    )


async def read_meters(client: Redis, own: OwnRequests, runs: Sequence[ProcessRun]) -> Reading:
    """Read all meters now; ``runs`` as they were measured last. Raises what redis-py raises."""
    pipeline = client.pipeline(transaction=False)
    pipeline.info("stats")
    pipeline.info("cpu")
    stats, cpu = await pipeline.execute()
    return Reading(
        time.monotonic(),
        int(stats["total_reads_processed"]) - own.sent,
        float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]),
        cpu_by_role(runs),
    )
