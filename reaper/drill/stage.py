"""What an act is played on: the settings, the keys, the client, and how each process is started."""

import os
import secrets
import site
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from reaper import failpoints
from reaper.drill import bare_worker_path
from reaper.drill.faults import DEFAULT_FAULTS, Fault, check_faults, without_leaders
from reaper.drill.records import Role
from reaper.drill.redis_server import Server
from reaper.drill.supervisor import Command, Slot
from reaper.drill.trace import PlannedJob
from workers.protocol.errors import ConfigurationError
from workers.protocol.keys import GroupKeys, NamespaceKeys, group_keys, namespace_keys
from workers.protocol.settings import did_you_mean

GROUP = "workers"


@dataclass(frozen=True, slots=True)
class Recovery:
    """One way to get stalled jobs back; the same faults are played on each."""

    name: str
    title: str
    by_reapers: bool


RECOVERIES = {
    recovery.name: recovery
    for recovery in (
        Recovery("none", "without recovery", by_reapers=False),
        Recovery("reaper", "with the reaper", by_reapers=True),
    )
}


def find_recovery(name: str) -> Recovery:
    """Return the recovery of that name. Raises ConfigurationError."""
    if name not in RECOVERIES:
        raise ConfigurationError(f"unknown recovery {name!r}{did_you_mean(name, RECOVERIES)}")
    return RECOVERIES[name]


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

    def for_jobs(self, jobs: Sequence[PlannedJob]) -> "DrillSettings":
        """Return the settings for these jobs: a bare loop extends nothing, so it gets none that would be recovered.

        One that reaches the visibility timeout would be started again and again there, and end as a dead letter.
        """
        longest = max((job.duration for job in jobs), default=timedelta(0))
        return replace(self, bare_worker=self.bare_worker and longest < self.visibility_timeout)

    def faults_for(self, recovery: Recovery) -> tuple[Fault, ...]:
        """Return the faults that can be played: without reapers nobody leads, and only the workers can be hit."""
        return self.faults if recovery.by_reapers else tuple(without_leaders(self.faults))

    def check(self, recovery: Recovery) -> None:
        """Refuse what cannot be played. Raises ConfigurationError."""
        if self.workers < 1:
            raise ConfigurationError("a drill needs workers: --workers 1 or more.")
        if recovery.by_reapers and self.reapers < 1:
            raise ConfigurationError("--recovery reaper needs reapers: --reapers 1 or more.")
        check_faults(self.faults_for(recovery), reapers=self.reapers)

    def as_json(self) -> dict[str, Any]:
        """Return the settings for a report; durations are seconds."""
        return {
            "workers": self.workers,
            "bare_worker": self.bare_worker and self.workers > 1,
            "reapers": self.reapers,
            "concurrency": self.concurrency,
            "visibility_timeout": self.visibility_timeout.total_seconds(),
            "max_deliveries": self.max_deliveries,
            "lease_ttl": self.lease_ttl.total_seconds(),
            "scan_interval": self.scan_interval.total_seconds(),
            "faults": [str(fault) for fault in self.faults],
            "seed": self.seed,
            "trace": self.trace,
            "speedup": self.speedup,
        }


@dataclass(frozen=True, slots=True)
class Stage:
    """One act's own stream, group, namespace and folder. Nothing else in this Redis is touched."""

    client: Redis
    server: Server
    settings: DrillSettings
    recovery: Recovery
    folder: Path
    keys: GroupKeys
    namespace: NamespaceKeys

    @property
    def failpoints(self) -> Path:
        """The folder in which failpoints of the reapers are armed."""
        return self.folder / "failpoints"

    def ledger_of(self, name: str) -> Path:
        """The file in which process ``name`` writes its jobs' lines."""
        return self.folder / f"{name}.out"

    def slots(self) -> list[Slot]:
        """Return who plays: workers (the last one bare), and the reapers where this recovery has them."""
        count = self.settings.workers
        bare = count if count > 1 and self.settings.bare_worker else 0
        slots = [self._bare(n) if n == bare else self._worker(n) for n in range(1, count + 1)]
        if self.recovery.by_reapers:
            slots += [self._reaper(n) for n in range(1, self.settings.reapers + 1)]
        return slots

    def _worker(self, n: int) -> Slot:
        settings = self.settings

        def command(name: str) -> Command:
            flags: dict[str, str | float] = {
                "stream": self.keys.stream,
                "group": self.keys.group,
                # A name of its own per process: nothing is adopted at a restart, the reaper does the work.
                "name": name,
                "concurrency": settings.concurrency,
                "visibility-timeout": settings.visibility_timeout.total_seconds(),
                "max-deliveries": settings.max_deliveries,
            }
            argv = [sys.executable, "-m", "workers", "run", "reaper.drill.program:worker", *_as_words(flags)]
            ledger = str(self.ledger_of(name))
            return Command(argv, {**_environment(), "WORKER_REDIS_URL": self.server.url, "DRILL_LEDGER": ledger})

        return Slot(f"w{n}", Role.WORKER, command)

    def _bare(self, n: int) -> Slot:
        def command(name: str) -> Command:
            argv = [sys.executable, str(bare_worker_path()), self.keys.stream, self.keys.group, name]
            return Command(argv, {**_environment(), "REDIS_URL": self.server.url})

        return Slot(f"w{n}", Role.BARE_WORKER, command)

    def _reaper(self, n: int) -> Slot:
        settings = self.settings

        def command(name: str) -> Command:
            flags: dict[str, str | float] = {
                "name": name,
                "namespace": self.namespace.namespace,
                "groups": self.keys.pair,
                "visibility-timeout": settings.visibility_timeout.total_seconds(),
                "max-deliveries": settings.max_deliveries,
                "lease-ttl": settings.lease_ttl.total_seconds(),
                "scan-interval": settings.scan_interval.total_seconds(),
            }
            argv = [sys.executable, "-m", "reaper", "run", *_as_words(flags)]
            return Command(
                argv,
                {
                    **_environment(),
                    "REAPER_REDIS_URL": self.server.url,
                    failpoints.ENVIRONMENT_VARIABLE: str(self.failpoints),
                },
            )

        return Slot(f"r{n}", Role.REAPER, command)


def set_stage(
    client: Redis, server: Server, settings: DrillSettings, recovery: Recovery, folder: Path, run_id: str
) -> Stage:
    """Choose the names of one act, which nobody else uses, and make its folder."""
    name = f"drill-{run_id}-{recovery.name}"
    stage = Stage(
        client,
        server,
        settings,
        recovery,
        folder / recovery.name,
        group_keys(name, GROUP),
        namespace_keys(f"{name}-reapers"),
    )
    stage.failpoints.mkdir(parents=True)
    return stage


def new_run_id() -> str:
    """Return a short name for one run of the drill."""
    return secrets.token_hex(4)


def _as_words(flags: Mapping[str, str | float]) -> list[str]:
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def _environment() -> dict[str, str]:
    """Return our environment without anybody's settings for reapers and workers: the drill chooses them all.

    The processes run in a folder of the drill, where no package of the same name shadows ours, and find ours where it
    is: installed, or in a checkout.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("REAPER_", "WORKER_"))}
    home = str(Path(failpoints.__file__).resolve().parents[1])
    if home not in (*site.getsitepackages(), site.getusersitepackages()):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [home, environment.get("PYTHONPATH")]))
    return environment
