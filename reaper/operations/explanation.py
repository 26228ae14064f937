"""Explains why a job is not done: its next step, when it happens, and the obstacles. Pure decisions."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from reaper.operations.fate import FATAL, Fate, count_of, fate_of
from reaper.operations.job_search import FoundJob, Place
from reaper.operations.judgement import judge_service
from reaper.operations.state import GroupState, Snapshot
from reaper.operations.words import duration
from reaper.reasons import REFUSALS
from reaper.settings import LONGEST_VISIBILITY_MS
from workers.protocol.calls.membership import DEFAULT_MAX_DELIVERIES, DEFAULT_VISIBILITY_TIMEOUT
from workers.protocol.events import EventName
from workers.protocol.messages import Redelivery, counted
from workers.runtime.settings import to_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything ``reaper explain`` shows of a job in one group."""

    job: FoundJob
    group: GroupState
    now_ms: int
    holder: str
    """ID of the replica that holds the lease of the group; '' = no replica holds it."""
    token: int
    lease_left_ms: int
    due_in_ms: int | None
    """Until the next thing happens by itself; 0 = now, None = nothing is due at a known time."""
    next: str
    """What happens next, and when."""
    obstacles: tuple[str, ...]
    """What keeps it from happening."""

    @property
    def deliveries(self) -> int:
        """Counted deliveries, the one under way included."""
        return count_deliveries(self.job, self.max_deliveries)

    @property
    def max_deliveries(self) -> int:
        """The limit in force."""
        return self.group.max_deliveries or DEFAULT_MAX_DELIVERIES

    def as_json(self) -> dict[str, Any]:
        """Return what ``reaper explain -o json`` prints of this group."""
        facts = asdict(self.job)
        for name in ("keys", "is_quarantined", "released"):
            facts.pop(name)
        events = facts.pop("events")
        return {
            "group": self.group.pair,
            **facts,
            "place": str(self.job.place),
            "deliveries": self.deliveries,
            "max_deliveries": self.max_deliveries,
            "visibility_ms": visibility_of(self.job, self.group),
            "mode": self.group.mode,
            "policy": self.group.policy,
            "holder": self.holder,
            "token": self.token,
            "lease_left_ms": self.lease_left_ms,
            "due_in_ms": self.due_in_ms,
            "next": self.next,
            "obstacles": list(self.obstacles),
            "events": events,
        }


def count_deliveries(job: FoundJob, max_deliveries: int) -> int:
    """Return the counted deliveries, the one under way included."""
    return count_of(job.delivery, max_deliveries) if job.place is Place.PENDING else job.deliveries_before


def visibility_of(job: FoundJob, group: GroupState) -> int:
    """Return the visibility timeout of this job in ms, which is the longer one of the group's and its own."""
    agreed = group.visibility_ms or to_ms(DEFAULT_VISIBILITY_TIMEOUT)
    return max(agreed, min(job.own_visibility_ms, LONGEST_VISIBILITY_MS))


def explain(job: FoundJob, group: GroupState, snapshot: Snapshot) -> Explanation:
    """Decide what happens next with a job."""
    due, then = _next(job, group, snapshot.now_ms)
    waits = job.place in (Place.PENDING, Place.SCHEDULED, Place.QUARANTINED)
    return Explanation(
        job=job,
        group=group,
        now_ms=snapshot.now_ms,
        holder=group.held_by,
        token=group.token,
        lease_left_ms=group.lease_left_ms,
        due_in_ms=due,
        next=then,
        obstacles=tuple(_obstacles(group, snapshot)) if waits else tuple(_obstacles_to_reading(job, group)),
    )


def _next(job: FoundJob, group: GroupState, now_ms: int) -> tuple[int | None, str]:
    match job.place:
        case Place.PENDING:
            return _next_of_pending(job, group)
        case Place.READY:
            return None, _next_of_ready(job, group)
        case Place.SCHEDULED:
            left = max(0, job.due_ms - now_ms)
            return left, f"becomes ready in {duration(left)}" if left else "is due, and becomes ready now"
        case Place.QUARANTINED:
            before = f"after {job.quarantined_before} others" if job.quarantined_before else "as the next one"
            return None, (
                f"is quarantined, because it has one delivery left: it becomes ready {before}, when the "
                f"{group.released} released jobs are settled"
            )
        case Place.DEAD:
            command = f"reaper dead-letters redrive {group.keys.word} {job.entry_id}"
            return None, f"nothing, because it is a dead letter: `{command}` makes it ready again"
        case Place.SETTLED if job.events and job.events[-1].event == EventName.LOST_DELIVERY:
            command = f"reaper groups requeue {group.keys.word} {job.entry_id}"
            return None, f"nothing, because its consumer or group was deleted: `{command}` makes it ready again"
        case Place.SETTLED:
            return None, "nothing: it is settled"
        case _:
            return None, "unknown: Redis has no trace of it in the searched entries"


def _next_of_pending(job: FoundJob, group: GroupState) -> tuple[int | None, str]:
    is_given_back = job.delivery.is_given_back
    left = 0 if is_given_back else max(0, visibility_of(job, group) - job.idle_ms)
    wait = group.recovery_wait
    if wait and wait.left_ms > left:
        left = wait.left_ms
        when = f"unless it is settled or extended, recovery waits {duration(left)}, and then"
        if not wait.has_ended:
            when += ", counted from the next heartbeat,"
    elif is_given_back:
        when = "it was given back, so at the next scan"
    elif left:
        when = f"unless it is settled or extended within {duration(left)}"
    else:
        late = duration(job.idle_ms - visibility_of(job, group))
        when = f"its visibility timeout passed {late} ago, so at the next scan"
    return left, f"{when} it is {_fate(job, group)}"


_AGAIN = {
    "not_released": "because it was not released",
    "never_arrived": "because its worker has not confirmed that it has it",
    "max_deliveries": "because the limit of deliveries was raised",
}
"""Why a quarantined job goes back to quarantine."""


def _fate(job: FoundJob, group: GroupState) -> str:
    """Return what recovery makes of a pending delivery."""
    most = group.max_deliveries or DEFAULT_MAX_DELIVERIES
    count, (fate, reason) = count_of(job.delivery, most), fate_of(job.delivery, most)
    if fate is Fate.DEAD:
        why = "its worker gave it up" if count >= FATAL else f"{count} of {most} deliveries are used up"
        return f"dead-lettered: {why}"
    if reason in _AGAIN:
        return f"quarantined again, {_AGAIN[reason]}"
    if fate is Fate.QUARANTINE:
        return f"quarantined: its next delivery ({count + 1} of {most}) is its last, and runs alone"
    if group.recovers_itself:
        return f"claimed by a live worker, as delivery {count + 1} of {most}"
    if group.policy == Redelivery.IN_PLACE:
        return f"ready again where it is, for delivery {count + 1} of {most}"
    target = group.keys.retry if group.policy == Redelivery.RETRY_STREAM else group.stream
    return f"copied to {target} and ready again, for delivery {count + 1} of {most}"


def _next_of_ready(job: FoundJob, group: GroupState) -> str:
    source = group.retry if job.source == group.keys.retry else group.main
    ready = "1 job is" if str(source.ready) == "1" else f"{source.ready} jobs are"
    return f"a worker reads it: {ready} ready there; known: {counted(source.consumers, 'consumer')}"


def _obstacles(group: GroupState, snapshot: Snapshot) -> Iterator[str]:
    """Yield the reasons why recovery does not act in this group."""
    if group.paused:
        yield f"recovery is paused. Run `reaper groups resume {group.keys.word}` to resume it."
    if group.recovery_wait:
        yield str(group.recovery_wait)
    if group.recovers_itself:
        return
    if not snapshot.live:
        yield "no replica is alive: nothing is recovered before one is started"
    for _, why in judge_service(snapshot, group):
        yield why
    report = group.report
    if report and report.refusal:
        yield f"recovery refuses: {REFUSALS.get(report.refusal, report.refusal)}"
    if report and report.error:
        yield report.error


def _obstacles_to_reading(job: FoundJob, group: GroupState) -> Iterator[str]:
    """Yield the reasons why workers do not read a ready job."""
    if job.place is not Place.READY:
        return
    source = group.retry if job.source == group.keys.retry else group.main
    if not source.consumers:
        yield f"no consumer reads {job.source}: start a worker" + (
            " that reads the retry stream too" if job.source == group.keys.retry else ""
        )
