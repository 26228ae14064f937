"""Everything known of an act after its end, and how its parts refer to one another. Pure."""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from reaper.drill.records import Effect, Enqueued, InjectedFault, Line, MissedFault, ProcessRun, Remains, Step
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
    clock_ahead_s: float = 0.0
    """How far the server's clock is ahead of ours."""

    lives: int = 1
    """How often the group was created. A job that was settled in one life may be settled again in the next."""
    ids_are_times: bool = True
    """Entry IDs can be compared with times. Not after the server's clock was set."""

    def redis_was(self, effect: Effect, since: float, until: float) -> bool:
        """Return whether a fault with one of these effects lasted at any time from ``since`` to ``until``."""
        lasted = ((fault.at, fault.until or math.inf) for fault in self.faults if fault.effect & effect)
        return any(start <= until and since <= end for start, end in lasted)

    @cached_property
    def forgotten(self) -> frozenset[int]:
        """Jobs that Redis has forgotten because of a fault."""
        return frozenset(n for fault in self.faults for n in fault.jobs)

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

    def is_early(self, event: LifecycleEvent) -> bool:
        """Tell whether a recovery came before its time: by its idle time, or sooner than any delivery was due."""
        visibility_ms = event.data["visibility_ms"]
        earliest_ms = entry_ms(str(event.data["entry"])) + visibility_ms if self.ids_are_times else 0
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
