"""The causes of second starts, and jobs that were completed twice. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from reaper.drill.evidence import Evidence
from reaper.drill.records import Effect, Line, ProcessRun, Step


class Cause(StrEnum):
    """Why a job was started again."""

    WORKER_KILLED = "worker_killed"
    """A fault killed the process that ran it."""
    POISON = "poison"
    """A poison job killed that process. It may be the job itself."""
    WORKER_ENDED = "worker_ended"
    """That process ended for another reason."""
    REDIS_PAUSED = "redis_paused"
    """Redis did not answer, or took no writes, while it ran or before it could be settled."""
    FORGOTTEN = "forgotten"
    """Redis forgot meanwhile that it ran, or that it was settled."""
    SLOW = "slow"
    """It ran longer than the visibility timeout."""
    UNSETTLED = "unsettled"
    """It was done in time, and its settlement did not come in time."""
    LATE = "late"
    """Its process did not run or extend it for a visibility timeout of the server's clock."""
    UNEXPLAINED = "unexplained"
    """It was redelivered while a worker ran it, for no known reason."""


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
    """Seconds from the end of the process that ran it before. None if that process lived on."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A job whose work was completed ``times`` times."""

    n: int
    job: str
    times: int
    cause: Cause


def second_starts(evidence: Evidence) -> list[SecondStart]:
    """Return every start of a job after its first, with its cause."""
    done, found = evidence.lines_of(Step.DONE), []
    for n, lines in evidence.lines_of(Step.START).items():
        for start, (before, line) in enumerate(pairwise(lines), start=2):
            previous, worker = evidence.process_of(before), evidence.process_of(line)
            ended_at = previous.ended_at if previous else None
            if previous and ended_at is not None and ended_at <= line.at:
                cause, ended_at = _end_of(previous, evidence), previous.killed_at or ended_at
            else:
                cause, ended_at = _cause_in_life(evidence, before, line, done.get(n, ())), None
            found.append(
                SecondStart(
                    n=n,
                    job=evidence.job_id(n),
                    start=start,
                    cause=cause,
                    worker=worker.name if worker else "?",
                    previous_worker=previous.name if previous else "?",
                    recovery_s=None if ended_at is None else line.at - ended_at,
                )
            )
    return found


def _end_of(previous: ProcessRun, evidence: Evidence) -> Cause:
    if previous.killed_at is not None:
        return Cause.WORKER_KILLED
    return Cause.POISON if previous.name in evidence.poisoned else Cause.WORKER_ENDED


def _cause_in_life(evidence: Evidence, before: Line, line: Line, done: Sequence[Line]) -> Cause:
    """Return why ``line`` followed ``before`` although the process of ``before`` lived on."""
    if evidence.redis_was(Effect.FORGETS, before.at, line.at):
        return Cause.FORGOTTEN
    if evidence.redis_was(Effect.AWAY, before.at, line.at):
        return Cause.REDIS_PAUSED
    same = (end for end in done if (end.pid, end.entry_id) == (before.pid, before.entry_id))
    ran_until = next((end.at for end in same if end.at >= before.at), line.at)
    if ran_until - before.at >= evidence.visibility_s:
        return Cause.SLOW
    if line.at - before.at >= evidence.visibility_s:
        return Cause.UNSETTLED
    return Cause.LATE if before.entry_id in evidence.timed_out else Cause.UNEXPLAINED


def duplicates(evidence: Evidence, starts: Sequence[SecondStart]) -> list[Duplicate]:
    """Return the jobs whose work was completed more than once, each with the cause of its last second start."""
    causes, done = {start.n: start.cause for start in starts}, evidence.lines_of(Step.DONE)
    twice = [(n, len(lines)) for n, lines in done.items() if len(lines) > 1]
    return [Duplicate(n, evidence.job_id(n), times, causes.get(n, Cause.UNEXPLAINED)) for n, times in twice]
