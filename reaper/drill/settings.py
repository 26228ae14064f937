"""The settings of a drill."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from reaper.drill.faults import DEFAULT_FAULTS, FORMS, LONG_JOBS, Fault, FaultKind, Form, parse_fault, without_reapers
from reaper.drill.recoveries import Recovery
from reaper.drill.trace import (
    LONGEST,
    MOST_JOBS,
    PlannedJob,
    Request,
    TokenTimes,
    generate_requests,
    plan_jobs,
    read_requests,
)  # fmt: skip
from workers.protocol.connection import read_address
from workers.protocol.errors import ConfigurationError
from workers.runtime.settings import SHORTEST_VISIBILITY, Seconds, Section, seconds

MOST_MS = LONGEST / timedelta(milliseconds=1)
MORE_PATIENCE_S = 60.0
"""Seconds for the start of processes, and for faults that wait for a process to hit."""
GENERATED_JOBS, GENERATED_RATE = 1_000, 70.0
"""The number of generated jobs, and jobs a second. About 20 are in flight at a time."""
NO_OPTIONS = ("faults", "long_jobs", "max_deliveries")
"""Fields that are not options of their own."""
IN_PLACE = "in-place"
_TOKENS, _MS = TokenTimes(), timedelta(milliseconds=1)


class DrillSettings(Section):
    """The settings of a drill. Timeouts are short, so that you can watch it. They are not for production."""

    forms: ClassVar[Mapping[str, Form]] = FORMS
    """The kinds of faults that can be chosen."""

    trace: Path | None = Field(
        None, description="CSV file: TIMESTAMP,ContextTokens,GeneratedTokens. Default: a generated one."
    )
    speedup: float = Field(1.0, gt=0, description="Replay arrivals this many times faster.")
    limit: int | None = Field(None, ge=1, description="Replay no more than this many jobs.")
    prefill_ms: float = Field(_TOKENS.prefill / _MS, ge=0, le=MOST_MS, description="Milliseconds per context token.")
    decode_ms: float = Field(_TOKENS.decode / _MS, ge=0, le=MOST_MS, description="Milliseconds per generated token.")
    workers: int = Field(4, ge=1, le=1_000, description="Worker processes.")
    concurrency: int = Field(16, ge=1, le=10_000, description="Jobs that a worker runs at a time (a bare one: 1).")
    bare_worker: bool = Field(True, description="Make the last worker a bare redis-py loop.")
    reapers: int = Field(3, ge=0, le=100, description="Reaper replicas.")
    policy: Literal["stream", "in-place"] = Field(
        "stream",
        description="How a recovered job becomes ready again: stream (a copy at the end of the stream), or in-place "
        "(no copy; needs Redis 8.4, on the PATH or named by --redis-url).",
    )
    visibility_timeout: Seconds = seconds(
        2, "How long a delivery may go without a heartbeat.", least=SHORTEST_VISIBILITY
    )
    lease_ttl: Seconds = seconds(1.5, "How long a lease lasts without a tick, at most.", least=timedelta(seconds=0.5))
    redis_url: str | None = Field(
        None, repr=False, description="A Redis to use. The drill uses only keys of its own. Default: it starts one."
    )
    keep_keys: bool = Field(
        False, description="Leave this drill's streams and journals in the Redis of --redis-url (see --output)."
    )
    faults: tuple[Fault, ...] = Field(
        DEFAULT_FAULTS,
        description="Repeatable. none: no fault. "
        f"Default: {' '.join(map(str, DEFAULT_FAULTS))}, as many as the trace is long enough for.",
    )
    long_jobs: tuple[Fault, ...] = Field(
        (), description="Add jobs of one duration at once. 20@4+6 adds 20 jobs of 6 s after 4 s. Repeatable."
    )
    quiet: bool = Field(False, description="Print no progress, and read the state of Redis only once a second.")
    seed: int = Field(1, description="Seed of the generated trace and the payloads.")
    files: Path | None = Field(None, description="Keep the ledgers and logs of all processes in this folder.")

    max_deliveries: int = 3

    @field_validator("faults", mode="before")
    @classmethod
    def _read_faults(cls, value: Any) -> Any:
        """Accept faults as text, or ``none``."""
        if value == ("none",):
            return ()
        if "none" in value:
            raise ConfigurationError("--fault none excludes other faults. Remove one of them.")
        return tuple(parse_fault(one, cls.forms) if isinstance(one, str) else one for one in value)

    @property
    def ttl(self) -> timedelta:
        """How long a lease lasts without a tick. A short visibility timeout makes it shorter."""
        return min(self.lease_ttl, max(timedelta(seconds=1), self.visibility_timeout / 4))

    @property
    def scan(self) -> timedelta:
        """The time between two ticks of the holder."""
        return min(self.ttl / 3, self.visibility_timeout / 4)

    @property
    def look_s(self) -> float:
        """Seconds between two reads of the state of Redis."""
        return 1.0 if self.quiet else 0.2

    @property
    def kinds(self) -> frozenset[str]:
        """The chosen kinds of faults."""
        return frozenset(fault.kind for fault in self.faults)

    @property
    def added_jobs(self) -> list[Fault]:
        """The jobs that are added at once."""
        return [fault for fault in (*self.faults, *self.long_jobs) if fault.kind == LONG_JOBS]

    @property
    def shortest_visibility(self) -> timedelta:
        """The shortest visibility timeout of the act."""
        return self.visibility_timeout

    @property
    def away_s(self) -> float:
        """How long Redis is away in all, in seconds."""
        return sum(fault.lasts_s for fault in self.faults if self.forms[fault.kind].hits == "redis")

    @property
    def has_bare_worker(self) -> bool:
        """Whether the last worker is a bare loop, if the recovery has plain workers."""
        return self.bare_worker and self.workers > 1

    def jobs(self) -> list[PlannedJob]:
        """Return the jobs of the trace, or generated ones. Raises ConfigurationError, by the names of options."""
        if self.trace:
            requests = read_requests(self.trace, limit=self.limit)
        else:
            count = self.limit or GENERATED_JOBS
            if count > MOST_JOBS:
                raise ConfigurationError(f"--limit is {count} jobs, but at most {MOST_JOBS} are generated. Lower it.")
            requests = generate_requests(self.seed, count=count, rate=GENERATED_RATE)
        return self.planned(requests)

    def planned(self, requests: Iterable[Request]) -> list[PlannedJob]:
        """Return the jobs of these requests."""
        return plan_jobs(requests, TokenTimes(self.prefill_ms * _MS, self.decode_ms * _MS), speedup=self.speedup)

    def patience_s(self, jobs: Sequence[PlannedJob]) -> float:
        """Return the longest time of an act in seconds. It is long enough for all work."""
        moves = (*self.faults, *self.long_jobs)
        last = max([job.at for job in jobs] + [move.over_at for move in moves], default=timedelta(0))
        work = sum((job.duration for job in jobs), timedelta(0))
        work += sum((int(fault.amount) * fault.lasts for fault in self.added_jobs), timedelta(0))
        longest = max([job.duration for job in jobs] + [fault.lasts for fault in self.added_jobs], default=last)
        executions = self.max_deliveries * (work / (self.workers * self.concurrency) + longest)
        timeouts = (self.max_deliveries * 3 + 1) * self.visibility_timeout
        return (last + executions + timeouts).total_seconds() + MORE_PATIENCE_S

    def for_jobs(self, jobs: Sequence[PlannedJob]) -> Self:
        """Return the settings for these jobs, without a bare worker if a job reaches the visibility timeout.

        A bare loop sends no heartbeats, so these jobs would start again and again there, and become dead letters.
        """
        durations = [*(job.duration for job in jobs), *(fault.lasts for fault in self.added_jobs)]
        can_be_bare = max(durations, default=timedelta(0)) < self.shortest_visibility
        return self.model_copy(update={"bare_worker": self.bare_worker and can_be_bare})

    def fitting(self, jobs: Sequence[PlannedJob]) -> Self:
        """Return the settings with the faults that come before the last job, because a trace may be short."""
        last = max((job.at for job in jobs), default=timedelta(0))
        return self.model_copy(update={"faults": tuple(fault for fault in self.faults if fault.at < last)})

    def adapted(self, recovery: Recovery) -> list[tuple[Fault, Fault | None]]:
        """Return each chosen fault with the one that is played instead, or None."""
        return [(fault, fault if recovery.by_reapers else without_reapers(fault)) for fault in self.faults]

    def faults_for(self, recovery: Recovery) -> tuple[Fault, ...]:
        """Return the faults that are played, and the jobs that are added."""
        return (*(played for _, played in self.adapted(recovery) if played), *self.long_jobs)

    def left_out(self, recovery: Recovery) -> list[tuple[Fault, Fault | None]]:
        """Return the faults that need reapers if none run, each with the one that is played instead, or None."""
        return [(asked, played) for asked, played in self.adapted(recovery) if played != asked]

    def check(self, recovery: Recovery) -> None:
        """Reject settings that cannot be played. Raises ConfigurationError."""
        if self.redis_url:
            read_address(self.redis_url)
        if recovery.by_reapers and self.reapers < 1:
            raise ConfigurationError("--recovery reaper needs reapers. Set --reapers to 1 or more.")
        if self.keep_keys and not self.redis_url:
            raise ConfigurationError("--keep-keys needs a Redis of your own. Name it with --redis-url.")
        if self.redis_url and FaultKind.PAUSE_REDIS in self.kinds:
            raise ConfigurationError("--fault pause-redis stops the server of the drill. Remove --redis-url.")
        if self.policy == IN_PLACE and not recovery.promises:
            raise ConfigurationError("--policy in-place needs a recovery. Use --recovery reaper or embedded.")
        if self.reapers == 1 and any(fault.kind == FaultKind.PAUSE_HOLDER for fault in self.faults_for(recovery)):
            raise ConfigurationError("--fault pause-holder needs a second reaper. Set --reapers to 2 or more.")

    def as_json(self, recovery: Recovery) -> dict[str, Any]:
        """Return the settings for a report. Durations are seconds."""
        return {
            "workers": self.workers,
            "bare_worker": self.has_bare_worker,
            "reapers": self.reapers if recovery.by_reapers else 0,
            "policy": self.policy,
            "concurrency": self.concurrency,
            "visibility_timeout": self.visibility_timeout.total_seconds(),
            "max_deliveries": self.max_deliveries,
            "lease_ttl": self.lease_ttl.total_seconds(),
            "scan_interval": self.scan.total_seconds(),
            "faults": [str(fault) for fault in self.faults],
            "long_jobs": [str(jobs) for jobs in self.long_jobs],
            "seed": self.seed,
            "trace": self.trace.name if self.trace else "generated",
            "speedup": self.speedup,
        }
