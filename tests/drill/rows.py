"""Handmade rows of evidence: job n is enqueued at second n, as entry ``<n>000-0``."""

import hashlib
from collections.abc import Sequence
from typing import Any

from reaper.drill.evidence import Evidence
from reaper.drill.records import Effect, Enqueued, InjectedFault, Line, ProcessRun, Role, Step
from workers.protocol.events import LifecycleEvent

VISIBILITY_S = 2.0
VISIBILITY_MS = 2_000
PAYLOAD = b"payload"
DIGEST = hashlib.sha256(PAYLOAD).hexdigest()


def job(n: int, *, poison: bool = False) -> Enqueued:
    mark = [(b"poison", b"1")] if poison else []
    return Enqueued(n, entry(n), float(n), [(b"payload", PAYLOAD), *mark])


def entry(n: int, copy: int = 0) -> str:
    """The entry ID of job n, or of one of its copies."""
    return f"{n}000-{copy}"


def start(n: int, pid: int, at: float, *, copy: int = 0, digest: str = DIGEST) -> Line:
    return Line(Step.START, n, entry(n, copy), pid, at, digest)


def done(n: int, pid: int, at: float, *, copy: int = 0) -> Line:
    return Line(Step.DONE, n, entry(n, copy), pid, at)


def redis_pause(at: float, until: float | None) -> InjectedFault:
    return InjectedFault("pause-redis", "process 1", at, until=until, effect=Effect.AWAY)


def event(name: str, n: int = 0, at: float = 0.0, **data: Any) -> LifecycleEvent:
    return LifecycleEvent(f"{at}", round(at * 1000), name, entry(n) if n else "", data)


def recovered(
    n: int, at: float, *, copy: int = 0, idle_ms: int = VISIBILITY_MS, name: str = "recovered"
) -> LifecycleEvent:
    return event(
        name, n, at, entry=entry(n, copy), new_entry=entry(n, copy + 1), idle_ms=idle_ms, visibility_ms=VISIBILITY_MS,
        mode="reaper", reason="visibility_timeout",
    )  # fmt: skip


def acked(n: int, at: float, *, copy: int = 0) -> LifecycleEvent:
    return event("acked", n, at, entry=entry(n, copy))


def process(pid: int, *, ended_at: float | None = None, killed: bool = False, code: int = -9) -> ProcessRun:
    """A worker called ``w<pid>-1``, started at 0."""
    return ProcessRun(
        f"w{pid}-1",
        Role.WORKER,
        pid,
        started_at=0.0,
        ended_at=ended_at,
        exit_code=None if ended_at is None else code,
        killed_at=ended_at if killed else None,
    )


def stopped(pid: int, code: int = 0) -> ProcessRun:
    """One that was told to stop at the end."""
    run = process(pid, ended_at=1e9, code=code)
    run.stopped = True
    return run


def evidence(jobs: Sequence[Enqueued], **rows: Any) -> Evidence:
    return Evidence(enqueued=jobs, visibility_s=VISIBILITY_S, **rows)
