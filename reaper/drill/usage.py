"""What processes and Redis have used: CPU time and requests."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    server_run: str = ""
    """Which life of the server the two figures of Redis are of: it counts from its start."""
    counted: bool = True
    """The two figures of Redis are there."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used between two readings. What Redis has counted is None where it was started again in between."""

    seconds: float = 0.0
    requests: int | None = 0
    redis_cpu_s: float | None = 0.0
    cpu_s: Mapping[str, float] = field(default_factory=dict)


def used_between(before: Reading, after: Reading) -> Usage:
    """Return what was used from one reading to the next."""
    counted = after.counted and before.server_run == after.server_run
    return Usage(
        after.at - before.at,
        after.requests - before.requests if counted else None,
        after.redis_cpu_s - before.redis_cpu_s if counted else None,
        {role: used - before.cpu_s.get(role, 0.0) for role, used in after.cpu_s.items()},
    )
