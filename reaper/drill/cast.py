"""The processes of an act, and their command lines."""

import os
import site
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from reaper import failpoints
from reaper.drill.records import Role
from reaper.drill.settings import IN_PLACE
from reaper.drill.stage import Stage
from reaper.drill.supervisor import Command, Slot
from workers.protocol.messages import CLAIM_READY_MS, RecoveryMode

BARE_WORKER = Path(__file__).with_name("bare_worker.py")
"""A program that is started as a file and never imported."""


def slots(stage: Stage) -> list[Slot]:
    """Return the slots of the workers (the last one may be bare) and of the reapers."""
    workers = [Slot(f"w{n + 1}", Role.WORKER, partial(_worker, stage)) for n in range(stage.settings.workers)]
    if stage.settings.has_bare_worker:
        workers[-1] = Slot(workers[-1].name, Role.BARE_WORKER, partial(_bare, stage))
    reapers = range(1, stage.settings.reapers + 1) if stage.recovery.by_reapers else ()
    return workers + [Slot(f"r{n}", Role.REAPER, partial(_reaper, stage)) for n in reapers]


def _worker(stage: Stage, name: str) -> Command:
    settings = stage.settings
    flags: dict[str, object] = {
        "stream": stage.keys.stream,
        "group": stage.keys.group,
        "name": name,  # new for each process, so that no process adopts the jobs of the one before it
        "concurrency": settings.concurrency,
        "visibility-timeout": settings.visibility_timeout.total_seconds(),
        "max-deliveries": settings.max_deliveries,
    }
    if stage.recovery.mode is RecoveryMode.EMBEDDED:
        flags |= {"recovery": stage.recovery.mode, "redelivery": settings.policy}
    argv = [sys.executable, "-m", "workers", "run", "reaper.drill.program:worker", *_as_words(flags)]
    own = {"REAPER_REDIS_URL": stage.server.url, "DRILL_LEDGER": str(stage.ledger_of(name))}
    return argv, {**_environment(), **own}


def _bare(stage: Stage, name: str) -> Command:
    argv = [sys.executable, str(BARE_WORKER), stage.keys.stream, stage.keys.group, name]
    claims = {"CLAIM_MS": str(CLAIM_READY_MS)} if stage.settings.policy == IN_PLACE else {}
    return argv, {**_environment(), "REDIS_URL": stage.server.url, **claims}


def _reaper(stage: Stage, name: str) -> Command:
    settings = stage.settings
    flags: dict[str, object] = {
        "name": name,
        "namespace": stage.namespace.namespace,
        "config": str(stage.reaper_settings),
        "groups": stage.keys.name,
        "max-deliveries": settings.max_deliveries,
        "lease-ttl": settings.lease_ttl.total_seconds(),
        "redelivery": settings.policy,
    }
    argv = [sys.executable, "-m", "reaper", "run", *_as_words(flags)]
    own = {"REAPER_REDIS_URL": stage.server.url, failpoints.ENVIRONMENT_VARIABLE: str(stage.failpoints)}
    return argv, {**_environment(), **own}


def _as_words(flags: Mapping[str, object]) -> list[str]:
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def _environment() -> dict[str, str]:
    """Return our environment without settings for reapers and workers, because the drill chooses them all.

    The processes run in a folder of the drill, where no other package shadows stream-reaper. They find it where it is
    installed, or in a checkout.
    """
    others = ("REAPER_", "REDIS_URL", "OTEL_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    home = str(Path(failpoints.__file__).resolve().parents[1])
    if home not in (*site.getsitepackages(), site.getusersitepackages()):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [home, environment.get("PYTHONPATH")]))
    return environment
