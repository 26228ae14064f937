"""The accounts, on handmade rows."""

from dataclasses import replace

import pytest

from reaper.drill.faults import FaultKind
from reaper.drill.ledger import Fate, Ledger, Loss, LossCause, build_ledger, objections
from reaper.drill.records import DeadJob, InjectedFault, MissedFault, Remains, Role, Step
from reaper.drill.spread import Spread, spread
from tests.drill.rows import (
    acked,
    done,
    entry,
    event,
    evidence,
    job,
    line,
    process,
    recovered,
    redis_pause,
    start,
    stopped,
)


def _fates(ledger: Ledger) -> dict[Fate, int]:
    return {fate: count for fate, count in ledger.fates.items() if count}


def test_a_job_with_a_settlement_is_settled() -> None:
    ledger = build_ledger(evidence([job(1)], events=[acked(1, 1.5)]))
    assert _fates(ledger) == {Fate.SETTLED: 1}
    assert ledger.balanced


def test_a_job_that_a_bare_worker_completed_is_settled_once_nothing_of_it_is_left() -> None:
    lines = [start(1, 7, 1.1), done(1, 7, 1.2)]
    assert _fates(build_ledger(evidence([job(1)], lines=lines))) == {Fate.SETTLED: 1}
    still_pending = evidence([job(1)], lines=lines, remains=Remains(pending=(1,)))
    assert _fates(build_ledger(still_pending)) == {Fate.PENDING: 1}


def test_a_job_without_a_trace_is_lost() -> None:
    ledger = build_ledger(evidence([job(1), job(2)], lines=[start(1, 7, 1.1)], events=[acked(2, 2.5)]))
    assert (ledger.lost, ledger.settled, ledger.balanced) == (1, 1, False)


def test_a_job_that_its_worker_gave_up_is_lost_and_the_cause_is_told() -> None:
    lines = [start(1, 7, 1.1), start(1, 8, 3.2), line(Step.DROPPED, 1, 9, 5.3), line(Step.DROPPED, 3, 9, 5.4)]
    jobs = [job(1), job(2, poison=True), job(3)]
    ledger = build_ledger(evidence(jobs, lines=[*lines, start(3, 7, 3.1), done(3, 7, 5.0)]))
    assert ledger.losses == (
        Loss(1, "1000-0", LossCause.DROPPED, starts=2, poison=False),
        Loss(2, "2000-0", LossCause.UNKNOWN, starts=0, poison=True),
    )
    assert (ledger.lost, ledger.dropped, ledger.settled, ledger.balanced) == (2, 1, 1, False)


def test_what_redis_forgot_because_of_a_fault_is_told_from_what_we_lost() -> None:
    jobs = [job(1), job(2), job(3, poison=True), job(4)]
    fault = InjectedFault("kill-master", "port 7", 4.0, until=5.0, jobs=(2, 3, 4))
    rows = evidence(jobs, lines=[start(4, 7, 4.1), done(4, 7, 4.2)], events=[acked(1, 1.5)], faults=[fault])
    ledger = build_ledger(rows)
    assert [(loss.n, loss.cause) for loss in ledger.losses] == [(2, LossCause.FORGOTTEN), (3, LossCause.FORGOTTEN)]
    assert (ledger.lost, ledger.forgotten, ledger.settled, ledger.balanced) == (2, 2, 2, True)
    assert objections(ledger, []) == []
    lost = build_ledger(replace(rows, faults=[replace(fault, jobs=(3, 4))]))
    assert (lost.lost, lost.forgotten, lost.balanced) == (2, 1, False)
    assert objections(lost, []) == ["1 job is lost"]


def test_claims_of_published_workers_are_recoveries_timed_by_the_delivery_before() -> None:
    lines = [
        line(Step.READ, 1, 7, 1.0),
        line(Step.CLAIM, 1, 8, 3.25),
        line(Step.CLAIM, 1, 9, 5.249),  # by clocks of several processes; the server has seen to the visibility timeout
        line(Step.CLAIM, 2, 9, 5.0),  # its reader died before it could write that down
    ]
    ledger = build_ledger(evidence([job(1), job(2)], lines=lines))
    assert ledger.recovered == 3
    assert ledger.overshoot_s == Spread(p50=0.0, p99=0.25, max=0.25)


def test_every_place_in_redis_is_told_apart() -> None:
    ledger = build_ledger(
        evidence(
            [job(n) for n in range(1, 5)],
            events=[recovered(4, 3.0, name="suspected")],
            remains=Remains(ready=(1,), pending=(2,), parked=1, dead=(DeadJob(3, "3000-0", "max_deliveries"),)),
        )
    )
    assert _fates(ledger) == {Fate.READY: 1, Fate.PENDING: 1, Fate.DEAD_LETTERED: 1, Fate.PARKED: 1}
    assert (ledger.stuck, ledger.balanced) == (3, False)


def test_a_suspect_that_was_released_is_parked_no_more() -> None:
    released = event("recovered", 1, 4.0, entry="1000-0", new_entry="4000-0", reason="suspect")
    rows = [recovered(1, 3.0, name="suspected"), released, acked(1, 4.5, copy=1)]
    ledger = build_ledger(evidence([job(1), job(2)], events=[*rows, recovered(2, 5.0, name="suspected")],
                                   remains=Remains(parked=1)))  # fmt: skip
    assert _fates(ledger) == {Fate.SETTLED: 1, Fate.PARKED: 1}


@pytest.mark.parametrize("name", ["handed_back", "nacked"])
def test_a_suspect_that_was_given_back_is_parked_again_and_not_lost(name: str) -> None:
    released = event("recovered", 1, 4.0, entry="1000-0", new_entry="4000-0", reason="suspect")
    given_back = event(name, 1, 5.0, entry="4000-0", due_ms=2**52)
    rows = [recovered(1, 3.0, name="suspected"), released, given_back]
    parked = build_ledger(evidence([job(1)], events=rows, remains=Remains(parked=1)))
    assert _fates(parked) == {Fate.PARKED: 1}
    assert (parked.lost, parked.stuck) == (0, 1)
    again = event("recovered", 1, 6.0, entry="4000-0", new_entry="6000-0", reason="suspect")
    other = recovered(2, 5.0, name="suspected")
    settled = build_ledger(
        evidence([job(1), job(2)], events=[*rows, other, again, acked(1, 7.0, copy=2)], remains=Remains(parked=1))
    )
    assert _fates(settled) == {Fate.SETTLED: 1, Fate.PARKED: 1}


def test_a_delayed_retry_that_is_found_elsewhere_is_in_one_place() -> None:
    rows = [event("nacked", n, 5.0, entry=entry(n), due_ms=6_000) for n in (1, 2, 3)]
    ledger = build_ledger(
        evidence(
            [job(n) for n in (1, 2, 3)], events=rows, lines=[done(2, 7, 6.0)], remains=Remains(parked=1, ready=(1,))
        )
    )
    assert (_fates(ledger), ledger.strays) == ({Fate.READY: 1, Fate.SETTLED: 1, Fate.PARKED: 1}, ())


def test_a_suspect_that_was_given_back_and_is_ready_is_not_parked() -> None:
    rows = [recovered(1, 3.0, name="suspected"), event("nacked", 1, 5.0, entry="4000-0", new_entry="5000-0")]
    ledger = build_ledger(evidence([job(1)], events=rows, remains=Remains(parked=1, ready=(1,))))
    assert (_fates(ledger), ledger.strays) == ({Fate.READY: 1}, ())


@pytest.mark.parametrize(
    "remains",
    [
        Remains(pending=(9,)),
        Remains(ready=(1,), pending=(1,)),
        Remains(ready=(1, 1)),
        Remains(dead=(DeadJob(1, "1000-0", "x"), DeadJob(1, "1000-0", "x"))),
    ],
    ids=["a job nobody enqueued", "a job in two places", "two copies ready", "two dead letters of one job"],
)
def test_what_should_not_be_where_it_is_spoils_the_balance(remains: Remains) -> None:
    ledger = build_ledger(evidence([job(1)], remains=remains))
    assert ledger.strays
    assert not ledger.balanced


def test_a_job_settled_twice_or_settled_and_given_up_spoils_the_balance() -> None:
    twice = build_ledger(evidence([job(1)], events=[acked(1, 1.5), acked(1, 1.6, copy=1)]))
    both = build_ledger(evidence([job(1)], events=[acked(1, 1.5)], remains=Remains(dead=(DeadJob(1, "1000-0", "x"),))))
    assert (twice.strays, twice.balanced) == ((1,), False)
    assert (both.strays, both.balanced) == ((1,), False)


def test_an_entry_that_two_leaders_recovered_is_named() -> None:
    ledger = build_ledger(evidence([job(1)], events=[recovered(1, 3.0), recovered(1, 3.1), acked(1, 4.0, copy=1)]))
    assert ledger.ended_twice == ("1000-0",)


def test_the_release_of_a_suspect_and_a_change_of_owner_end_no_entry() -> None:
    rows = [
        recovered(1, 3.0, name="suspected"),
        event("recovered", 1, 3.1, entry="1000-0", new_entry="3100-0", reason="suspect"),
        event("recovered", 2, 3.2, entry="2000-0", new_entry="2000-0", reason="restart", mode="adopt"),
        acked(2, 3.5),
        event("recovered", 3, 5.0, entry="3000-0", reason="visibility_timeout", mode="embedded"),
        acked(3, 5.5),
    ]
    ledger = build_ledger(evidence([job(1), job(2), job(3)], events=rows))
    assert ledger.ended_twice == ()
    assert ledger.recovered == 3


def test_a_payload_that_arrived_different_is_named() -> None:
    lines = [start(1, 7, 1.1), start(2, 7, 2.1, digest="other"), start(2, 7, 4.1, digest="other")]
    assert build_ledger(evidence([job(1), job(2)], lines=lines)).altered == (2,)


def test_overshoot_is_measured_past_the_visibility_timeout_and_a_negative_one_is_early() -> None:
    rows = [
        recovered(1, 3.5, idle_ms=2_010),
        recovered(2, 4.5, idle_ms=2_300, name="suspected"),
        recovered(3, 5.5, idle_ms=1_990),
        event("dead_lettered", 4, 9.0, entry="4000-0", idle_ms=2_000, visibility_ms=2_000),
        event("dead_lettered", 5, 9.0, entry="5000-0", reason="rejected"),  # by its worker: nothing was overdue
        recovered(6, 9.0, idle_ms=-1),  # nobody owned it: due at once
    ]
    ledger = build_ledger(evidence([job(n) for n in range(1, 7)], events=rows))
    assert ledger.overshoot_s == Spread(p50=0.0, p99=0.3, max=0.3)
    assert ledger.early_recoveries == 1
    assert ledger.recovered == 4


def test_a_recovery_sooner_than_any_delivery_was_due_is_early_whatever_its_idle_time_says() -> None:
    assert build_ledger(evidence([job(1)], events=[recovered(1, 2.9, idle_ms=5_000)])).early_recoveries == 1


def test_refused_writes_of_leaders_and_refused_settlements_are_counted_apart() -> None:
    rows = [event("refused", verb=verb) for verb in ("recover", "release_suspects", "ack", "nack", "ack")]
    ledger = build_ledger(evidence([], events=rows))
    assert (ledger.stale_writes_refused, ledger.settlements_refused) == (2, 3)


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
    assert ledger.unexpected_ends == (
        "w3-1 (exit code 1)",
        "w4-1 (exit code -9, after it was told to stop)",
    )


def test_a_plain_loop_may_end_when_redis_stands_still_and_ours_may_not() -> None:
    pause = redis_pause(5.0, 8.0)
    runs = [process(pid, ended_at=ended_at, code=1) for pid, ended_at in ((1, 7.0), (2, 17.0), (3, 19.0))]
    for run in runs:
        run.role = Role.BARE_WORKER
    ours = process(4, ended_at=7.0, code=1)
    assert build_ledger(evidence([], processes=[*runs, ours], faults=[pause])).unexpected_ends == (
        "w3-1 (exit code 1)",
        "w4-1 (exit code 1)",
    )


def test_a_process_of_ours_that_is_started_while_redis_stands_still_may_end_as_documented() -> None:
    ends = {1: (9.0, 2), 2: (9.0, 2), 3: (9.0, 1), 4: (4.0, 2), 5: (9.0, 2)}
    runs = [process(pid, ended_at=ended_at, code=code) for pid, (ended_at, code) in ends.items()]
    runs[4].role = Role.REAPER
    ledger = build_ledger(evidence([job(1)], lines=[start(1, 2, 4.0)], processes=runs, faults=[redis_pause(5.0, 8.0)]))
    assert ledger.unexpected_ends == (
        "w2-1 (exit code 2)",  # it had begun its work
        "w3-1 (exit code 1)",
        "w4-1 (exit code 2)",  # before Redis stood still
    )


def test_each_life_of_a_group_may_leave_a_dead_letter_of_a_job() -> None:
    letter = DeadJob(1, "1000-0", "max_deliveries")

    def ledger(letters: int, lives: int) -> Ledger:
        return build_ledger(evidence([job(1, poison=True)], remains=Remains(dead=(letter,) * letters), lives=lives))

    assert (ledger(2, 2).dead, ledger(2, 2).balanced, objections(ledger(2, 2), [])) == ((1,), True, [])
    assert (ledger(3, 2).dead, ledger(3, 2).balanced) == ((1, 1), False)
    assert (ledger(2, 1).dead, ledger(2, 1).balanced) == ((1, 1), False)


def test_spreads_are_figures_that_occurred() -> None:
    assert spread([]) == Spread(None, None, None)
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0)
    assert spread(float(n) for n in range(1, 201)) == Spread(100.0, 198.0, 200.0)


GOOD = Ledger(
    enqueued=2, fates=dict.fromkeys(Fate, 0) | {Fate.SETTLED: 1, Fate.DEAD_LETTERED: 1}, poison=(2,), dead=(2,)
)


def test_nothing_is_objected_to_a_good_ledger() -> None:
    assert objections(replace(GOOD, stale_writes_refused=1), list(FaultKind)) == []


@pytest.mark.parametrize(
    ("ledger", "objection"),
    [
        (replace(GOOD, fates={**GOOD.fates, Fate.LOST: 3}), "3 jobs are lost"),
        (replace(GOOD, fates={**GOOD.fates, Fate.PENDING: 3, Fate.PARKED: 1}), "4 jobs are stuck"),
        (replace(GOOD, strays=(8,)), "jobs that nobody enqueued, or in two places: 8"),
        (replace(GOOD, poison=(2, 3)), "poison jobs that are no dead letters: 3"),
        (replace(GOOD, dead=(2, 5)), "dead letters that were no poison: 5"),
        (replace(GOOD, dead=(2, 2)), "more than one dead letter of a job: 2, 2"),
        (replace(GOOD, altered=(1,)), "payloads that did not arrive as they were sent: 1"),
        (replace(GOOD, ended_twice=("1-0",)), "entries that were ended twice: 1-0"),
        (replace(GOOD, early_recoveries=2), "recovered before its time: 2 deliveries"),
        (
            replace(GOOD, unexpected_ends=("r1-1 (exit code 1)",)),
            "processes that ended by themselves: r1-1 (exit code 1)",
        ),
        (replace(GOOD, missed=(MissedFault("poison", "why"),)), "poison was left out: why"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(ledger: Ledger, objection: str) -> None:
    assert objections(ledger, []) == [objection]


def test_a_paused_leader_must_have_had_a_write_refused() -> None:
    assert objections(GOOD, [FaultKind.POISON]) == []
    (objection,) = objections(GOOD, [FaultKind.PAUSE_LEADER])
    assert "no stale write of it was refused" in objection


def test_faults_are_kept_as_they_were_injected() -> None:
    fault = InjectedFault("kill-worker", "w1-1", 2.0, in_flight=3)
    assert build_ledger(evidence([], faults=[fault])).faults == (fault,)


def test_a_job_may_be_settled_in_each_life_of_its_group_and_no_more() -> None:
    twice = [acked(1, 1.5), acked(1, 2.5)]
    for lives, balanced in ((1, False), (2, True)):
        ledger = build_ledger(evidence([job(1)], events=twice, lives=lives))
        assert (ledger.balanced, ledger.ended_twice == ()) == (balanced, balanced)
    ledger = build_ledger(evidence([job(1)], events=[*twice, acked(1, 3.5)], lives=2))
    assert (ledger.balanced, len(ledger.ended_twice)) == (False, 1)
