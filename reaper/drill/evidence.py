"""Everything known of an act after its end, and how its parts refer to one another. Pure."""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from reaper.drill.faults import AGAINST_REDIS, FAILOVERS, FaultKind
from reaper.drill.records import Enqueued, InjectedFault, Line, MissedFault, ProcessRun, Remains, Role, Step
from workers.protocol.events import EventName, LifecycleEvent
from workers.protocol.messages import entry_ms

NOTHING = Remains()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Rows as they were collected. A job is known by its number in lines, by its first entry ID in events."""

    enqueued: Sequence[Enqueued]
    lines: Sequence[Line] = ()
    events: Sequence[LifecycleEvent] = ()
    processes: Sequence[ProcessRun] = ()
    remains: Remains = NOTHING
    faults: Sequence[InjectedFault] = ()
    missed: Sequence[MissedFault] = ()
    visibility_s: float
    max_deliveries: int = 3
    failed_over_unasked: bool = False
    """A replica was promoted that no fault had promoted: what it had received, nobody has looked at."""
    clock_ahead_s: float = 0.0
    """How far the server's clock is ahead of ours."""

    def redis_was_away(self, since: float, until: float) -> bool:
        """Tell whether Redis stood still, was away or full at any time from ``since`` to ``until``."""
        return self._hit(AGAINST_REDIS - {FaultKind.CUT_CONNECTIONS}, since, until)

    def failed_over(self, since: float, until: float) -> bool:
        """Tell whether a replica was promoted from ``since`` to ``until``, or was about to be."""
        return self._hit(FAILOVERS, since, until)

    def is_recovered(self, line: Line) -> bool:
        """Tell whether somebody has recovered the job for this start: else, it was delivered as if it were new."""
        return line.entry_id in self._recovered_into

    @cached_property
    def _recovered_into(self) -> frozenset[str]:
        recovered = self.named(EventName.RECOVERED, EventName.SUSPECTED)
        return frozenset(str(event.data["new_entry"]) for event in recovered if event.data.get("new_entry"))

    @cached_property
    def not_received(self) -> frozenset[int]:
        """Jobs that a master had answered for, and the replica that was promoted had not received."""
        return frozenset(n for fault in self.faults if fault.kind in FAILOVERS for n in fault.jobs)

    @property
    def unproven(self) -> tuple[str, ...]:
        """Faults of which that is not known."""
        return tuple(fault.kind for fault in self.faults if fault.kind in FAILOVERS and not fault.proven)

    def redis_failed(self, since: float, until: float) -> bool:
        """Tell the same, or whether connections were cut: from that our processes lose nothing."""
        return self._hit(AGAINST_REDIS, since, until)

    def _hit(self, kinds: frozenset[FaultKind], since: float, until: float) -> bool:
        lasted = ((fault.at, fault.until or math.inf) for fault in self.faults if fault.kind in kinds)
        return any(start <= until and since <= end for start, end in lasted)

    @cached_property
    def destructions(self) -> list[tuple[float, float]]:
        """When the group was destroyed, and until when it was not what it had been, by the drill's clock."""
        return [(fault.at, fault.until or fault.at) for fault in self.faults if fault.kind == FaultKind.DESTROY_GROUP]

    def group_forgot(self, before: Line, line: Line) -> bool:
        """Tell whether the group was destroyed, and not yet restored, between two starts of a job."""
        return any(before.at <= until and at <= line.at for at, until in self.destructions)

    @cached_property
    def told_lost(self) -> frozenset[int]:
        """Jobs that were held by a consumer when it was deleted, and of which somebody told that it is gone."""
        told = {event.data.get("consumer") for event in self.named(EventName.LOST_CONSUMER)}
        runs = {run.name for consumer in told if (run := self.process_named(str(consumer)))}
        deleted = [fault for fault in self.faults if fault.kind == FaultKind.DELETE_CONSUMER]
        return frozenset(n for fault in deleted if fault.target in runs for n in fault.jobs)

    @property
    def lives(self) -> int:
        """How many lives the group had: what was settled in one may run, and be settled, in the next."""
        return 1 + len(self.destructions)

    def shortened_under(self, run: ProcessRun, before: Line, line: Line) -> bool:
        """Tell whether the visibility timeout was shortened under a worker of ours that ran a job.

        It was started again before it would have been due by the timeout that the worker knew, counted from then. What
        ran in a worker that was stopped meanwhile was lost by that.
        """
        if self._was_stopped(run, before.at, line.at):
            return False
        moments = [fault.at for fault in self.faults if fault.kind == FaultKind.SHORTEN_VISIBILITY]
        return run.role is Role.WORKER and any(
            before.at <= at <= line.at and line.at < at + self.visibility_s for at in moments
        )

    def _was_stopped(self, run: ProcessRun, since: float, until: float) -> bool:
        stops = [fault for fault in self.faults if fault.kind == FaultKind.PAUSE_WORKER and fault.target == run.name]
        return any(stop.at <= until and since <= (stop.until or math.inf) for stop in stops)

    @cached_property
    def deliveries(self) -> list[Line]:
        """What published workers read and claimed, in order of time: they keep no journal, but write that down."""
        return sorted((line for line in self.lines if line.step in (Step.READ, Step.CLAIM)), key=lambda line: line.at)

    @cached_property
    def claimed(self) -> frozenset[str]:
        """The entries that a published worker took from another."""
        return frozenset(line.entry_id for line in self.lines if line.step is Step.CLAIM)

    @cached_property
    def timed_out(self) -> frozenset[str]:
        """The entries that somebody recovered when nobody had extended them for a visibility timeout."""
        recovered = self.named(EventName.RECOVERED, EventName.SUSPECTED, EventName.DEAD_LETTERED)
        return frozenset(
            str(event.data["entry"]) for event in recovered if is_timed(event) and not self.is_early(event)
        )

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each job ID."""
        return {job.entry_id: job.n for job in self.enqueued}

    @cached_property
    def jobs(self) -> dict[int, Enqueued]:
        """The jobs by number."""
        return {job.n: job for job in self.enqueued}

    def local(self, event: LifecycleEvent) -> float:
        """When ``event`` happened, by the drill's clock."""
        return event.at_ms / 1000 - self.clock_ahead_s

    def named(self, *names: EventName) -> list[LifecycleEvent]:
        """Return the events of these names, in order."""
        return [event for event in self.events if event.event in names]

    def lines_of(self, step: Step) -> dict[int, list[Line]]:
        """Return the lines of ``step`` by job, in order of time."""
        found: dict[int, list[Line]] = {}
        for line in sorted(self.lines, key=lambda line: line.at):
            if line.step is step:
                found.setdefault(line.n, []).append(line)
        return found

    def process_of(self, line: Line) -> ProcessRun | None:
        """Return the process that wrote ``line``."""
        return next((run for run in self.processes if run.pid == line.pid and run.lived_at(line.at)), None)

    def process_named(self, consumer: str) -> ProcessRun | None:
        """Return the process that read as ``consumer``: its name, alone or followed by a nonce."""
        return self._by_name.get(consumer.partition(".")[0])

    @cached_property
    def _by_name(self) -> dict[str, ProcessRun]:
        return {run.name: run for run in self.processes}

    @property
    def clock_was_set(self) -> bool:
        """Tell whether the server's clock was set: then entry IDs of before and after cannot be compared."""
        return any(fault.kind == FaultKind.CLOCK_STEP for fault in self.faults)

    def is_early(self, event: LifecycleEvent) -> bool:
        """Tell whether a recovery came before its time: by its idle time, or sooner than any delivery was due."""
        visibility_ms = event.data["visibility_ms"]
        earliest_ms = 0 if self.clock_was_set else entry_ms(str(event.data["entry"])) + visibility_ms
        return bool(event.data["idle_ms"] < visibility_ms or event.at_ms < earliest_ms)

    @cached_property
    def poisoned(self) -> frozenset[str]:
        """Names of the processes that a poison job killed: it was started there, and they ended at once."""
        started = {
            run.name: run
            for line in self.lines
            if line.step is Step.START and line.n in self.jobs and self.jobs[line.n].poison
            if (run := self.process_of(line)) is not None
        }
        return frozenset(
            name for name, run in started.items() if run.exit_code == -signal.SIGKILL and run.killed_at is None
        )


def is_timed(event: LifecycleEvent) -> bool:
    """Tell whether the event says how long a delivery was idle (-1: nobody owned it, so it was due at once)."""
    return "visibility_ms" in event.data and event.data.get("idle_ms", -1) >= 0
