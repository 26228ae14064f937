"""Draws the faults of a chaos. The same seed gives the same faults at the same moments. Pure.

Kinds come from a shuffled deck, so that none is forgotten, at random moments, with random amounts, targets and lengths.
They overlap freely, except for `APART`. Faults that would together cost an innocent job its payload, or its last
delivery, as documented, are never drawn together. A chaos is there to find undocumented effects.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from reaper.drill.faults import LONG_JOBS, Fault, FaultKind
from reaper.drill.recoveries import Recovery
from tests.soak.kinds import AGAINST_REAPERS, AGAINST_REDIS, SoakKind
from workers.loop.membership import REFRESH_S

GAP_S = 1.0
"""Mean seconds from one fault to the next."""
RESTART_S = 1.0
"""Until a process that was killed works again."""
HELD_AGAIN_S = 4.0
"""Until live workers hold again what a destroyed group held."""
_STEP_S = 0.25
"""How much later the next attempt is, where nothing of the deck may come now."""

BLOWS = frozenset({FaultKind.KILL_WORKER, FaultKind.PAUSE_WORKER, FaultKind.PAUSE_HOLDER})
"""Kinds that take deliveries from workers (`pause-holder` kills one, so that there is something to recover)."""
ENDS_BARE_LOOPS = frozenset({
    SoakKind.RESTART_REDIS, SoakKind.FILL_REDIS, SoakKind.CUT_CONNECTIONS, SoakKind.FAIL_OVER, SoakKind.SHUT_DOWN,
})  # fmt: skip
NOT_WITHOUT_US = ENDS_BARE_LOOPS | {SoakKind.SHORTEN_VISIBILITY, SoakKind.DESTROY_GROUP, SoakKind.DELETE_CONSUMER}
"""What only our workers survive: a bare loop ends with its connection, makes no group again, extends nothing, and
gives no word."""
DELAYS = AGAINST_REAPERS | AGAINST_REDIS | {SoakKind.CLOCK_STEP, SoakKind.DESTROY_GROUP}
"""Kinds that put off the recovery of what others have stalled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The parameters of a chaos. Durations are seconds."""

    recovery: Recovery
    workers: int
    reapers: int
    visibility_s: float
    lease_ttl_s: float
    longest_job_s: float
    max_deliveries: int
    bare_worker: bool
    """One may take part: then every other chaos has one, and none of `NOT_WITHOUT_US`."""
    out_of_reach: frozenset[str] = frozenset()
    """Kinds that cannot be played on this machine or server. They are drawn, and left out: the others stay."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Faults of ``these`` and of ``those`` wait until the jobs stalled by the other have ended."""

    these: frozenset[str]
    those: frozenset[str]
    why: str


def _apart(these: Iterable[str], those: Iterable[str], why: str) -> Apart:
    return Apart(frozenset(these), frozenset(those), why)


APART = (
    _apart(
        [FaultKind.POISON],
        [*BLOWS, FaultKind.POISON],
        "A job that a killed worker held and that then runs beside fresh poison has had its last delivery, and is a "
        "dead letter as promised (decision 6).",
    ),
    _apart(
        [SoakKind.DESTROY_GROUP],
        [*BLOWS, FaultKind.POISON],
        "What a dead worker held when the group was destroyed is known to a holder only, and in embedded mode to "
        "nobody: it is lost as documented (decision 12).",
    ),
    _apart(
        [SoakKind.DESTROY_GROUP],
        [*DELAYS],
        "A live worker that is stopped, or cut off, for two thirds of a visibility timeout does not hold again what it "
        "runs (decision 12).",
    ),
    _apart(
        [SoakKind.DELETE_CONSUMER],
        [*BLOWS, FaultKind.POISON],
        "A live worker holds again what it runs with its next beat, or some beats later: one that dies before then, or "
        "is stopped for longer, has lost it (decision 12).",
    ),
    _apart(
        [SoakKind.DELETE_CONSUMER],
        [*DELAYS, SoakKind.SHORTEN_VISIBILITY],
        "A delivery without a heartbeat for two thirds of a visibility timeout is not held again (decision 12).",
    ),
    _apart(
        [FaultKind.PAUSE_HOLDER],
        [*DELAYS],
        "No data is lost by it, but a holder that is to meet the lease of another must live, and another must take it.",
    ),
    _apart(
        [SoakKind.SHORTEN_VISIBILITY],
        [*AGAINST_REAPERS, *AGAINST_REDIS, SoakKind.DESTROY_GROUP],
        "The new value is written by a holder that is told of it: there must be one.",
    ),
    _apart(
        [SoakKind.SHORTEN_VISIBILITY],
        [FaultKind.PAUSE_WORKER],
        "What a worker loses because it is stopped could not be told from what the shorter timeout takes from it.",
    ),
    _apart(AGAINST_REDIS, AGAINST_REDIS, "The end of the first would end the second."),
    _apart([FaultKind.KILL_REAPERS], [FaultKind.KILL_REAPERS], "The end of the first would end the second."),
)
"""What is never drawn together, and why. `most_blows` is one more such rule."""


def most_blows(conditions: Conditions) -> int:
    """Return how many kills may hit the same job before it has run again. One more would be its last delivery."""
    return max(1, conditions.max_deliveries - 1)


# ---- the catalogue


@dataclass(frozen=True, slots=True)
class Draft:
    """The way to draw a fault of one kind, with its amount and its length."""

    amount: Callable[[random.Random, Conditions], str] = lambda _dice, _conditions: "1"
    lasts: tuple[float, float] | None = None
    """Shortest and longest, in visibility timeouts; None where the kind lasts no time."""


def _some_workers(dice: random.Random, conditions: Conditions) -> str:
    """Return names of workers, a share of them, or the one with the most jobs."""
    chosen = sorted(dice.sample(range(1, conditions.workers + 1), dice.randint(1, conditions.workers)))
    return dice.choice(["1", "1", "half", "all", *[",".join(f"w{n}" for n in chosen)] * 2])


CATALOGUE: Mapping[str, Draft] = {
    FaultKind.KILL_WORKER: Draft(_some_workers),
    FaultKind.PAUSE_WORKER: Draft(lasts=(0.5, 2.5)),
    FaultKind.KILL_HOLDER: Draft(),
    FaultKind.PAUSE_HOLDER: Draft(),
    FaultKind.KILL_REAPERS: Draft(lasts=(0.2, 2.0)),
    FaultKind.PAUSE_REDIS: Draft(lasts=(0.2, 2.0)),
    SoakKind.RESTART_REDIS: Draft(lasts=(0.1, 1.0)),
    SoakKind.PAUSE_CLIENTS: Draft(lambda dice, _conditions: dice.choice(["writes", "all"]), lasts=(0.2, 2.0)),
    SoakKind.FAIL_OVER: Draft(lasts=(0.2, 0.5)),
    SoakKind.SHUT_DOWN: Draft(lasts=(0.2, 0.5)),
    SoakKind.FILL_REDIS: Draft(lasts=(0.2, 2.0)),
    SoakKind.CUT_CONNECTIONS: Draft(),
    SoakKind.SHORTEN_VISIBILITY: Draft(),
    SoakKind.DESTROY_GROUP: Draft(),
    SoakKind.DELETE_CONSUMER: Draft(lambda _dice, _conditions: "live"),  # a word outlasts most chaos
    SoakKind.CLOCK_STEP: Draft(lambda dice, _conditions: dice.choice(["back", "ahead"])),
    FaultKind.POISON: Draft(),
    LONG_JOBS: Draft(lambda dice, _conditions: str(dice.randint(5, 30)), lasts=(0.4, 2.0)),
}
"""Every kind, and how it is drawn."""


def kinds_for(recovery: Recovery, *, reapers: int) -> list[str]:
    """Return the kinds that can be played there, in the order of the catalogue."""
    missing = set[str]()
    if not recovery.by_reapers:
        missing |= AGAINST_REAPERS
    elif reapers < 2:
        missing.add(FaultKind.PAUSE_HOLDER)
    if not recovery.promises:  # no worker of theirs survives it, or there are no group settings
        missing |= NOT_WITHOUT_US
    return [kind for kind in CATALOGUE if kind not in missing]


# ---- the draw


def draw(seed: int, duration_s: float, conditions: Conditions) -> tuple[Fault, ...]:
    """Return the faults of the chaos of this seed, in order of time, none later than ``duration_s``."""
    dice = random.Random(f"chaos/{seed}")
    kinds = set(kinds_for(conditions.recovery, reapers=conditions.reapers))
    bare = conditions.bare_worker and dice.random() < 0.5
    schedule = Schedule(conditions)
    if bare:
        kinds -= NOT_WITHOUT_US
    if SoakKind.SHORTEN_VISIBILITY in kinds:  # once is all it can be
        kinds.remove(SoakKind.SHORTEN_VISIBILITY)
        if dice.random() < 0.5:
            schedule.add(_fault(SoakKind.SHORTEN_VISIBILITY, dice.uniform(0.6, 0.9) * duration_s, dice, conditions))
    at, deck, fillers = dice.uniform(0.5, 2.0), _shuffled(kinds, dice), set(kinds)
    while at <= duration_s:
        # The fault on top of the deck may need a quiet moment. Until then only faults come that do not disturb it, or
        # put it off.
        top, *others = deck
        beside = others + _shuffled(fillers.difference(deck), dice)
        waits = bool(schedule.objection(_fault(top, at, dice, conditions)))
        come = [kind for kind in beside if not rule_between(kind, top) and not (waits and kind in DELAYS)]
        come = come if waits else [top, *come]
        candidates = (_fault(kind, at, dice, conditions, below_timeout=bare) for kind in come)
        fault = next((one for one in candidates if not schedule.objection(one)), None)
        if fault is None:
            at += _STEP_S
            continue
        schedule.add(fault)
        if fault.kind in deck:
            deck.remove(fault.kind)
        else:
            fillers.remove(fault.kind)
        if not deck:
            deck, fillers = _shuffled(kinds, dice), set(kinds)
        at += max(_STEP_S, dice.expovariate(1 / GAP_S))
    played = (fault for fault in schedule.faults if fault.kind not in conditions.out_of_reach)
    return tuple(sorted(played, key=lambda fault: fault.at))


def _shuffled(kinds: Iterable[str], dice: random.Random) -> list[str]:
    deck = sorted(kinds)
    dice.shuffle(deck)
    return deck


def _fault(kind: str, at: float, dice: random.Random, conditions: Conditions, *, below_timeout: bool = False) -> Fault:
    draft = CATALOGUE[kind]
    amount, lasts = draft.amount(dice, conditions), timedelta(0)
    if draft.lasts:
        shortest, longest = draft.lasts
        if below_timeout and kind == LONG_JOBS:
            longest = 0.7
        lasts = timedelta(seconds=round(dice.uniform(shortest, longest) * conditions.visibility_s, 1))
    return Fault(kind, timedelta(seconds=round(at, 1)), amount, lasts)


@dataclass(slots=True)
class _Span:
    fault: Fault
    end: float
    """Until when, in seconds from the first job, what it stalls has come to its end: by rights."""


@dataclass(slots=True)
class Schedule:
    """The faults that were drawn so far. Later ones are added later, but for a few that are known beforehand."""

    conditions: Conditions
    _spans: list[_Span] = field(default_factory=list)
    _open: list[_Span] = field(default_factory=list)
    """Those that were not over when the last one came."""

    @property
    def faults(self) -> list[Fault]:
        """In the order in which they were added."""
        return [span.fault for span in self._spans]

    def add(self, fault: Fault) -> None:
        """Add ``fault``. If it puts off recovery, it makes the current faults longer."""
        at = fault.at.total_seconds()
        span = _Span(fault, fault.over_at.total_seconds() + calm_s(fault.kind, self.conditions))
        self._open = [other for other in self._open if other.end >= at]
        if fault.kind in DELAYS:
            for other in self._open:
                if other.fault.at <= fault.at:
                    other.end += span.end - at
        self._spans.append(span)
        self._open.append(span)

    def objection(self, fault: Fault) -> str:
        """Say why ``fault`` must not be added. Empty if it may be."""
        at = fault.at.total_seconds()
        end = fault.over_at.total_seconds() + calm_s(fault.kind, self.conditions)
        beside = [span.fault for span in self._open if span.fault.at.total_seconds() <= end and at <= span.end]
        for other in beside:
            if rule := rule_between(fault.kind, other.kind):
                return rule.why
        if fault.kind == FaultKind.PAUSE_HOLDER and any(
            span.fault.kind == SoakKind.SHORTEN_VISIBILITY and span.fault.at < fault.at for span in self._spans
        ):
            return (
                "The drill knows no more when what a killed worker held is due: some workers go by the older timeout."
            )
        if fault.kind in BLOWS and sum(other.kind in BLOWS for other in beside) >= most_blows(self.conditions):
            return (
                "A job that dies with its worker so often has had its last delivery, and is a dead letter as promised."
            )
        return ""


def rule_between(one: str, other: str) -> Apart | None:
    """Return what keeps the two kinds apart, if anything does."""
    both = ((one, other), (other, one))
    return next((rule for rule in APART if any(a in rule.these and b in rule.those for a, b in both)), None)


def calm_s(kind: str, conditions: Conditions) -> float:
    """Return the seconds that a fault of this kind is felt after its end, without other faults."""
    rerun_s = conditions.visibility_s + RESTART_S + conditions.longest_job_s
    failover_s = conditions.lease_ttl_s + RESTART_S
    match kind:
        case FaultKind.KILL_WORKER | FaultKind.PAUSE_WORKER | SoakKind.DELETE_CONSUMER:
            return rerun_s
        case FaultKind.POISON:
            return conditions.max_deliveries * (conditions.visibility_s + RESTART_S)
        case FaultKind.PAUSE_HOLDER:
            return rerun_s + failover_s
        case FaultKind.KILL_HOLDER | FaultKind.KILL_REAPERS | SoakKind.CUT_CONNECTIONS:
            return failover_s
        case SoakKind.RESTART_REDIS | SoakKind.FAIL_OVER | SoakKind.SHUT_DOWN:
            return failover_s + conditions.visibility_s
        case FaultKind.PAUSE_REDIS | SoakKind.PAUSE_CLIENTS | SoakKind.FILL_REDIS | SoakKind.CLOCK_STEP:
            return conditions.visibility_s  # no grace is longer
        case SoakKind.SHORTEN_VISIBILITY:
            return REFRESH_S + conditions.visibility_s  # all workers have heard of it, and go by it
        case SoakKind.DESTROY_GROUP:
            return HELD_AGAIN_S + conditions.visibility_s
        case _:
            return 0.0


def patience_s(faults: Iterable[Fault], conditions: Conditions) -> float:
    """Return how much later than without these faults everything may come to its end, in seconds.

    This is as if each began only after the one before, and more, because jobs that lost their workers twice run alone.
    """
    return sum(fault.lasts_s + 2 * calm_s(fault.kind, conditions) for fault in faults)
