"""The one judge of the promises (`docs/internals/architecture.md`). It returns the violations in a history. Pure.

The drill, the tests, the benchmarks and the simulation judge by it. I6 is about an end, so they wait for it themselves.
`reaper.drill.history` reads a history from Redis.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from workers.protocol.events import EventName, LifecycleEvent
from workers.protocol.messages import entry_ms

Pairs = Sequence[tuple[bytes, bytes]]
Generation = tuple[str, int]
"""A job and the number of its redrives. A generation runs at most `max_deliveries` times and ends once."""

_RECOVERIES = {EventName.RECOVERED, EventName.QUARANTINED, EventName.DEAD_LETTERED}
_ENDS = _RECOVERIES | {EventName.ACKED, EventName.NACKED}
_SETTLEMENTS = {EventName.ACKED, EventName.NACKED, EventName.HANDED_BACK}
_UNCOUNTED = frozenset({"not_released", "never_arrived"})
"""Reasons of a quarantine after a delivery that convicts no job, so it does not count."""


@dataclass(frozen=True, slots=True)
class Execution:
    """A note of a handler that it has started or completed a job."""

    job: str
    generation: int = 0


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A dead letter. ``payload`` are the user's own fields."""

    job: str
    generation: int
    deliveries: int
    reason: str
    payload: Pairs = ()


@dataclass(frozen=True, slots=True)
class FinalState:
    """The place of each job of one group at the end of the history. A job without a place is settled or lost."""

    ready: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    scheduled: tuple[str, ...] = ()
    """Delayed enqueues, delayed retries and quarantined jobs."""
    dead: tuple[DeadJob, ...] = ()
    released: int = 0
    retry_entries: int = 0
    """Length of the retry stream. Settled entries are deleted there."""


@dataclass(frozen=True, slots=True)
class History:
    """All facts about one group from its first job to its last."""

    enqueued: Mapping[str, Pairs]
    """The user's fields by job ID, of every entry that Redis accepted."""
    state: FinalState
    events: Sequence[LifecycleEvent] = ()
    """The group's part of the journal, complete and in order. Empty without a journal."""
    starts: Sequence[Execution] = ()
    completions: Sequence[Execution] | None = None
    """None if handlers wrote no notes."""
    endings: Sequence[Execution] | None = None
    """Executions that failed, hung or ended their process, as handlers wrote down just before. None without notes."""
    visibility_ms: int = 30_000
    max_deliveries: int = 3
    """The highest, if it was changed meanwhile."""
    least_deliveries: int | None = None
    """The lowest, if it was changed meanwhile."""
    counts_kept: bool = True
    """False if Redis has lost counts of deliveries. Then the number of starts is not judged."""
    ends_kept: bool = True
    """False if the group was destroyed, so that deliveries may end more than once."""
    lost_deliveries: frozenset[tuple[str, str]] = frozenset()
    """Deliveries that the server has forgotten, by entry ID and consumer. It delivers their entries again."""
    poison: frozenset[str] | None = None
    """The jobs that may be dead-lettered for `max_deliveries`. None = not judged."""
    finished: bool = False
    """All work should be done, with no job ready, pending or scheduled (I7)."""
    ids_are_times: bool = False
    """Each entry was delivered after the time in its ID, so a recovery before that time plus the timeout is early."""


class Fate(StrEnum):
    """The place of a job at the end."""

    SETTLED = "settled"
    DEAD_LETTERED = "dead_lettered"
    READY = "ready"
    PENDING = "pending"
    SCHEDULED = "scheduled"
    LOST = "lost"
    """It was never completed, and has no place in Redis."""


def places(state: FinalState) -> dict[str, list[Fate]]:
    """Return the places of each job in Redis."""
    found: defaultdict[str, list[Fate]] = defaultdict(list)
    for fate, jobs in (
        (Fate.READY, state.ready),
        (Fate.PENDING, state.pending),
        (Fate.SCHEDULED, state.scheduled),
        (Fate.DEAD_LETTERED, [letter.job for letter in state.dead]),
    ):
        for job in jobs:
            found[job].append(fate)
    return found


def fates(history: History) -> dict[str, Fate]:
    """Return the fate of each job that was enqueued."""
    there = places(history.state)
    done = {event.job for event in history.events if event.event in (EventName.ACKED, EventName.LOST_PAYLOAD)}
    done |= {completion.job for completion in history.completions or ()}
    gone = {True: Fate.SETTLED, False: Fate.LOST}
    return {job: there[job][-1] if job in there else gone[job in done] for job in history.enqueued}


def check(history: History) -> list[str]:
    """Return a sentence for each violation. It begins with the name of the promise."""
    return [sentence for invariant in _INVARIANTS for sentence in invariant(history)]


def check_now(history: History) -> list[str]:
    """Return the violations at an instant at which no script runs. Then no job may be in two places."""
    return [*check(history), *in_one_place(history)]


def no_loss(history: History) -> Iterator[str]:
    """Judge I1. An accepted job is ready, pending, scheduled, settled or dead, and a settled job was executed."""
    for job, fate in fates(history).items():
        if fate is Fate.LOST:
            yield f"I1: job {job} was enqueued and is nowhere: not ready, pending, scheduled, settled or dead"
    if history.completions is not None:
        acked = {event.job for event in history.events if event.event == EventName.ACKED}
        completed = {done.job for done in history.completions}
        for job in sorted(acked - completed):
            yield f"I1: job {job} was acknowledged and its work was never completed"


def no_early_recovery(history: History) -> Iterator[str]:
    """Judge I2. No entry is recovered before its visibility timeout. Entries without an owner are due at once."""
    for event in filter(is_timed, history.events):
        early = early_ms(history, event)
        if early > 0:
            yield f"I2: job {event.job} was {event.event} after {event.data['idle_ms']} ms, {early} ms too early"


def is_timed(event: LifecycleEvent) -> bool:
    """Tell whether it is a recovery with the idle time of the delivery."""
    due = "visibility_ms" in event.data or (event.data.get("mode") == "reaper" and "token" in event.data)
    return due and event.event in _RECOVERIES and event.data.get("idle_ms", -1) >= 0


def early_ms(history: History, event: LifecycleEvent) -> int:
    """Return how many ms too early a timed recovery came. It is 0 or less if it was in time."""
    needed = int(event.data.get("visibility_ms", history.visibility_ms))
    early = needed - int(event.data["idle_ms"])
    if history.ids_are_times and "entry" in event.data:
        early = max(early, entry_ms(str(event.data["entry"])) + needed - event.at_ms)
    return early


def fenced(history: History) -> Iterator[str]:
    """Judge I3. Only the holder of the lease acts on the group. Before the first journaled term, all may act."""
    holder, token = None, None
    for event in history.events:
        if event.event == EventName.LEASE_TAKEN:
            holder, token = event.data.get("holder"), event.number("token")
        elif event.event == EventName.LEASE_LEFT:
            if holder not in (None, event.data.get("holder")):
                yield f"I3: {event.data.get('holder')} left the lease, and {holder or 'nobody'} held it"
            holder, token = "", None
        elif not _is_by_a_replica(event):
            continue
        elif holder is not None and event.data["token"] != token:
            whose = f"in term {token}" if token is not None else "after the end of a term"
            yield f"I3: job {event.job} was {event.event} by term {event.data['token']} {whose}"


def settled_once(history: History) -> Iterator[str]:
    """Judge I4. A delivery is settled once, and a generation of a job ends once."""
    if not history.ends_kept:
        return
    settled = [
        event for event in history.events if event.event in _SETTLEMENTS and {"entry", "delivery"} <= event.data.keys()
    ]
    least = history.max_deliveries if history.least_deliveries is None else history.least_deliveries
    # After a delivery that does not count, another one of the copy or of the same entry has its number.
    # If the limit was lowered meanwhile, that number is the limit, because the job runs once more.
    uncounted = Counter(
        (job, entry, number)
        for event in settled
        if gives_a_delivery_back(event) and event.data.get("new_entry") == event.data["entry"]
        for job, entry, delivery in [_delivery(event)]
        for number in range(min(delivery, least), delivery + 1)
    )
    anew = _delivered_anew(history, settled)
    ends: defaultdict[tuple[str, int], list[tuple[str, str]]] = defaultdict(list)
    for event in history.events:
        if event.event in (EventName.ACKED, EventName.DEAD_LETTERED):
            ends[_generation(event)].append((str(event.data.get("entry")), str(event.data.get("consumer"))))
    for (job, generation), holders in ends.items():
        if len(holders) > 1 + _beside_another(set(holders), history):
            yield f"I4: generation {generation} of job {job} was ended {len(holders)} times"
    for (job, entry, delivery), times in Counter(map(_delivery, settled)).items():
        if times > 1 + uncounted[job, entry, delivery] + anew[job, entry, delivery]:
            yield f"I4: delivery {delivery} of entry {entry} (job {job}) was settled {times} times"
    if not history.lost_deliveries:
        yield from _ended_twice(history)


def _ended_twice(history: History) -> Iterator[str]:
    """Two replicas that both act on an entry end it twice. One that is made ready or taken over in place goes on."""
    ends = Counter(
        (event.job, str(event.data["entry"]))
        for event in history.events
        if event.event in _ENDS
        and "entry" in event.data
        and event.data.get("reason") != "released"  # the release of a quarantined copy
        and event.data.get("new_entry") != event.data["entry"]
    )
    for (job, entry), times in ends.items():
        if times > 1:
            yield f"I4: entry {entry} (job {job}) was ended {times} times"


def _delivered_anew(history: History, settled: Iterable[LifecycleEvent]) -> Counter[tuple[str, str, int]]:
    """Return how many consumers settled a delivery beside another one, because the server had forgotten it."""
    by: defaultdict[tuple[str, str, int], set[tuple[str, str]]] = defaultdict(set)
    for event in settled if history.lost_deliveries else ():
        by[_delivery(event)].add((str(event.data["entry"]), str(event.data.get("consumer"))))
    return Counter({delivery: _beside_another(holders, history) for delivery, holders in by.items()})


def _beside_another(holders: set[tuple[str, str]], history: History) -> int:
    """Return how many of these deliveries may have ended although another one did."""
    return min(len(holders & history.lost_deliveries), len(holders) - 1)


def deliveries_limited(history: History) -> Iterator[str]:
    """Judge I5. A generation has at most `max_deliveries` counted runs, then one dead letter of its own."""
    uncounted = Counter(_generation(event) for event in history.events if gives_a_delivery_back(event))
    starts = Counter((start.job, start.generation) for start in history.starts)
    for (job, generation), times in starts.items():
        allowed = history.max_deliveries + uncounted[job, generation]
        if times > allowed and history.counts_kept:
            yield f"I5: generation {generation} of job {job} was started {times} times, {allowed} are allowed"
    yield from _dead_letters_wrong(history)


def in_one_place(history: History) -> Iterator[str]:
    """Judge I1 at an instant. No job is in two places, because one script writes its copy and ends the original."""
    for job, names in places(history.state).items() if history.ends_kept else ():
        if len(names) > 1:
            yield f"I1: job {job} is in more than one place: {' and '.join(names)}"


def back_to_baseline(history: History) -> Iterator[str]:
    """Judge I7. After the work, no state of it is left."""
    if not history.finished:
        return
    state = history.state
    left = {
        "ready jobs": len(state.ready),
        "pending jobs": len(state.pending),
        "scheduled jobs": len(state.scheduled),
        "released jobs": state.released,
        "entries in the retry stream": state.retry_entries,
    }
    for what, number in left.items():
        if number:
            yield f"I7: the work is over and {number} {what} are left"


_INVARIANTS: tuple[Callable[[History], Iterable[str]], ...] = (
    no_loss,
    no_early_recovery,
    fenced,
    settled_once,
    deliveries_limited,
    back_to_baseline,
)


def _dead_letters_wrong(history: History) -> Iterator[str]:
    by_generation: defaultdict[Generation, list[DeadJob]] = defaultdict(list)
    for letter in history.state.dead:
        by_generation[letter.job, letter.generation].append(letter)
    for (job, generation), letters in by_generation.items():
        if len(letters) > 1 and history.ends_kept:
            yield f"I5: generation {generation} of job {job} has {len(letters)} dead letters"
        for letter in letters:
            yield from _letter_wrong(history, letter)
            if history.endings is not None and letter.reason == "max_deliveries" and _is_innocent(history, letter):
                yield f"I5: job {job} was given up, and no execution of it failed, hung or ended its process"


def _letter_wrong(history: History, letter: DeadJob) -> Iterator[str]:
    if letter.job not in history.enqueued:
        yield f"I5: there is a dead letter of job {letter.job}, which no producer enqueued"
    elif list(letter.payload) != list(history.enqueued[letter.job]):
        yield f"I5: the dead letter of job {letter.job} holds {letter.payload!r} instead of its payload"
    if letter.reason != "max_deliveries":
        return
    least = history.max_deliveries if history.least_deliveries is None else history.least_deliveries
    if letter.deliveries < least:
        yield f"I5: job {letter.job} was given up after {letter.deliveries} of {least} deliveries"
    if history.poison is not None and letter.job not in history.poison:
        yield f"I5: job {letter.job} is not a poison job, but became a dead letter"


def _is_innocent(history: History, letter: DeadJob) -> bool:
    """Tell whether a job was executed, and no execution of it failed, hung or ended its process."""
    executions = {(start.job, start.generation) for start in history.starts}
    to_blame = {(end.job, end.generation) for end in history.endings or ()}
    to_blame |= {_generation(event) for event in history.events if _is_failure(event)}
    return (letter.job, letter.generation) in executions - to_blame


def _is_failure(event: LifecycleEvent) -> bool:
    return event.event == EventName.NACKED and event.data.get("verb") != "retry"


def _is_by_a_replica(event: LifecycleEvent) -> bool:
    """Tell whether a replica wrote it. A worker's own dead letters have the same mode, and no term."""
    return event.event in _RECOVERIES and event.data.get("mode") == "reaper" and "token" in event.data


def _generation(event: LifecycleEvent) -> Generation:
    return event.job, int(event.data.get("generation", 0))


def _delivery(event: LifecycleEvent) -> tuple[str, str, int]:
    return event.job, str(event.data["entry"]), int(event.data["delivery"])


def gives_a_delivery_back(event: LifecycleEvent) -> bool:
    """Tell whether the delivery that ended here does not count."""
    data: Mapping[str, Any] = event.data
    return (
        event.event == EventName.HANDED_BACK
        or (event.event == EventName.NACKED and data.get("verb") == "retry")
        or (event.event == EventName.QUARANTINED and data.get("reason") in _UNCOUNTED)
    )
