"""How a drill is played, as its options say."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from reaper.drill.faults import DEFAULT_FAULTS, FORMS, Adapted, Fault, FaultKind, Form, adapt_faults, parse_fault
from reaper.drill.recoveries import Cast, Recovery
from reaper.drill.trace import LONGEST, MOST_JOBS, PlannedJob, TokenTimes, generate_requests, plan_jobs, read_requests
from workers.protocol.connection import read_address
from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import RecoveryMode
from workers.runtime.settings import Seconds, Section

MOST_MS = LONGEST / timedelta(milliseconds=1)
MOST_SLOTS = 10_000
"""Jobs that a worker runs at a time, at most."""
MOST_LOOPS = 250
"""Loops in a process of published workers: each is a thread that polls."""
GENERATED_JOBS = 1_000
GENERATED_RATE = 70.0
"""Jobs a second; with the generated durations about 20 are in flight at a time."""
NO_OPTIONS = ("faults", "max_deliveries", "reaper_lines", "worker_flags", "spares_last_deliveries", "more_patience_s")
"""Fields that are not options of their own."""
IN_PLACE = "in-place"
_TOKENS, _MS = TokenTimes(), timedelta(milliseconds=1)


class DrillSettings(Section):
    """How a drill is played. Timeouts are short, so that it ends while people watch: not for production."""

    forms: ClassVar[Mapping[str, Form]] = FORMS
    """The faults that can be asked for."""

    trace: Path | None = Field(
        None, description="CSV file: TIMESTAMP,ContextTokens,GeneratedTokens. Default: a generated one."
    )
    speedup: float = Field(1.0, gt=0, description="Replay arrivals this many times faster.")
    limit: int | None = Field(None, ge=1, description="Replay no more than this many jobs.")
    prefill_ms: float = Field(_TOKENS.prefill / _MS, ge=0, le=MOST_MS, description="Duration of a context token.")
    decode_ms: float = Field(_TOKENS.decode / _MS, ge=0, le=MOST_MS, description="Duration of a generated token.")
    workers: int = Field(4, ge=1, le=1_000, description="Worker processes.")
    concurrency: int = Field(
        16,
        ge=1,
        le=MOST_SLOTS,
        description=f"Jobs that a worker runs at a time (the bare one: 1; a published one: at most {MOST_LOOPS}).",
    )
    bare_worker: bool = Field(True, description="Let the last worker be a bare redis-py loop; without, all are alike.")
    reapers: int = Field(3, ge=0, le=100, description="Reaper replicas.")
    policy: Literal["stream", "in-place"] = Field(
        "stream",
        description="How reapers give back: by a copy to the stream's tail, or in-place, where all workers read with "
        "CLAIM; that needs a Redis 8.4, on the PATH or named by --redis-url.",
    )
    visibility_timeout: Seconds = Field(timedelta(seconds=2), ge=timedelta(seconds=0.1), description="Seconds.")
    lease_ttl: Seconds = Field(timedelta(seconds=1.5), ge=timedelta(seconds=0.5), description="Seconds.")
    redis_url: str | None = Field(
        None, repr=False, description="A Redis to use; only keys of this drill are touched. Default: one of its own."
    )
    redis_pid: int | None = Field(None, ge=1, description="Its process on this machine, which pause-redis may stop.")
    keep_keys: bool = Field(
        False, description="Leave this drill's streams and journals in the Redis of --redis-url (see --json)."
    )
    faults: tuple[Fault, ...] = Field(
        DEFAULT_FAULTS,
        description=f"Repeatable; or none. Default: {' '.join(map(str, DEFAULT_FAULTS))}, as far as the trace goes.",
    )
    idle: Seconds = Field(
        timedelta(0), ge=timedelta(0), description="Measure all processes for so many seconds before the first job."
    )
    quiet: bool = Field(False, description="Show nothing, and look at Redis once a second only: for measurements.")
    seed: int = Field(1, description="Of the generated trace and the payloads.")
    files: Path | None = Field(None, description="Keep the ledgers and logs of all processes in this folder.")

    max_deliveries: int = 3
    reaper_lines: tuple[str, ...] = ()
    """More lines of the reapers' settings file."""
    worker_flags: Mapping[str, str | float] = {}
    """More flags of the workers."""
    spares_last_deliveries: bool = False
    """A worker that runs a job for the last time is never killed at a fixed moment."""
    more_patience_s: float = 0.0
    """How much longer than usual an act may take."""

    @field_validator("faults", mode="before")
    @classmethod
    def _read_faults(cls, value: Any) -> Any:
        """Accept faults as text, or ``none``."""
        if value == ("none",):
            return ()
        if "none" in value:
            raise ConfigurationError("--fault none plays no fault: leave it away, or the others.")
        return tuple(parse_fault(one, cls.forms) if isinstance(one, str) else one for one in value)

    @property
    def times(self) -> TokenTimes:
        """How long a token takes."""
        return TokenTimes(self.prefill_ms * _MS, self.decode_ms * _MS)

    @property
    def scan(self) -> timedelta:
        """The time between two tail scans of the leader."""
        return min(timedelta(seconds=1), self.visibility_timeout / 4)

    @property
    def look_s(self) -> float:
        """Seconds between two looks at Redis, for the screen and to notice the end."""
        return 1.0 if self.quiet else 0.2

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of faults that are asked for."""
        return frozenset(fault.kind for fault in self.faults)

    @property
    def long_jobs(self) -> list[Fault]:
        """The faults that put in long jobs."""
        return [fault for fault in self.faults if fault.kind == FaultKind.LONG_JOBS]

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
        """Whether the last worker is a bare loop, if the recovery has such workers."""
        return self.bare_worker and self.workers > 1

    @property
    def loops(self) -> int:
        """Loops in each process of published workers."""
        return min(self.concurrency, MOST_LOOPS)

    def jobs(self) -> list[PlannedJob]:
        """Return the jobs of the trace, or generated ones. Raises ConfigurationError, by the names of options."""
        if self.trace:
            requests = read_requests(self.trace, limit=self.limit)
        else:
            count = self.limit or GENERATED_JOBS
            if count > MOST_JOBS:
                raise ConfigurationError(f"--limit asks for {count} jobs: at most {MOST_JOBS} are generated.")
            requests = generate_requests(self.seed, count=count, rate=GENERATED_RATE)
        return plan_jobs(requests, self.times, speedup=self.speedup)

    def for_jobs(self, jobs: Sequence[PlannedJob]) -> Self:
        """Return the settings for these jobs: without a bare worker if one of them reaches the visibility timeout.

        A bare loop extends nothing, so such a job would start there again and again, and end as a dead letter.
        """
        durations = [*(job.duration for job in jobs), *(fault.lasts for fault in self.long_jobs)]
        can_be_bare = max(durations, default=timedelta(0)) < self.shortest_visibility
        return self.model_copy(update={"bare_worker": self.bare_worker and can_be_bare})

    def fitting(self, jobs: Sequence[PlannedJob]) -> Self:
        """Return the settings with those faults that come while jobs still do: a short trace has no room for all."""
        last = max((job.at for job in jobs), default=timedelta(0))
        return self.model_copy(update={"faults": tuple(fault for fault in self.faults if fault.at < last)})

    def adapted(self, recovery: Recovery) -> list[Adapted]:
        """Return the fault that is played for each one asked for."""
        return adapt_faults(self.faults, reapers=recovery.by_reapers)

    def faults_for(self, recovery: Recovery) -> tuple[Fault, ...]:
        """Return the faults that are played."""
        return tuple(adapted.played for adapted in self.adapted(recovery) if adapted.played)

    def gives_back_in_place(self, recovery: Recovery) -> bool:
        """Return whether nothing is copied, and all workers read with CLAIM."""
        return self.policy == IN_PLACE or recovery.mode is RecoveryMode.CLAIM

    def check(self, recovery: Recovery) -> None:
        """Refuse a drill that cannot be played. Raises ConfigurationError."""
        if self.redis_url:
            read_address(self.redis_url)
        if recovery.by_reapers and self.reapers < 1:
            raise ConfigurationError("--recovery reaper needs reapers: --reapers 1 or more.")
        for option, given in (("--keep-keys", self.keep_keys), ("--redis-pid", self.redis_pid)):
            if given and not self.redis_url:
                raise ConfigurationError(f"{option} is about a Redis that is named: it needs --redis-url.")
        if self.policy == IN_PLACE and not recovery.by_reapers:
            raise ConfigurationError("--policy is said by reapers: it needs --recovery reaper.")
        if self.reapers == 1 and any(fault.kind == FaultKind.PAUSE_LEADER for fault in self.faults_for(recovery)):
            raise ConfigurationError(
                "--fault pause-leader needs another reaper, which leads while the first is paused: --reapers 2 or more."
            )

    def as_json(self, recovery: Recovery) -> dict[str, Any]:
        """Return the settings for a report; durations are seconds."""
        published = recovery.cast is Cast.PUBLISHED
        return {
            "workers": self.workers,
            "bare_worker": self.has_bare_worker and not published,
            "reapers": self.reapers if recovery.by_reapers else 0,
            "policy": IN_PLACE if self.gives_back_in_place(recovery) else self.policy,
            "concurrency": self.loops if published else self.concurrency,
            "visibility_timeout": self.visibility_timeout.total_seconds(),
            "max_deliveries": self.max_deliveries,
            "lease_ttl": self.lease_ttl.total_seconds(),
            "scan_interval": self.scan.total_seconds(),
            "faults": [str(fault) for fault in self.faults],
            "seed": self.seed,
            "trace": self.trace.name if self.trace else "generated",
            "speedup": self.speedup,
            "idle": self.idle.total_seconds(),
        }
