"""How a drill is played. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from reaper.drill.faults import DEFAULT_FAULTS, Adapted, Fault, FaultKind, adapt_faults, check_faults
from reaper.drill.recoveries import Cast, Recovery
from reaper.drill.trace import PlannedJob
from workers.protocol.errors import ConfigurationError

MOST_LOOPS = 250
"""Loops in a process of published workers: each is a thread that polls."""


@dataclass(frozen=True, slots=True)
class DrillSettings:
    """How a drill is played. Timeouts are short, so that it ends while people watch: not for production."""

    workers: int = 4
    """The last one is a bare redis-py loop, where there are two or more and `bare_worker` is set."""
    reapers: int = 3
    concurrency: int = 16
    visibility_timeout: timedelta = timedelta(seconds=2)
    max_deliveries: int = 3
    lease_ttl: timedelta = timedelta(seconds=1.5)
    scan_interval: timedelta = timedelta(seconds=0.25)
    faults: tuple[Fault, ...] = DEFAULT_FAULTS
    seed: int = 1
    trace: str = "generated"
    speedup: float = 1.0
    bare_worker: bool = True
    idle: timedelta = timedelta(0)
    """How long everybody is measured before the first job, with nothing to do."""
    look_interval: timedelta = timedelta(seconds=0.2)
    """How often the drill looks at Redis, for the screen and to notice the end."""

    def for_jobs(self, jobs: Sequence[PlannedJob]) -> "DrillSettings":
        """Return the settings for these jobs: a bare loop extends nothing, so it gets none that would be recovered.

        One that reaches the visibility timeout would be started again and again there, and end as a dead letter.
        """
        longest = max([job.duration for job in jobs] + self._long_jobs(), default=timedelta(0))
        return replace(self, bare_worker=self.bare_worker and longest < self.visibility_timeout)

    def _long_jobs(self) -> list[timedelta]:
        return [fault.lasts for fault in self.faults if fault.kind is FaultKind.LONG_JOBS and fault.lasts]

    def adapted(self, recovery: Recovery) -> list[Adapted]:
        """Return what becomes of each fault: without reapers nobody leads, and only the workers can be hit."""
        return adapt_faults(self.faults, reapers=recovery.by_reapers)

    def faults_for(self, recovery: Recovery) -> tuple[Fault, ...]:
        """Return the faults that are played."""
        return tuple(adapted.played for adapted in self.adapted(recovery) if adapted.played)

    @property
    def paused(self) -> timedelta:
        """How long Redis is stopped in all."""
        pauses = (fault.lasts for fault in self.faults if fault.kind is FaultKind.PAUSE_REDIS and fault.lasts)
        return sum(pauses, timedelta(0))

    @property
    def has_bare_worker(self) -> bool:
        """Whether the last worker is a bare loop, where the recovery has such a cast."""
        return self.bare_worker and self.workers > 1

    @property
    def loops(self) -> int:
        """Loops in each process of published workers."""
        return min(self.concurrency, MOST_LOOPS)

    def check(self, recovery: Recovery) -> None:
        """Refuse what cannot be played. Raises ConfigurationError."""
        if self.workers < 1:
            raise ConfigurationError("a drill needs workers: --workers 1 or more.")
        if recovery.by_reapers and self.reapers < 1:
            raise ConfigurationError("--recovery reaper needs reapers: --reapers 1 or more.")
        check_faults(self.faults_for(recovery), reapers=self.reapers)

    def as_json(self, recovery: Recovery) -> dict[str, Any]:
        """Return the settings for a report; durations are seconds."""
        published = recovery.cast is Cast.PUBLISHED
        return {
            "workers": self.workers,
            "bare_worker": self.has_bare_worker and not published,
            "reapers": self.reapers if recovery.by_reapers else 0,
            "concurrency": self.loops if published else self.concurrency,
            "visibility_timeout": self.visibility_timeout.total_seconds(),
            "max_deliveries": self.max_deliveries,
            "lease_ttl": self.lease_ttl.total_seconds(),
            "scan_interval": self.scan_interval.total_seconds(),
            "faults": [str(fault) for fault in self.faults],
            "seed": self.seed,
            "trace": self.trace,
            "speedup": self.speedup,
            "idle": self.idle.total_seconds(),
        }
