"""Accounts for every job of an act. Pure: rows in, ledger out.

What was executed is judged by what the executions wrote down, what became of each job by what is left in Redis at the
end; the journal says who settled what, and how long deliveries had been idle when they were recovered.
"""

import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from reaper.drill.evidence import Evidence, is_timed
from reaper.drill.executions import Cause, Duplicate, SecondStart, duplicates, second_starts
from reaper.drill.faults import AFTER_PAUSE_S, FaultKind
from reaper.drill.healthy import Healthy, healthy_jobs
from reaper.drill.records import Effect, InjectedFault, MissedFault, ProcessRun, Role, Step
from reaper.drill.spread import Spread, spread
from reaper.drill.terms import Holding, terms
from workers.protocol.events import EventName, LifecycleEvent
from workers.protocol.messages import counted
from workers.runtime.options import USAGE_EXIT

FENCED_VERBS = ("recover", "release_suspects", "move_due")
"""Verbs of ``refused`` events that mean: a write of an earlier term met the fence of a later one."""
_FAILING = Effect.CUTS | Effect.AWAY


class Fate(StrEnum):
    """What became of a job."""

    SETTLED = "settled"
    DEAD_LETTERED = "dead_lettered"
    READY = "ready"
    PENDING = "pending"
    PARKED = "parked"
    LOST = "lost"
    """It was never done, and there is nothing left of it to do."""


class LossCause(StrEnum):
    """How a job was lost."""

    DROPPED = "dropped"
    """Its worker gave it up: acknowledged, with a line in a log, and no dead letter."""
    FORGOTTEN = "forgotten"
    """A fault made Redis forget it, and nobody can promise more than to report that."""
    UNKNOWN = "unknown"
    """There is no trace of it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A job that was lost."""

    n: int
    job: str
    cause: LossCause
    starts: int
    """How many times it was started."""
    poison: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The accounts of one act."""

    enqueued: int
    fates: Mapping[Fate, int]
    poison: tuple[int, ...] = ()
    """Poison jobs that were put in."""
    dead: tuple[int, ...] = ()
    """Jobs that lie among the dead letters."""
    strays: tuple[int, ...] = ()
    """Found at the end and never enqueued, or found in two places."""
    altered: tuple[int, ...] = ()
    """Jobs whose payload arrived different from what was put in."""
    ended_twice: tuple[str, ...] = ()
    """Entries that were ended (settled, recovered, dead-lettered) more than once."""
    losses: tuple[Loss, ...] = ()
    second_starts: tuple[SecondStart, ...] = ()
    duplicates: tuple[Duplicate, ...] = ()
    recovered: int = 0
    recovery_s: Spread = field(default_factory=Spread)
    overshoot_s: Spread = field(default_factory=Spread)
    early_recoveries: int = 0
    stale_writes_refused: int = 0
    settlements_refused: int = 0
    healthy: Healthy = field(default_factory=Healthy)
    terms: tuple[Holding, ...] = ()
    faults: tuple[InjectedFault, ...] = ()
    missed: tuple[MissedFault, ...] = ()
    unexpected_ends: tuple[str, ...] = ()
    """Processes that ended without anybody's doing, or did not stop in order."""

    @property
    def settled(self) -> int:
        """Jobs that are done, with nothing of them left."""
        return self.fates[Fate.SETTLED]

    @property
    def dead_lettered(self) -> int:
        """Jobs that were given up, each kept as one dead letter."""
        return self.fates[Fate.DEAD_LETTERED]

    @property
    def lost(self) -> int:
        """Jobs that were never done, and that nobody can do any more: nothing is left of them."""
        return self.fates[Fate.LOST]

    @property
    def dropped(self) -> int:
        """Those of them that a worker gave up knowingly, with nothing but a line in a log."""
        return sum(loss.cause is LossCause.DROPPED for loss in self.losses)

    @property
    def forgotten(self) -> int:
        """Those of them that Redis forgot because of a fault."""
        return sum(loss.cause is LossCause.FORGOTTEN for loss in self.losses)

    @property
    def stuck(self) -> int:
        """Jobs that are still somewhere in Redis at the end."""
        return self.fates[Fate.READY] + self.fates[Fate.PENDING] + self.fates[Fate.PARKED]

    @property
    def balanced(self) -> bool:
        """Every job is settled, dead-lettered or forgotten by Redis because of a fault, and no other job is there."""
        return self.enqueued == self.settled + self.dead_lettered + self.forgotten and not self.strays


def build_ledger(evidence: Evidence) -> Ledger:
    """Account for every job."""
    fates = _fates(evidence)
    starts = second_starts(evidence)
    recovered = [
        event
        for event in evidence.named(EventName.RECOVERED, EventName.SUSPECTED)
        if event.data.get("reason") != "suspect"  # a parked suspect made ready: its recovery is told already
    ]
    timed = [event for event in recovered + evidence.named(EventName.DEAD_LETTERED) if is_timed(event)]
    idle_ms = [(event.data["idle_ms"], event.data["visibility_ms"]) for event in timed]
    claims = _claimed_after_s(evidence)
    refused = evidence.named(EventName.REFUSED)
    stale = sum(event.data.get("verb") in FENCED_VERBS for event in refused)
    counted = Counter(fates.values())
    return Ledger(
        enqueued=len(evidence.enqueued),
        fates={fate: counted[fate] for fate in Fate},
        poison=tuple(job.n for job in evidence.enqueued if job.poison),
        dead=tuple(_dead(evidence)),
        strays=_strays(evidence),
        altered=_altered(evidence),
        ended_twice=_ended_twice(evidence),
        losses=_losses(evidence, fates),
        second_starts=tuple(starts),
        duplicates=tuple(duplicates(evidence, starts)),
        recovered=len(recovered) + sum(line.step is Step.CLAIM for line in evidence.lines),
        recovery_s=spread(start.recovery_s for start in starts if start.recovery_s is not None),
        overshoot_s=spread(
            [(idle - visibility) / 1000 for idle, visibility in idle_ms]
            + [max(0.0, after_s - evidence.visibility_s) for after_s in claims]  # the server has seen to that
        ),
        early_recoveries=sum(map(evidence.is_early, timed)),
        stale_writes_refused=stale,
        settlements_refused=len(refused) - stale,
        healthy=healthy_jobs(evidence, starts),
        terms=tuple(terms(evidence)),
        faults=tuple(evidence.faults),
        missed=tuple(evidence.missed),
        unexpected_ends=_unexpected_ends(evidence),
    )


def objections(ledger: Ledger, faults: Sequence[str]) -> list[str]:
    """Say in sentences what is wrong with ``ledger``, given the ``faults`` that were asked for; nothing = all well."""
    forgotten = {loss.n for loss in ledger.losses if loss.cause is LossCause.FORGOTTEN}
    poison, dead = set(ledger.poison) - forgotten, set(ledger.dead)
    lost = ledger.lost - ledger.forgotten
    unexplained = [start.n for start in ledger.second_starts if start.cause is Cause.UNEXPLAINED]
    stale_missing = FaultKind.PAUSE_LEADER in faults and ledger.stale_writes_refused == 0
    found = {
        f"{counted(lost, 'job is', 'jobs are')} lost": lost,
        f"{counted(ledger.stuck, 'job is', 'jobs are')} stuck": ledger.stuck,
        f"jobs that nobody enqueued, or in two places: {_some(ledger.strays)}": ledger.strays,
        f"poison jobs that are no dead letters: {_some(poison - dead)}": poison - dead,
        f"dead letters that were no poison: {_some(dead - poison)}": dead - poison,
        f"more than one dead letter of a job: {_some(ledger.dead)}": len(dead) < len(ledger.dead),
        f"payloads that did not arrive as they were sent: {_some(ledger.altered)}": ledger.altered,
        f"entries that were ended twice: {_some(ledger.ended_twice)}": ledger.ended_twice,
        f"jobs started again for no reason: {_some(unexplained)}": unexplained,
        f"recovered before its time: {counted(ledger.early_recoveries, 'delivery')}": ledger.early_recoveries,
        "a leader was to be paused past its lease, and no stale write of it was refused": stale_missing,
        f"processes that ended by themselves: {_some(ledger.unexpected_ends)}": ledger.unexpected_ends,
    } | {f"{missed.kind} was left out: {missed.why}": True for missed in ledger.missed}
    return [sentence for sentence, wrong in found.items() if wrong]


def _some(things: Iterable[object], most: int = 5) -> str:
    words = [str(thing) for thing in sorted(things, key=str)]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


# ---- what became of each job


def _places(evidence: Evidence) -> list[tuple[int, Fate]]:
    """Return what is left in Redis: job and place."""
    remains = evidence.remains
    return [
        *((n, Fate.DEAD_LETTERED) for n in _dead(evidence)),
        *((n, Fate.PENDING) for n in remains.pending),
        *((n, Fate.READY) for n in remains.ready),
        *((n, Fate.PARKED) for n in _parked(evidence)),
    ]


def _dead(evidence: Evidence) -> list[int]:
    """Return the job of each dead letter; those of the lives of a group, which forgot the one before, are one."""
    times = Counter(letter.n for letter in evidence.remains.dead)
    return [n for n, count in times.items() for _ in range(-(-count // evidence.lives))]


_WHEREABOUTS = (
    EventName.SUSPECTED, EventName.RECOVERED, EventName.NACKED, EventName.HANDED_BACK, EventName.ACKED,
    EventName.DEAD_LETTERED,
)  # fmt: skip
"""Events that say where a job is from then on."""


def _parked(evidence: Evidence) -> list[int]:
    """Return the suspects that are parked still: the journal's last word on them says so.

    One on probation that is given back is parked again, whoever gives it back: that event has no new entry. It could be
    a delayed retry as well, whose end in the schedule nobody tells: one that is found elsewhere is there.
    """
    remains = evidence.remains
    if not remains.parked:
        return []
    last = {event.job: event for event in evidence.named(*_WHEREABOUTS)}
    known = [(evidence.numbers.get(job, 0), event) for job, event in last.items()]
    elsewhere = {*remains.ready, *remains.pending, *(letter.n for letter in remains.dead)}
    elsewhere |= {line.n for line in evidence.lines if line.step is Step.DONE}
    return [
        n
        for n, event in known
        if event.event == EventName.SUSPECTED
        or (event.event in (EventName.NACKED, EventName.HANDED_BACK) and "due_ms" in event.data and n not in elsewhere)
    ]


def _fates(evidence: Evidence) -> dict[int, Fate]:
    done = {line.n for line in evidence.lines if line.step is Step.DONE}
    done |= {evidence.numbers.get(event.job, 0) for event in evidence.named(EventName.ACKED)}
    fates = {job.n: Fate.SETTLED if job.n in done else Fate.LOST for job in evidence.enqueued}
    return fates | {n: place for n, place in _places(evidence) if n in fates}


def _strays(evidence: Evidence) -> tuple[int, ...]:
    """Return what should not be where it is: unknown jobs, jobs in two places, settled jobs that are somewhere."""
    places = Counter(n for n, _ in _places(evidence))
    acked = Counter(evidence.numbers.get(event.job, 0) for event in evidence.named(EventName.ACKED))
    times = {n: places[n] + -(-acked[n] // evidence.lives) for n in places | acked}
    return tuple(sorted(n for n, count in times.items() if count > 1 or n not in evidence.jobs))


def _altered(evidence: Evidence) -> tuple[int, ...]:
    starts = [line for line in evidence.lines if line.step is Step.START and line.n in evidence.jobs]
    return tuple(sorted({line.n for line in starts if line.digest != evidence.jobs[line.n].digest}))


def _ended_twice(evidence: Evidence) -> tuple[str, ...]:
    """Return entries with two ends in the journal: the mark of two leaders who both acted."""
    ends = evidence.named(
        EventName.ACKED, EventName.NACKED, EventName.RECOVERED, EventName.SUSPECTED, EventName.DEAD_LETTERED
    )
    times = Counter(
        str(event.data["entry"])
        for event in ends
        if "entry" in event.data
        # Neither ends an entry: the one is the release of a parked copy, the other a change of owner.
        if event.data.get("reason") != "suspect" and not _keeps_entry(event)
    )
    return tuple(sorted(entry for entry, count in times.items() if count > evidence.lives))


def _keeps_entry(event: LifecycleEvent) -> bool:
    """Tell whether the entry was left where it was: given back in place, or adopted or claimed by another owner."""
    new_entry = event.data.get("new_entry")
    return new_entry == event.data["entry"] or (event.event == EventName.RECOVERED and new_entry is None)


def _losses(evidence: Evidence, fates: Mapping[int, Fate]) -> tuple[Loss, ...]:
    dropped = {line.n for line in evidence.lines if line.step is Step.DROPPED}
    starts = evidence.lines_of(Step.START)
    known = {
        LossCause.DROPPED: dropped,
        LossCause.FORGOTTEN: evidence.forgotten,
    }
    return tuple(
        Loss(
            n=n,
            job=evidence.jobs[n].entry_id,
            cause=next((cause for cause, jobs in known.items() if n in jobs), LossCause.UNKNOWN),
            starts=len(starts.get(n, ())),
            poison=evidence.jobs[n].poison,
        )
        for n, fate in fates.items()
        if fate is Fate.LOST
    )


# ---- times


def _claimed_after_s(evidence: Evidence) -> list[float]:
    """Return how long after the delivery before it each published worker's claim came, in seconds.

    A claim that nothing is known to precede (its process died before it could write that down) is left out.
    """
    after_s: list[float] = []
    delivered_at: dict[str, float] = {}
    for line in evidence.deliveries:
        if line.step is Step.CLAIM and line.entry_id in delivered_at:
            after_s.append(line.at - delivered_at[line.entry_id])
        delivered_at[line.entry_id] = line.at
    return after_s


# ---- processes


def _unexpected_ends(evidence: Evidence) -> tuple[str, ...]:
    return tuple(
        f"{run.name} (exit code {run.exit_code}{', after it was told to stop' if run.stopped else ''})"
        for run in evidence.processes
        if run.ended_at is not None and run.killed_at is None and run.name not in evidence.poisoned
        if not (run.stopped and run.exit_code in (0, -signal.SIGTERM))
        if not _gave_up_on_redis(run, evidence) and not _could_not_start(run, evidence)
    )


def _gave_up_on_redis(run: ProcessRun, evidence: Evidence) -> bool:
    """Tell whether a plain loop ended because Redis failed: it has nothing in it to survive that."""
    if run.role not in (Role.BARE_WORKER, Role.PUBLISHED_WORKER) or not run.ended_at or (run.exit_code or 0) <= 0:
        return False
    return evidence.redis_was(_FAILING, run.ended_at - AFTER_PAUSE_S, run.ended_at)


def _could_not_start(run: ProcessRun, evidence: Evidence) -> bool:
    """Tell whether a process of ours was started while Redis failed: it ends, as documented."""
    if run.role not in (Role.WORKER, Role.REAPER) or not run.ended_at or run.exit_code != USAGE_EXIT:
        return False
    did_anything = any(line.pid == run.pid and run.lived_at(line.at) for line in evidence.lines)
    return not did_anything and evidence.redis_was(_FAILING, run.started_at, run.ended_at)
