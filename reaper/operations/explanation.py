"""Explains why a job is not done, by its next step and the obstacles. Pure decisions."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from reaper.operations.durations import duration
from reaper.operations.job_search import MOST_COPIED_FIELDS, FoundJob, Place
from reaper.operations.judgement import judge
from reaper.operations.state import GroupState, Snapshot, SourceState
from reaper.reasons import ProblemKind
from reaper.settings import LONGEST_VISIBILITY_MS
from workers.protocol.calls.membership import DEFAULT_MAX_DELIVERIES, DEFAULT_VISIBILITY_TIMEOUT
from workers.protocol.events import EventName
from workers.protocol.messages import Redelivery, counted
from workers.runtime.settings import to_ms

_STOPS = frozenset({
    ProblemKind.NO_REPLICA, ProblemKind.UNSERVED, ProblemKind.UNHELD, ProblemKind.ERROR, ProblemKind.DISABLED,
    ProblemKind.PAUSED,
})  # fmt: skip
"""Problems that keep recovery from acting."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything ``reaper explain`` shows of a job in one group."""

    job: FoundJob
    group: GroupState
    snapshot: Snapshot

    @property
    def max_deliveries(self) -> int:
        """The limit in force."""
        return self.group.max_deliveries or DEFAULT_MAX_DELIVERIES

    @property
    def deliveries(self) -> int:
        """Counted deliveries, the current one included. A lowered limit leaves one delivery."""
        before, times = self.job.deliveries_before, self.job.times_delivered
        return min(before, self.max_deliveries - 1) + times if times else before

    @property
    def visibility_ms(self) -> int:
        """The visibility timeout of this job, which is the longer one of the group's and its own."""
        in_force = self.group.visibility_ms or to_ms(DEFAULT_VISIBILITY_TIMEOUT)
        return max(in_force, min(self.job.own_visibility_ms, LONGEST_VISIBILITY_MS))

    def next_step(self) -> tuple[int | None, str]:
        """Return in how many ms the next step happens by itself (0 = now, None = unknown), and the step."""
        job, group = self.job, self.group
        match job.place:
            case Place.PENDING:
                return self._next_of_pending()
            case Place.READY:
                source = self._source
                ready = "1 job is" if str(source.ready) == "1" else f"{source.ready} jobs are"
                return None, f"a worker reads it: {ready} ready, for {counted(source.consumers, 'consumer')}"
            case Place.SCHEDULED:
                left = max(0, job.due_ms - self.snapshot.now_ms)
                return left, f"becomes ready in {duration(left)}" if left else "is due, and becomes ready now"
            case Place.QUARANTINED:
                are = counted(group.released, "released job is", "released jobs are")
                then = f", when the {are} settled" if group.released else ""
                return None, f"is quarantined, because it has one delivery left: it becomes ready in its turn{then}"
            case Place.DEAD:
                command = f"reaper dead-letters redrive {group.keys.word} {job.entry_id}"
                return None, f"nothing, because it is a dead letter: `{command}` makes it ready again"
            case Place.SETTLED if job.events and job.events[-1].event == EventName.LOST_DELIVERY:
                command = f"reaper groups requeue {group.keys.word} {job.entry_id}"
                return None, f"nothing, because its consumer or group was deleted: `{command}` makes it ready again"
            case Place.SETTLED if job.events and job.events[-1].event == EventName.LOST_PAYLOAD:
                return None, "nothing, because its entry was deleted before it was settled: enqueue the job again"
            case Place.SETTLED if job.events and job.events[-1].event == EventName.ACKED:
                return None, "nothing: it is settled"
            case Place.SETTLED:
                return None, "nothing: a plain XACK settled it, unless a third party deleted its consumer"
            case _:
                return None, "unknown: Redis has no trace of it in the searched entries"

    @property
    def _source(self) -> SourceState:
        return self.group.retry if self.job.source == self.group.keys.retry else self.group.main

    def _next_of_pending(self) -> tuple[int | None, str]:
        job, wait = self.job, self.group.recovery_wait
        late_ms = job.idle_ms - self.visibility_ms
        left = 0 if job.is_given_back else max(0, -late_ms)
        if wait and wait.left_ms > left:
            left = wait.left_ms
            since = "" if wait.gap_has_ended else ", counted from the next heartbeat,"
            when = f"unless it is settled or extended, recovery waits {duration(left)}, and then{since}"
        elif job.is_given_back:
            when = "it was given back, so at the next scan"
        elif left:
            when = f"unless it is settled or extended within {duration(left)}"
        else:
            when = f"its visibility timeout passed {duration(late_ms)} ago, so at the next scan"
        return left, f"{when} it is {self._fate()}"

    def _fate(self) -> str:
        """Return the decision of recovery about the delivery, in short (``lua/prelude/8_fate.lua`` decides it)."""
        limit, count, rests = self.max_deliveries, self.deliveries, self.job.is_given_back
        keeps_entry = count < limit - 1 and (self.group.policy == Redelivery.IN_PLACE or self.group.recovers_itself)
        if self.job.fields > MOST_COPIED_FIELDS and not keeps_entry:
            return f"reported, and stays pending, because its {self.job.fields} fields are too many to copy"
        if count >= limit:
            again = "" if rests or limit == 1 else ", or quarantined again if the last one never began"
            return f"dead-lettered after {counted(limit, 'delivery')}{again}"
        if not rests and (self.job.was_quarantined or count == limit - 1):
            return f"quarantined: its next delivery ({count + 1} of {limit}) runs alone"
        return f"ready again, for delivery {count + 1} of {limit}"

    def obstacles(self) -> Iterator[str]:
        """Yield the reasons why no worker reads a ready job, or why recovery does not act."""
        job, group = self.job, self.group
        if job.place is Place.READY and not self._source.consumers:
            yield f"no consumer reads {job.source}. Start a worker."
        elif job.place in (Place.PENDING, Place.SCHEDULED, Place.QUARANTINED):
            for problem in judge(self.snapshot):
                is_its_own = problem.group == group.group or not (problem.group or group.recovers_itself)
                if problem.check in _STOPS and is_its_own:
                    yield problem.text
            if group.recovery_wait:
                yield str(group.recovery_wait)

    def as_json(self) -> dict[str, Any]:
        """Return the part of ``reaper explain -o json`` for this group."""
        (due_in_ms, then), job = self.next_step(), asdict(self.job)
        del job["keys"]
        return {
            "group": self.group.group,
            **job,
            "deliveries": self.deliveries,
            "max_deliveries": self.max_deliveries,
            "visibility_ms": self.visibility_ms,
            "due_in_ms": due_in_ms,
            "next": then,
            "holder": self.group.held_by,
            "token": self.group.token,
            "lease_left_ms": self.group.lease_left_ms,
            "obstacles": list(self.obstacles()),
        }
