"""Why jobs were started again, and whose work was completed twice. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from reaper.drill.evidence import Evidence
from reaper.drill.records import Effect, Line, ProcessRun, Step
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
    """A later process of the same worker took over what the earlier one held."""
    NACK = "nack"
    FORGOTTEN = "forgotten"
    """Redis forgot meanwhile that it ran, or that it was settled."""
    REDIS_PAUSED = "redis_paused"
    """Redis stood still, was away or full while it ran, or before it could be settled."""
    WAITED = "waited"
    """It lay unstarted in a batch behind others, past the visibility timeout, and was claimed by somebody else."""
    SLOW = "slow"
    """It ran longer than the visibility timeout."""
    UNSETTLED = "unsettled"
    """It was done in time, and its settlement did not come in time."""
    LATE = "late"
    """It began late: its process did not run, or extend it, for a whole visibility timeout by the server's clock."""
    UNEXPLAINED = "unexplained"
    """None of these: somebody redelivered what was in good hands."""


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
    """From the end of the process that ran it before to this start; None where that process lived on."""


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
    handed_on = _handed_on(evidence)
    done = evidence.lines_of(Step.DONE)
    for n, lines in evidence.lines_of(Step.START).items():
        for start, (before, line) in enumerate(pairwise(lines), start=2):
            previous, worker = evidence.process_of(before), evidence.process_of(line)
            ended_at = _end_of(previous, line)
            cause = handed_on.get(line.entry_id)
            if cause is None and previous and ended_at is not None:
                cause = _cause_of_end(previous, evidence)
            if cause is None:
                cause = _cause_beside_a_living(before, line, _done_after(before, done.get(n, ())), evidence)
            yield SecondStart(
                n=n,
                job=evidence.jobs[n].entry_id if n in evidence.jobs else "",
                start=start,
                cause=cause,
                worker=worker.name if worker else "?",
                previous_worker=previous.name if previous else "?",
                recovery_s=None if ended_at is None else line.at - ended_at,
            )


def _done_after(before: Line, done: Sequence[Line]) -> Line | None:
    """Return the end of the execution that began with ``before``; a process may run a job again, later."""
    same = (line for line in done if (line.pid, line.entry_id) == (before.pid, before.entry_id))
    return next((line for line in same if line.at >= before.at), None)


def _handed_on(evidence: Evidence) -> dict[str, Cause]:
    """Return the entries that a worker made ready again, or took over, by itself."""
    causes = {str(event.data.get("new_entry")): Cause.NACK for event in evidence.named(EventName.NACKED)}
    for event in evidence.named(EventName.RECOVERED):
        if event.data.get("mode") == "adopt":
            causes[str(event.data.get("new_entry"))] = Cause.ADOPTED
    return causes


def _end_of(run: ProcessRun | None, line: Line) -> float | None:
    """Return when ``run`` ended, where that was before ``line``."""
    if run is None or run.ended_at is None or run.ended_at > line.at:
        return None
    return run.killed_at or run.ended_at


def _cause_of_end(run: ProcessRun, evidence: Evidence) -> Cause:
    if run.killed_at is not None:
        return Cause.WORKER_KILLED
    return Cause.POISON if run.name in evidence.poisoned else Cause.WORKER_ENDED


def _cause_beside_a_living(before: Line, line: Line, done: Line | None, evidence: Evidence) -> Cause:
    """Say why a job was started again while the process that ran it before lived on."""
    if evidence.redis_was(Effect.FORGETS, before.at, line.at):
        return Cause.FORGOTTEN
    if evidence.redis_was(Effect.AWAY, before.at, line.at):
        return Cause.REDIS_PAUSED
    if (done or line).at - before.at >= evidence.visibility_s:
        return Cause.SLOW
    if before.entry_id in evidence.claimed:  # and it did not run that long: it had waited
        return Cause.WAITED
    if line.at - before.at >= evidence.visibility_s:
        return Cause.UNSETTLED
    return Cause.LATE if before.entry_id in evidence.timed_out else Cause.UNEXPLAINED


def duplicates(evidence: Evidence, starts: list[SecondStart]) -> list[Duplicate]:
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
