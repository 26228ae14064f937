"""Accounts for every job of an act. Pure.

Handlers write a line for each execution. Redis has the place of each job at the end. The journal has its settlement.
`promises` judges. This module adds figures, causes, and the processes, payloads and faults of the drill.
"""

import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from reaper.drill.evidence import Evidence
from reaper.drill.executions import Cause, Duplicate, SecondStart, duplicates, second_starts
from reaper.drill.faults import AFTER_PAUSE_S, FaultKind
from reaper.drill.figures import Healthy, Spread, healthy_jobs, spread
from reaper.drill.promises import Fate, check_now, early_ms, fates, is_timed, places
from reaper.drill.records import Effect, InjectedFault, MissedFault, ProcessRun, Role, Step
from workers.protocol.events import EventName
from workers.protocol.messages import counted
from workers.runtime.options import UNREACHABLE_EXIT

MOST_SENTENCES = 5
"""Of one promise."""
_FAILING = Effect.CUTS | Effect.AWAY


@dataclass(frozen=True, slots=True)
class Loss:
    """A job that was lost, and how often it was started."""

    n: int
    job: str
    starts: int
    poison: bool
    forgotten: bool = False
    """A fault made Redis forget it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The accounts of one act."""

    enqueued: int
    fates: Mapping[Fate, int]
    poison: int = 0
    """Poison jobs that were enqueued."""
    violations: tuple[str, ...] = ()
    """Broken promises, in sentences."""
    altered: tuple[int, ...] = ()
    """Numbers of the jobs whose payload was altered on its way."""
    losses: tuple[Loss, ...] = ()
    second_starts: tuple[SecondStart, ...] = ()
    duplicates: tuple[Duplicate, ...] = ()
    recovered: int = 0
    recovery_s: Spread = field(default_factory=Spread)
    overshoot_s: Spread = field(default_factory=Spread)
    early_recoveries: int = 0
    writes_fenced: int = 0
    settlements_rejected: int = 0
    healthy: Healthy = field(default_factory=Healthy)
    faults: tuple[InjectedFault, ...] = ()
    missed: tuple[MissedFault, ...] = ()
    unexpected_ends: tuple[str, ...] = ()
    """Processes that ended by themselves, or that did not stop in order."""

    @property
    def stuck(self) -> int:
        """Jobs that are still somewhere in Redis at the end."""
        return self.fates[Fate.READY] + self.fates[Fate.PENDING] + self.fates[Fate.SCHEDULED]

    @property
    def forgotten(self) -> int:
        """Jobs that were lost because Redis forgot them."""
        return sum(loss.forgotten for loss in self.losses)

    @property
    def balanced(self) -> bool:
        """Every job is settled, dead-lettered or forgotten by Redis because of a fault, and no promise is broken."""
        known = self.fates[Fate.SETTLED] + self.fates[Fate.DEAD_LETTERED] + self.forgotten
        return self.enqueued == known and not self.violations


def build_ledger(evidence: Evidence) -> Ledger:
    """Account for every job."""
    history, found = evidence.history, fates(evidence.history)
    starts, losses = second_starts(evidence), _losses(evidence, found)
    # When a quarantined job is released, its recovery is counted already.
    events = [event for event in evidence.events if event.data.get("reason") != "released"]
    timed = [event for event in events if is_timed(event)]
    late_ms = [event.data["idle_ms"] - event.data.get("visibility_ms", history.visibility_ms) for event in timed]
    known = {loss.job for loss in losses if loss.forgotten}
    count = Counter(found.values())
    return Ledger(
        enqueued=len(evidence.enqueued),
        fates={fate: count[fate] for fate in Fate},
        poison=sum(job.poison for job in evidence.enqueued),
        violations=tuple(_violations(evidence, known)),
        altered=_altered(evidence),
        losses=losses,
        second_starts=tuple(starts),
        duplicates=tuple(duplicates(evidence, starts)),
        recovered=sum(event.event in (EventName.RECOVERED, EventName.QUARANTINED) for event in events),
        recovery_s=spread(start.recovery_s for start in starts if start.recovery_s is not None),
        overshoot_s=spread(late / 1000 for late in late_ms),
        early_recoveries=sum(early_ms(history, event) > 0 for event in timed),
        writes_fenced=len(evidence.named(EventName.FENCED)),
        settlements_rejected=len(evidence.named(EventName.REJECTED)),
        healthy=healthy_jobs(evidence, starts),
        faults=tuple(evidence.faults),
        missed=tuple(evidence.missed),
        unexpected_ends=_unexpected_ends(evidence),
    )


def objections(ledger: Ledger, faults: Iterable[str]) -> list[str]:
    """Return a sentence for each thing that is wrong. ``faults`` are the chosen kinds."""
    unexplained = [start.n for start in ledger.second_starts if start.cause is Cause.UNEXPLAINED]
    fence_missing = FaultKind.PAUSE_HOLDER in faults and ledger.writes_fenced == 0
    found = {
        f"{counted(ledger.stuck, 'job is', 'jobs are')} stuck": ledger.stuck,
        f"payloads that did not arrive as they were sent: {_some(ledger.altered)}": ledger.altered,
        f"jobs started again for no reason: {_some(unexplained)}": unexplained,
        "a holder was to be paused past its lease, and no write of it was fenced": fence_missing,
        f"processes that ended by themselves: {_some(ledger.unexpected_ends)}": ledger.unexpected_ends,
    } | {f"{missed.kind} was left out: {missed.why}": True for missed in ledger.missed}
    return [*ledger.violations, *(sentence for sentence, wrong in found.items() if wrong)]


def _some(things: Sequence[object]) -> str:
    words = sorted(map(str, things))
    more = len(words) - MOST_SENTENCES
    return ", ".join(words[:MOST_SENTENCES]) + (f" and {more} more" if more > 0 else "")


def _violations(evidence: Evidence, forgotten: set[str]) -> Iterable[str]:
    """Return the first sentences of each broken promise. ``forgotten`` jobs are no losses."""
    history = evidence.history
    ours = {job: fields for job, fields in history.enqueued.items() if job not in forgotten}
    found, there = check_now(replace(history, enqueued=ours)), places(history.state)
    dead = {letter.job for letter in history.state.dead}
    found += [f"I1: job {job} is in Redis and was not enqueued" for job in sorted(set(there) - set(ours) - dead)]
    if set(there) <= dead:
        found += [f"I5: poison job {job} is no dead letter" for job in sorted((history.poison or set()) - dead)]
    for promise, group in groupby(sorted(found), key=lambda sentence: sentence.partition(":")[0]):
        sentences = list(group)
        yield from sentences[:MOST_SENTENCES]
        if len(sentences) > MOST_SENTENCES:
            yield f"{promise}: {len(sentences) - MOST_SENTENCES} more"


def _altered(evidence: Evidence) -> tuple[int, ...]:
    sent = {job.n: job.digest for job in evidence.enqueued}
    starts = [line for line in evidence.lines if line.step is Step.START and line.n in sent]
    return tuple(sorted({line.n for line in starts if line.digest != sent[line.n]}))


def _losses(evidence: Evidence, found: Mapping[str, Fate]) -> tuple[Loss, ...]:
    starts, lost = evidence.lines_of(Step.START), (job for job in evidence.enqueued if found[job.entry_id] is Fate.LOST)
    return tuple(
        Loss(job.n, job.entry_id, len(starts.get(job.n, ())), job.poison, job.n in evidence.forgotten) for job in lost
    )


def _unexpected_ends(evidence: Evidence) -> tuple[str, ...]:
    return tuple(
        f"{run.name} (exit code {run.exit_code}{', after a request to stop' if run.stopped else ''})"
        for run in evidence.processes
        if run.ended_at is not None and run.killed_at is None and run.name not in evidence.poisoned
        if not (run.stopped and run.exit_code in (0, -signal.SIGTERM))
        if not _may_end_without_redis(run, evidence)
    )


def _may_end_without_redis(run: ProcessRun, evidence: Evidence) -> bool:
    """Tell whether a bare loop ended because Redis failed, or another process gave up because it was started then."""
    if run.ended_at is None or (run.exit_code or 0) <= 0:
        return False
    if run.role is Role.BARE_WORKER:
        return evidence.redis_was(_FAILING, run.ended_at - AFTER_PAUSE_S, run.ended_at)
    did_anything = any(line.pid == run.pid and run.lived_at(line.at) for line in evidence.lines)
    failed = evidence.redis_was(_FAILING, run.started_at, run.ended_at)
    return run.exit_code == UNREACHABLE_EXIT and failed and not did_anything
