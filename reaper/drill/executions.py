"""Why jobs were started again, and which work was completed twice. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from reaper.drill.evidence import Evidence
from reaper.drill.promises import early_ms, is_timed
from reaper.drill.records import Effect, Line, Role, Step
from workers.protocol.events import EventName


class Cause(StrEnum):
    """Why a job was started again."""

    WORKER_KILLED = "worker_killed"
    """A fault killed the process that ran it."""
    POISON = "poison"
    """A poison job killed that process: the job itself, or one beside it."""
    WORKER_ENDED = "worker_ended"
    """That process ended for another reason."""
    ADOPTED = "adopted"
    """A later process of the same worker took over the jobs of the earlier one."""
    NACK = "nack"
    REDIS_PAUSED = "redis_paused"
    """Redis did not answer, or took no writes, while it ran or before it could be settled."""
    FORGOTTEN = "forgotten"
    """Redis forgot meanwhile that it ran, or that it was settled."""
    CLAIMED = "claimed"
    """A bare loop claimed it from another one that was alive."""
    SLOW = "slow"
    """It ran longer than the visibility timeout."""
    UNSETTLED = "unsettled"
    """It was done in time, and its settlement did not come in time."""
    LATE = "late"
    """It began late: its process did not run, or extend it, for a visibility timeout by the server's clock."""
    UNEXPLAINED = "unexplained"
    """None of these: it was redelivered while a worker ran it."""


@dataclass(frozen=True, slots=True)
class SecondStart:
    """A job that was started again. ``start`` counts its executions, from 2."""

    n: int
    job: str
    start: int
    cause: Cause
    worker: str
    previous_worker: str
    recovery_s: float | None
    """From the end of the process that ran it before to this start; None if that process lived on."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A job whose work was completed ``times`` times."""

    n: int
    job: str
    times: int
    cause: Cause


def second_starts(evidence: Evidence) -> list[SecondStart]:
    """Return every start of a job after its first, with its cause."""
    return list(_second_starts(evidence))


def _second_starts(evidence: Evidence) -> Iterator[SecondStart]:
    causes, done = _Causes(evidence), evidence.lines_of(Step.DONE)
    for n, lines in evidence.lines_of(Step.START).items():
        for start, (before, line) in enumerate(pairwise(lines), start=2):
            previous, worker = evidence.process_of(before), evidence.process_of(line)
            ended_at = None
            if previous and previous.ended_at is not None and previous.ended_at <= line.at:
                ended_at = previous.killed_at or previous.ended_at
            yield SecondStart(
                n=n,
                job=evidence.jobs[n].entry_id if n in evidence.jobs else "",
                start=start,
                cause=causes.of(before, line, done.get(n, ()), ended=ended_at is not None),
                worker=worker.name if worker else "?",
                previous_worker=previous.name if previous else "?",
                recovery_s=None if ended_at is None else line.at - ended_at,
            )


class _Causes:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        recovered = evidence.named(EventName.RECOVERED)
        self._requeued = {str(event.data.get("new_entry")): Cause.NACK for event in evidence.named(EventName.NACKED)}
        for event in recovered:
            if event.data.get("mode") == "adopt":
                self._requeued[str(event.data.get("new_entry"))] = Cause.ADOPTED
        self._timed_out = {
            str(event.data["entry"])
            for event in evidence.events
            if is_timed(event) and early_ms(evidence.history, event) <= 0
        }

    def of(self, before: Line, line: Line, done: Sequence[Line], *, ended: bool) -> Cause:
        """Say why ``line`` followed ``before``, whose process had ``ended`` by then or not."""
        evidence, previous = self._evidence, self._evidence.process_of(before)
        if line.entry_id in self._requeued:
            return self._requeued[line.entry_id]
        if previous and ended:
            if previous.killed_at is not None:
                return Cause.WORKER_KILLED
            return Cause.POISON if previous.name in evidence.poisoned else Cause.WORKER_ENDED
        if evidence.redis_was(Effect.FORGETS, before.at, line.at):
            return Cause.FORGOTTEN
        if evidence.redis_was(Effect.AWAY, before.at, line.at):
            return Cause.REDIS_PAUSED
        same = (end for end in done if (end.pid, end.entry_id) == (before.pid, before.entry_id))
        ran_until = next((end.at for end in same if end.at >= before.at), line.at)
        if ran_until - before.at >= evidence.visibility_s:
            return Cause.SLOW
        worker = evidence.process_of(line)
        if previous and worker and previous.role is worker.role is Role.BARE_WORKER:
            return Cause.CLAIMED
        if line.at - before.at >= evidence.visibility_s:
            return Cause.UNSETTLED
        return Cause.LATE if before.entry_id in self._timed_out else Cause.UNEXPLAINED


def duplicates(evidence: Evidence, starts: Sequence[SecondStart]) -> list[Duplicate]:
    """Return the jobs whose work was completed more than once, each with the cause of its last second start."""
    causes = {start.n: start.cause for start in starts}
    return [
        Duplicate(
            n=n,
            job=evidence.jobs[n].entry_id if n in evidence.jobs else "",
            times=len(lines),
            cause=causes.get(n, Cause.UNEXPLAINED),
        )
        for n, lines in evidence.lines_of(Step.DONE).items()
        if len(lines) > 1
    ]
