"""The accounts, on handmade rows. `test_promises` tries the judge itself."""

from dataclasses import replace

import pytest

from reaper.drill.executions import Cause, SecondStart
from reaper.drill.faults import FaultKind
from reaper.drill.figures import Spread, spread
from reaper.drill.ledger import Ledger, Loss, build_ledger, objections
from reaper.drill.promises import DeadJob, Fate, FinalState
from reaper.drill.records import InjectedFault, MissedFault, Role
from tests.drill.rows import (
    acked,
    done,
    entry,
    event,
    evidence,
    job,
    process,
    recovered,
    redis_pause,
    start,
    stopped,
)  # fmt: skip


def _fates(ledger: Ledger) -> dict[Fate, int]:
    return {fate: count for fate, count in ledger.fates.items() if count}


def _dead(n: int) -> DeadJob:
    return DeadJob(entry(n), 0, 3, "max_deliveries", job(n, poison=True).fields)


def test_a_job_with_a_settlement_or_that_a_bare_worker_completed_is_settled() -> None:
    rows = evidence(
        [job(1), job(2)], events=[acked(1, 1.5)], lines=[done(1, 7, 1.4), start(2, 7, 1.1), done(2, 7, 1.2)]
    )
    ledger = build_ledger(rows)
    assert (_fates(ledger), ledger.balanced) == ({Fate.SETTLED: 2}, True)
    pending = replace(rows, state=FinalState(pending=(entry(2),)))
    assert _fates(build_ledger(pending)) == {Fate.SETTLED: 1, Fate.PENDING: 1}


def test_a_job_without_a_trace_is_lost() -> None:
    lines = [start(1, 7, 1.1), done(2, 7, 2.1)]
    ledger = build_ledger(evidence([job(1), job(2)], lines=lines, events=[acked(2, 2.5)]))
    assert (_fates(ledger), ledger.balanced) == ({Fate.LOST: 1, Fate.SETTLED: 1}, False)
    assert [sentence.partition(" and")[0] for sentence in ledger.violations] == ["I1: job 1000-0 was enqueued"]


def test_a_job_that_its_worker_gave_up_is_lost() -> None:
    lines = [start(1, 7, 1.1), start(1, 8, 3.2), start(3, 7, 3.1), done(3, 7, 5.0)]
    ledger = build_ledger(evidence([job(1), job(2, poison=True), job(3)], lines=lines))
    assert ledger.losses == (
        Loss(1, "1000-0", starts=2, poison=False),
        Loss(2, "2000-0", starts=0, poison=True),
    )
    assert (ledger.fates[Fate.SETTLED], ledger.balanced) == (1, False)


def test_jobs_that_redis_forgot_because_of_a_fault_are_no_loss_of_ours() -> None:
    jobs = [job(1), job(2), job(3, poison=True), job(4)]
    fault = InjectedFault("kill-master", "port 7", 4.0, until=5.0, jobs=(2, 3, 4))
    rows = evidence(jobs, lines=[done(1, 7, 1.4), start(4, 7, 4.1), done(4, 7, 4.2)], faults=[fault])
    ledger = build_ledger(rows)
    assert [(loss.n, loss.forgotten) for loss in ledger.losses] == [(2, True), (3, True)]
    assert (_fates(ledger), ledger.balanced) == ({Fate.SETTLED: 2, Fate.LOST: 2}, True)
    assert objections(ledger, []) == []
    lost = build_ledger(replace(rows, faults=[replace(fault, jobs=(3, 4))]))
    assert (lost.forgotten, lost.balanced) == (1, False)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (FinalState(ready=("9000-0",)), "I1: job 9000-0 is in Redis and was not enqueued"),
        (FinalState(ready=(entry(1),), scheduled=(entry(1),)), "I1: job 1000-0 is in more than one place"),
        (FinalState(dead=(_dead(1),)), "I5: job 1000-0 is not a poison job, but became a dead letter"),
        (FinalState(dead=(_dead(2), _dead(2))), "I5: generation 0 of job 2000-0 has 2 dead letters"),
        (FinalState(), "I5: poison job 2000-0 is no dead letter"),
    ],
)
def test_a_job_that_is_not_where_it_should_be_spoils_the_balance(state: FinalState, sentence: str) -> None:
    rows = evidence([job(1), job(2, poison=True)], lines=[done(1, 7, 1.4)], state=state)
    ledger = build_ledger(rows)
    assert any(violation.startswith(sentence) for violation in ledger.violations), ledger.violations
    assert not ledger.balanced


def test_the_first_sentences_of_a_promise_stand_for_the_rest() -> None:
    ledger = build_ledger(evidence([job(n) for n in range(1, 9)]))
    assert len(ledger.violations) == 6
    assert ledger.violations[-1] == "I1: 3 more"


def test_where_the_group_was_deleted_a_job_may_be_settled_again() -> None:
    rows = evidence([job(1)], lines=[done(1, 7, 1.4)], events=[acked(1, 1.5), acked(1, 2.5)])
    assert not build_ledger(rows).balanced
    assert build_ledger(replace(rows, ends_kept=False)).balanced


def test_a_payload_that_arrived_different_is_named() -> None:
    lines = [start(1, 7, 1.1), start(2, 7, 2.1, digest="other"), start(2, 7, 4.1, digest="other")]
    assert build_ledger(evidence([job(1), job(2)], lines=lines)).altered == (2,)


def test_overshoot_is_measured_past_the_visibility_timeout_and_a_negative_one_is_early() -> None:
    rows = [
        recovered(1, 3.5, idle_ms=2_010),
        recovered(2, 4.5, idle_ms=2_300, name="quarantined"),
        event("recovered", 2, 4.6, entry="2000-0", new_entry="4600-0", reason="released"),
        recovered(3, 5.5, idle_ms=1_990),
        event("dead_lettered", 4, 9.0, entry="4000-0", idle_ms=2_000, visibility_ms=2_000),
        event("dead_lettered", 5, 9.0, entry="5000-0", reason="rejected"),  # by its worker: nothing was overdue
        recovered(6, 9.0, idle_ms=-1),  # nobody owned it: due at once
        recovered(7, 8.9, idle_ms=5_000),  # sooner than any delivery of it was due
    ]
    ledger = build_ledger(evidence([job(n) for n in range(1, 8)], events=rows))
    assert ledger.overshoot_s == Spread(p50=0.01, p99=3.0, max=3.0)
    assert (ledger.early_recoveries, ledger.recovered) == (2, 5)


def test_fenced_writes_of_holders_and_rejected_settlements_are_counted_apart() -> None:
    rows = [event("fenced", verb=verb) for verb in ("recover", "move_due")]
    rows += [event("rejected", verb=verb) for verb in ("ack", "nack", "ack")]
    ledger = build_ledger(evidence([], events=rows))
    assert (ledger.writes_fenced, ledger.settlements_rejected) == (2, 3)


def test_processes_that_ended_by_themselves_are_named() -> None:
    runs = [
        stopped(1),
        process(2, ended_at=5.0, killed=True),
        process(3, ended_at=5.0, code=1),
        stopped(4, code=-9),
        process(5),
        process(6, ended_at=6.0),
    ]
    ledger = build_ledger(evidence([job(1, poison=True)], lines=[start(1, 6, 5.9)], processes=runs))
    assert ledger.unexpected_ends == ("w3-1 (exit code 1)", "w4-1 (exit code -9, after a request to stop)")


def test_a_plain_loop_may_end_when_redis_stands_still_and_ours_may_not() -> None:
    runs = [process(pid, ended_at=ended_at, code=1) for pid, ended_at in ((1, 7.0), (2, 17.0), (3, 19.0))]
    for run in runs:
        run.role = Role.BARE_WORKER
    rows = evidence([], processes=[*runs, process(4, ended_at=7.0, code=1)], faults=[redis_pause(5.0, 8.0)])
    assert build_ledger(rows).unexpected_ends == ("w3-1 (exit code 1)", "w4-1 (exit code 1)")


def test_a_process_of_ours_that_is_started_while_redis_stands_still_may_end_as_documented() -> None:
    ends = {1: (9.0, 3), 2: (9.0, 3), 3: (9.0, 1), 4: (4.0, 3), 5: (9.0, 3)}
    runs = [process(pid, ended_at=ended_at, code=code) for pid, (ended_at, code) in ends.items()]
    runs[4].role = Role.REAPER
    ledger = build_ledger(evidence([job(1)], lines=[start(1, 2, 4.0)], processes=runs, faults=[redis_pause(5.0, 8.0)]))
    assert ledger.unexpected_ends == (
        "w2-1 (exit code 3)",  # it had begun its work
        "w3-1 (exit code 1)",
        "w4-1 (exit code 3)",  # before Redis stood still
    )


def test_spreads_are_figures_that_occurred() -> None:
    assert spread([]) == Spread(None, None, None)
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0)
    assert spread(float(n) for n in range(1, 201)) == Spread(100.0, 198.0, 200.0)


GOOD = Ledger(enqueued=2, fates=dict.fromkeys(Fate, 0) | {Fate.SETTLED: 1, Fate.DEAD_LETTERED: 1}, poison=1)
UNEXPLAINED = SecondStart(1, "1-0", 2, Cause.UNEXPLAINED, "w2-1", "w1-1", None)


@pytest.mark.parametrize(
    ("ledger", "objection"),
    [
        (replace(GOOD, violations=("I1: job 1-0 is lost",)), "I1: job 1-0 is lost"),
        (replace(GOOD, fates={**GOOD.fates, Fate.PENDING: 3, Fate.SCHEDULED: 1}), "4 jobs are stuck"),
        (replace(GOOD, altered=(1,)), "payloads that did not arrive as they were sent: 1"),
        (replace(GOOD, second_starts=(UNEXPLAINED,)), "jobs started again for no reason: 1"),
        (replace(GOOD, unexpected_ends=("r1-1 (code 1)",)), "processes that ended by themselves: r1-1 (code 1)"),
        (replace(GOOD, missed=(MissedFault("poison", "why"),)), "poison was left out: why"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(ledger: Ledger, objection: str) -> None:
    assert objections(ledger, []) == [objection]


def test_a_holder_that_was_to_be_paused_must_have_had_a_write_fenced() -> None:
    assert objections(replace(GOOD, writes_fenced=1), list(FaultKind)) == []
    (objection,) = objections(GOOD, [FaultKind.PAUSE_HOLDER])
    assert "no write of it was fenced" in objection
