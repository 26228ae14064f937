"""The rows of an act after its end, and the references between them. Pure."""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from reaper.drill.promises import Execution, FinalState, History, early_ms, is_timed
from reaper.drill.records import Effect, Enqueued, InjectedFault, Line, MissedFault, ProcessRun, Step
from workers.protocol.events import EventName, LifecycleEvent

NOTHING_LEFT = FinalState()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Rows as they were collected. Lines have the number of a job, all other rows its ID."""

    enqueued: Sequence[Enqueued]
    lines: Sequence[Line] = ()
    events: Sequence[LifecycleEvent] = ()
    processes: Sequence[ProcessRun] = ()
    state: FinalState = NOTHING_LEFT
    faults: Sequence[InjectedFault] = ()
    missed: Sequence[MissedFault] = ()
    visibility_s: float
    max_deliveries: int = 3
    clock_ahead_s: float = 0.0
    """How far the server's clock is ahead of the drill's, in seconds."""
    ends_kept: bool = True
    """False if the group was deleted. Then a job may be settled twice."""
    ids_are_times: bool = True
    """False if the server's clock was set. Then entry IDs cannot be compared with times."""

    @cached_property
    def history(self) -> History:
        """The history for the judge of the promises."""
        forgets = any(fault.effect & Effect.FORGETS for fault in self.faults)
        poison = frozenset(job.entry_id for job in self.enqueued if job.poison and job.n not in self.forgotten)
        return History(
            enqueued={job.entry_id: job.fields for job in self.enqueued},
            state=self.state,
            events=self.events,
            starts=self._executions(Step.START),
            completions=self._executions(Step.DONE),
            visibility_ms=round(self.visibility_s * 1000),
            max_deliveries=self.max_deliveries,
            counts_kept=not forgets,
            ends_kept=self.ends_kept,
            poison=poison,
            ids_are_times=self.ids_are_times,
        )

    def _executions(self, step: Step) -> list[Execution]:
        return [
            Execution(self.jobs[line.n].entry_id) for line in self.lines if line.step is step and line.n in self.jobs
        ]

    def redis_was(self, effect: Effect, since: float, until: float) -> bool:
        """Return whether a fault with one of these effects lasted at any time from ``since`` to ``until``."""
        lasted = ((fault.at, fault.until or math.inf) for fault in self.faults if fault.effect & effect)
        return any(start <= until and since <= end for start, end in lasted)

    @cached_property
    def forgotten(self) -> frozenset[int]:
        """Numbers of the jobs that Redis has forgotten because of a fault."""
        return frozenset(n for fault in self.faults for n in fault.jobs)

    @cached_property
    def jobs(self) -> dict[int, Enqueued]:
        """The jobs by number."""
        return {job.n: job for job in self.enqueued}

    def job_id(self, n: int) -> str:
        """Return the ID of job ``n``. Empty if the producer does not know it."""
        return self.jobs[n].entry_id if n in self.jobs else ""

    @cached_property
    def timed_out(self) -> frozenset[str]:
        """Entries that were recovered in time."""
        timed = (event for event in self.events if is_timed(event) and early_ms(self.history, event) <= 0)
        return frozenset(str(event.data["entry"]) for event in timed)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each job ID."""
        return {job.entry_id: job.n for job in self.enqueued}

    def local(self, event: LifecycleEvent) -> float:
        """Return the time of ``event`` by the drill's clock."""
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
        """Return the process of ``consumer``, which is named after it, with or without a nonce."""
        return self._by_name.get(consumer.partition("~")[0])

    @cached_property
    def _by_name(self) -> dict[str, ProcessRun]:
        return {run.name: run for run in self.processes}

    @cached_property
    def poisoned(self) -> frozenset[str]:
        """Names of the processes that a poison job killed."""
        started = (
            self.process_of(line)
            for line in self.lines
            if line.step is Step.START and line.n in self.jobs and self.jobs[line.n].poison
        )
        return frozenset(
            run.name for run in started if run and run.exit_code == -signal.SIGKILL and run.killed_at is None
        )
