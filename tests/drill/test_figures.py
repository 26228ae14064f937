"""Throughput and latency of the jobs that no fault hit, on handmade rows."""

from typing import Any

from reaper.drill.evidence import Evidence
from reaper.drill.executions import second_starts
from reaper.drill.figures import Healthy, Spread, fault_windows, healthy_jobs
from reaper.drill.records import Enqueued, InjectedFault, Line
from tests.drill.rows import done, event, evidence, job, process, start


def _healthy(jobs: list[Enqueued], lines: list[Line], **rows: Any) -> Healthy:
    found = evidence(jobs, lines=lines, **rows)
    return healthy_jobs(found, second_starts(found))


def _windows(*faults: InjectedFault) -> list[tuple[float, float]]:
    return fault_windows(evidence([], faults=faults))


def test_latency_counts_to_the_first_start_and_throughput_to_the_last_completion() -> None:
    lines = [start(1, 7, 1.5), done(1, 7, 2.0), start(2, 7, 2.25), done(2, 7, 5.0), done(2, 7, 9.0)]
    expected = Healthy(2, seconds=4.0, latency_s=Spread(0.25, 0.5, 0.5), throughput_per_s=0.5)
    assert _healthy([job(1), job(2)], lines) == expected


def _hit_by_a_kill() -> Evidence:
    """Job 1 ran when its process died, job 2 had been delivered to it, job 3 was taken from a living one."""
    return evidence(
        [job(1), job(2), job(3), job(4, poison=True)],
        lines=[
            start(1, 7, 1.1), start(1, 8, 4.2), done(1, 8, 4.3),
            start(2, 8, 5.0), done(2, 8, 5.1),
            start(3, 8, 5.5), start(3, 9, 5.6), done(3, 8, 5.7), done(3, 9, 5.8), start(4, 8, 6.0),
        ],
        events=[event("recovered", 2, 4.1, entry="2000-0", new_entry="4100-0", consumer=process(7).name)],
        processes=[process(7, ended_at=3.0, killed=True), process(8), process(9)],
    )  # fmt: skip


def test_what_a_process_held_when_it_died_is_not_healthy_started_or_not() -> None:
    rows = _hit_by_a_kill()
    healthy = healthy_jobs(rows, second_starts(rows))
    assert (healthy.jobs, healthy.latency_s) == (1, Spread(2.5, 2.5, 2.5))


def test_a_fault_takes_two_visibility_timeouts_from_its_end_and_poison_as_many_as_it_has_deliveries() -> None:
    assert _windows(InjectedFault("kill-worker", "w1-1", 10.0)) == [(10.0, 14.0)]
    assert _windows(InjectedFault("pause-redis", "process 1", 10.0, until=15.0)) == [(10.0, 19.0)]
    assert _windows(InjectedFault("poison", "job 9", 10.0)) == [(10.0, 18.0)]
    assert _windows(InjectedFault("long-jobs", "jobs 1 to 9", 10.0)) == []
