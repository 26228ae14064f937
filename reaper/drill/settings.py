"""How a drill is played, as its options say."""

import shlex
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from reaper.drill.chaos import Conditions, draw
from reaper.drill.clock import can_set_clocks
from reaper.drill.faults import (
    AGAINST_REDIS,
    DEFAULT_FAULTS,
    FAILOVER_FAULTS,
    OWN_SERVER,
    SHORTENED,
    Adapted,
    Fault,
    FaultKind,
    adapt_faults,
    check_faults,
    parse_fault,
)
from reaper.drill.recoveries import Cast, Recovery
from reaper.drill.sentinel_setup import REPLICAS
from reaper.drill.trace import LONGEST, PlannedJob, TokenTimes
from workers.protocol.address import Topology
from workers.protocol.connection import read_address
from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import RecoveryMode
from workers.runtime.settings import Seconds, Section

MOST_MS = LONGEST / timedelta(milliseconds=1)
MOST_SLOTS = 10_000
"""Jobs that a worker runs at a time, at most."""
MOST_LOOPS = 250
"""Loops in a process of published workers: each is a thread that polls."""
REPLICAS_OF = {"single": 0, "sentinel": REPLICAS, "cluster": 1}
"""Replicas of each master, by topology."""
IN_PLACE = "in-place"
_NOT_PLAYED = frozenset({"faults", "redis_url", "redis_pid", "keep_keys", "files", "quiet", "max_deliveries"})
"""Settings that say nothing of what is played in a chaos, or are no options."""
_TOKENS, _MS = TokenTimes(), timedelta(milliseconds=1)


def _no_cluster(url: str | None) -> str | None:
    if url and url.partition("://")[0].endswith("+cluster"):
        raise ValueError("the drill is not played in a cluster: its ledger is kept beside one server")
    return url


def _read_faults(value: Any) -> Any:
    """Accept what is written on the command line: faults as text, or ``none``."""
    if value == ("none",):
        return ()
    if "none" in value:
        raise ConfigurationError("--fault none plays no fault: leave it away, or the others.")
    return tuple(parse_fault(one) if isinstance(one, str) else one for one in value)


class DrillSettings(Section):
    """How a drill is played. Timeouts are short, so that it ends while people watch: not for production."""

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
        description="Jobs that a worker runs at a time (the bare one: 1; published: loops in a process, at most "
        f"{MOST_LOOPS}).",
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
    scan_interval: Seconds | None = Field(
        None,
        ge=timedelta(seconds=0.05),
        description="Seconds between two scans of the leader. Default: an eighth of the visibility timeout, at most 1.",
    )
    topology: Literal["single", "sentinel", "cluster"] = Field(
        "single",
        description="What the Redis is that the drill starts: a single server, a master that Sentinels replace, or a "
        "cluster of three masters.",
    )
    min_replicas_acked: int = Field(
        0, ge=0, description="After each batch of jobs, wait a second (WAIT) for so many replicas to have them."
    )
    redis_url: Annotated[str | None, AfterValidator(_no_cluster)] = Field(
        None, repr=False, description="A Redis to use; only keys of this drill are touched. Default: one of its own."
    )
    redis_pid: int | None = Field(None, ge=1, description="Its process on this machine, which pause-redis may stop.")
    keep_keys: bool = Field(
        False, description="Leave this drill's streams and journals in the Redis of --redis-url (see --json)."
    )
    faults: Annotated[tuple[Fault, ...], BeforeValidator(_read_faults)] = Field(
        DEFAULT_FAULTS,
        description=f"Repeatable; or none. Default: {' '.join(map(str, DEFAULT_FAULTS))}, as far as the trace goes.",
    )
    chaos: Seconds | None = Field(
        None,
        ge=timedelta(seconds=1),
        description="Draw faults of all kinds by --seed, for so many seconds, instead of --fault.",
    )
    idle: Seconds = Field(
        timedelta(0),
        ge=timedelta(0),
        description="Measure everybody for so many seconds before the first job, with nothing to do.",
    )
    quiet: bool = Field(
        False, description="No view, and a look at Redis a second only, so that it disturbs no measurement."
    )
    seed: int = Field(1, description="Of the generated trace, the payloads, and the faults of --chaos.")
    files: Path | None = Field(None, description="Keep the ledgers and logs of all processes in this folder.")
    max_deliveries: int = 3

    @property
    def trace_name(self) -> str:
        """What a report calls the trace."""
        return "generated" if self.trace is None else self.trace.name

    @property
    def times(self) -> TokenTimes:
        """What a token costs."""
        return TokenTimes(self.prefill_ms * _MS, self.decode_ms * _MS)

    @property
    def scan(self) -> timedelta:
        """The scan interval in force."""
        return self.scan_interval or min(timedelta(seconds=1), self.visibility_timeout / 8)

    @property
    def look_interval(self) -> timedelta:
        """How often the drill looks at Redis, for the screen and to notice the end."""
        return timedelta(seconds=1 if self.quiet else 0.2)

    def for_jobs(self, jobs: Sequence[PlannedJob]) -> "DrillSettings":
        """Return the settings for these jobs: a bare loop extends nothing, so it gets none that would be recovered.

        One that reaches the visibility timeout would be started again and again there, and end as a dead letter. Nor
        does a bare loop make a group again that was destroyed.
        """
        longest = max([job.duration for job in jobs] + self._long_jobs(), default=timedelta(0))
        kinds = {fault.kind for fault in self.faults}
        shortest = self.visibility_timeout
        if FaultKind.SHORTEN_VISIBILITY in kinds:
            shortest /= SHORTENED
        survives = longest < shortest and FaultKind.DESTROY_GROUP not in kinds
        return self.model_copy(update={"bare_worker": self.bare_worker and survives})

    def fitting(self, jobs: Sequence[PlannedJob]) -> "DrillSettings":
        """Return the settings with those faults that come while jobs still do: a short trace has no room for all."""
        last = max((job.at for job in jobs), default=timedelta(0))
        return self.model_copy(update={"faults": tuple(fault for fault in self.faults if fault.at < last)})

    def with_own_faults(self) -> "DrillSettings":
        """Return the settings with the faults that are played where none were asked for."""
        return self if self.topology == "single" else self.model_copy(update={"faults": FAILOVER_FAULTS})

    def in_chaos(self, recovery: Recovery, jobs: Sequence[PlannedJob]) -> "DrillSettings":
        """Return the settings with the faults that are drawn; as they are where no chaos was asked for."""
        if self.chaos is None:
            return self
        drawn = draw(self.seed, self.chaos.total_seconds(), self.conditions(recovery, jobs))
        return self.model_copy(update={"faults": drawn})

    def conditions(self, recovery: Recovery, jobs: Sequence[PlannedJob]) -> Conditions:
        """Return what a chaos is drawn for."""
        longest = max((job.duration for job in jobs), default=timedelta(0))
        return Conditions(
            recovery=recovery,
            workers=self.workers,
            reapers=self.reapers,
            visibility_s=self.visibility_timeout.total_seconds(),
            lease_ttl_s=self.lease_ttl.total_seconds(),
            longest_job_s=longest.total_seconds(),
            max_deliveries=self.max_deliveries,
            bare_worker=self.has_bare_worker and recovery.cast is not Cast.PUBLISHED,
            topology=Topology(self.topology),
            out_of_reach=self.out_of_reach,
        )

    @property
    def out_of_reach(self) -> frozenset[FaultKind]:
        """Kinds of faults that this server, or this machine, does not allow for."""
        kinds: set[FaultKind] = set()
        if self.redis_url:
            kinds |= OWN_SERVER
        if self.redis_url and self.redis_pid is None:
            kinds.add(FaultKind.PAUSE_REDIS)
        if not can_set_clocks():
            kinds.add(FaultKind.CLOCK_STEP)
        return frozenset(kinds)

    def _long_jobs(self) -> list[timedelta]:
        return [fault.lasts for fault in self.faults if fault.kind is FaultKind.LONG_JOBS and fault.lasts]

    def adapted(self, recovery: Recovery) -> list[Adapted]:
        """Return what becomes of each fault: without reapers nobody leads, and only the workers can be hit."""
        return adapt_faults(self.faults, reapers=recovery.by_reapers)

    def faults_for(self, recovery: Recovery) -> tuple[Fault, ...]:
        """Return the faults that are played."""
        return tuple(adapted.played for adapted in self.adapted(recovery) if adapted.played)

    @property
    def away(self) -> timedelta:
        """How long Redis is away in all."""
        away = (fault.lasts for fault in self.faults if fault.kind in AGAINST_REDIS and fault.lasts)
        return sum(away, timedelta(0))

    @property
    def has_bare_worker(self) -> bool:
        """Whether the last worker is a bare loop, where the recovery has such a cast, and Redis is one server."""
        return self.bare_worker and self.workers > 1 and self.topology == "single"

    @property
    def loops(self) -> int:
        """Loops in each process of published workers."""
        return min(self.concurrency, MOST_LOOPS)

    def gives_back_in_place(self, recovery: Recovery) -> bool:
        """Tell whether nothing is copied, and all workers read with CLAIM."""
        return self.policy == IN_PLACE or recovery.mode is RecoveryMode.CLAIM

    def check(self, recovery: Recovery) -> None:
        """Refuse what cannot be played. Raises ConfigurationError."""
        if self.redis_url:
            read_address(self.redis_url)
        if recovery.by_reapers and self.reapers < 1:
            raise ConfigurationError("--recovery reaper needs reapers: --reapers 1 or more.")
        for option, given in (("--keep-keys", self.keep_keys), ("--redis-pid", self.redis_pid)):
            if given and not self.redis_url:
                raise ConfigurationError(f"{option} is about a Redis that is named: it needs --redis-url.")
        if self.policy == IN_PLACE and not recovery.by_reapers:
            raise ConfigurationError("--policy is said by reapers: it needs --recovery reaper.")
        if self.topology != "single" and (self.redis_url or recovery.cast is Cast.PUBLISHED):
            why = (
                "starts servers of its own: leave --redis-url away."
                if self.redis_url
                else ("is not for --recovery published, whose loops know one server.")
            )
            raise ConfigurationError(f"--topology {self.topology} {why}")
        if self.min_replicas_acked > REPLICAS_OF[self.topology]:
            have = "; ".join(f"--topology {name} has {most} a master" for name, most in REPLICAS_OF.items() if most)
            raise ConfigurationError(f"--min-replicas-acked {self.min_replicas_acked} needs so many replicas: {have}.")
        check_faults(self.faults_for(recovery), reapers=self.reapers, topology=Topology(self.topology))

    def command(self, recovery: Recovery) -> str:
        """Return the command that plays this again: the same jobs, and the same faults at the same moments."""
        words = ["reaper", "drill", "--recovery", recovery.name]
        for name, field in DrillSettings.model_fields.items():
            value, flag = getattr(self, name), name.replace("_", "-")
            if name in _NOT_PLAYED or (value == field.default and name != "seed"):
                continue
            if isinstance(value, bool):
                words.append(f"--{'' if value else 'no-'}{flag}")
            else:
                words += [f"--{flag}", f"{value.total_seconds():g}" if isinstance(value, timedelta) else str(value)]
        return shlex.join(words)

    def as_json(self, recovery: Recovery) -> dict[str, Any]:
        """Return the settings for a report; durations are seconds."""
        published = recovery.cast is Cast.PUBLISHED
        return {
            "workers": self.workers,
            "bare_worker": self.has_bare_worker and not published,
            "reapers": self.reapers if recovery.by_reapers else 0,
            "policy": IN_PLACE if self.gives_back_in_place(recovery) else self.policy,
            "topology": self.topology,
            "min_replicas_acked": self.min_replicas_acked,
            "concurrency": self.loops if published else self.concurrency,
            "visibility_timeout": self.visibility_timeout.total_seconds(),
            "max_deliveries": self.max_deliveries,
            "lease_ttl": self.lease_ttl.total_seconds(),
            "scan_interval": self.scan.total_seconds(),
            "faults": [str(fault) for fault in self.faults],
            "chaos": self.chaos.total_seconds() if self.chaos else None,
            "seed": self.seed,
            "trace": self.trace_name,
            "speedup": self.speedup,
            "idle": self.idle.total_seconds(),
        }
