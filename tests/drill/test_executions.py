"""Why jobs were started again, on handmade rows."""

import pytest

from reaper.drill.evidence import Evidence
from reaper.drill.executions import Cause, Duplicate, SecondStart, duplicates, second_starts
from reaper.drill.records import Effect, InjectedFault, Line
from tests.drill.rows import (
    VISIBILITY_MS,
    done,
    evidence,
    job,
    process,
    recovered,
    redis_pause,
    start,
)


def _causes(rows: Evidence) -> list[Cause]:
    return [start.cause for start in second_starts(rows)]


def test_a_job_started_once_has_no_second_start() -> None:
    assert second_starts(evidence([job(1)], lines=[start(1, 7, 1.1), done(1, 7, 1.2)], processes=[process(7)])) == []


def test_a_killed_worker_is_the_cause_and_the_time_counts_from_its_end() -> None:
    rows = evidence(
        [job(1)],
        lines=[start(1, 7, 1.1), start(1, 8, 3.5, copy=1), done(1, 8, 3.6, copy=1)],
        processes=[process(7, ended_at=1.5, killed=True), process(8)],
    )
    assert second_starts(rows) == [
        SecondStart(
            n=1, job="1000-0", start=2, cause=Cause.WORKER_KILLED, worker="w8-1", previous_worker="w7-1", recovery_s=2.0
        )
    ]


def test_a_poison_job_is_the_cause_for_itself_and_for_its_neighbours() -> None:
    rows = evidence(
        [job(1), job(2, poison=True)],
        lines=[start(1, 7, 2.0), start(2, 7, 2.1), start(1, 8, 4.2, copy=1), start(2, 8, 4.3, copy=1)],
        processes=[process(7, ended_at=2.1), process(8, ended_at=4.4)],
    )
    assert _causes(rows) == [Cause.POISON, Cause.POISON]


def test_a_worker_that_ended_for_another_reason_is_told_apart() -> None:
    rows = evidence(
        [job(1)],
        lines=[start(1, 7, 1.1), start(1, 8, 3.5, copy=1)],
        processes=[process(7, ended_at=1.5, code=1), process(8)],
    )
    assert _causes(rows) == [Cause.WORKER_ENDED]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([start(1, 7, 1.0), start(1, 8, 3.0, copy=1), done(1, 7, 3.5)], Cause.SLOW),
        ([start(1, 7, 1.0), start(1, 8, 3.0, copy=1)], Cause.SLOW),
        ([start(1, 7, 1.0), done(1, 7, 1.1), start(1, 8, 3.0, copy=1)], Cause.UNSETTLED),
        ([start(1, 7, 1.0), start(1, 8, 1.5, copy=1)], Cause.UNEXPLAINED),
    ],
)
def test_while_the_worker_lives_the_cause_is_how_long_it_took(lines: list[Line], cause: Cause) -> None:
    rows = evidence([job(1)], lines=lines, processes=[process(7), process(8)])
    assert _causes(rows) == [cause]
    assert second_starts(rows)[0].recovery_s is None


def test_what_the_server_found_overdue_was_late_though_its_execution_was_short() -> None:
    lines = [start(1, 7, 1.0), start(1, 8, 1.5, copy=1)]
    early = recovered(1, 3.2, idle_ms=VISIBILITY_MS - 1)
    for events, cause in (([recovered(1, 3.2)], Cause.LATE), ([early], Cause.UNEXPLAINED)):
        rows = evidence([job(1)], lines=lines, events=events, processes=[process(7), process(8)])
        assert _causes(rows) == [cause]


def test_two_copies_of_one_job_are_not_explained_by_the_crash_before_them() -> None:
    rows = evidence(
        [job(1)],
        lines=[start(1, 7, 1.0), start(1, 8, 3.5, copy=1), start(1, 9, 3.6, copy=2)],
        processes=[process(7, ended_at=1.5, killed=True), process(8), process(9)],
    )
    assert _causes(rows) == [Cause.WORKER_KILLED, Cause.UNEXPLAINED]


def test_a_process_id_that_was_used_again_is_told_by_the_time() -> None:
    earlier, later = process(7, ended_at=1.5, killed=True), process(7)
    later.name, later.started_at = "w9-1", 2.0
    rows = evidence([job(1)], lines=[start(1, 7, 1.0), start(1, 7, 3.5, copy=1)], processes=[earlier, later])
    assert [(start.previous_worker, start.worker) for start in second_starts(rows)] == [("w7-1", "w9-1")]


def test_work_completed_twice_is_a_duplicate_with_its_cause() -> None:
    rows = evidence(
        [job(1), job(2)],
        lines=[
            start(1, 7, 1.0), done(1, 7, 1.4), start(1, 8, 3.5, copy=1), done(1, 8, 3.6, copy=1),
            start(2, 8, 2.0), done(2, 8, 2.1),
        ],
        processes=[process(7, ended_at=1.5, killed=True), process(8)],
    )  # fmt: skip
    assert duplicates(rows, second_starts(rows)) == [Duplicate(n=1, job="1000-0", times=2, cause=Cause.WORKER_KILLED)]


def test_while_redis_stands_still_nobody_is_to_blame() -> None:
    lines = [start(1, 7, 1.0), start(1, 8, 3.0, copy=1), done(1, 7, 3.5)]
    for fault, cause in (
        (redis_pause(1.5, 2.5), Cause.REDIS_PAUSED),
        (redis_pause(1.5, None), Cause.REDIS_PAUSED),
        (redis_pause(3.2, 9.0), Cause.SLOW),
        (redis_pause(0.1, 0.9), Cause.SLOW),
    ):
        rows = evidence([job(1)], lines=lines, processes=[process(7), process(8)], faults=[fault])
        assert _causes(rows) == [cause]


def test_what_ran_across_a_failover_runs_again() -> None:
    lines = [start(1, 7, 1.0), done(1, 7, 1.4), start(1, 8, 1.9)]
    for at, until, cause in (
        (1.5, 1.8, Cause.FORGOTTEN),
        (0.2, 0.9, Cause.UNEXPLAINED),
        (2.0, 2.5, Cause.UNEXPLAINED),
    ):
        fault = InjectedFault("kill-master", "port 7", at, until=until, effect=Effect.AWAY | Effect.FORGETS)
        rows = evidence([job(1)], lines=lines, processes=[process(7), process(8)], faults=[fault])
        assert _causes(rows) == [cause]


def test_a_job_that_ran_too_long_was_slow() -> None:
    lines = [start(1, 7, 1.0), start(1, 8, 3.1), done(1, 8, 3.2), done(1, 7, 3.3)]
    assert _causes(evidence([job(1)], lines=lines, processes=[process(7), process(8)])) == [Cause.SLOW]
