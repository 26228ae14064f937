"""Who led when, on handmade journals."""

from reaper.drill.records import InjectedFault
from reaper.drill.terms import Holding, terms
from tests.drill.rows import event, evidence
from workers.protocol.events import LifecycleEvent


def _acquired(token: int, at: float) -> LifecycleEvent:
    return event("lease_acquired", at=at, holder=f"r{token}", token=token)


def test_a_term_ends_by_what_was_done_to_its_holder_by_what_it_says_or_by_the_next() -> None:
    journal = [
        _acquired(1, 1.0),
        _acquired(2, 4.0),
        event("lease_lost", at=6.2, holder="r2", token=2, reason="stale"),
        _acquired(3, 6.0),
        event("lease_released", at=8.0, holder="r3", token=3, reason="released"),
        _acquired(4, 8.1),
        event("lease_lost", at=9.0, holder="r4", token=4, reason="not_ours"),
        _acquired(5, 9.1),
        _acquired(6, 12.0),
    ]
    faults = [
        InjectedFault("kill-leader", "r1-1", 2.5, holder="r1"),
        InjectedFault("pause-leader", "r2-1", 4.5, holder="r2", until=6.1),
    ]
    assert terms(evidence([], events=journal, faults=faults)) == [
        Holding("r1", 1, 1.0, 2.5, "killed"),
        Holding("r2", 2, 4.0, 6.0, "paused"),
        Holding("r3", 3, 6.0, 8.0, "released"),
        Holding("r4", 4, 8.1, 9.0, "not_ours"),
        Holding("r5", 5, 9.1, 12.0, "expired"),
        Holding("r6", 6, 12.0, None, "running"),
    ]


def test_the_term_of_the_leader_ends_when_all_reapers_are_killed() -> None:
    faults = [InjectedFault("kill-reapers", "r1-1, r2-1", 2.5, holder="r1"), InjectedFault("kill-workers", "w1-1", 1.5)]
    (term,) = terms(evidence([], events=[_acquired(1, 1.0)], faults=faults))
    assert (term.until, term.ended) == (2.5, "killed")


def test_instants_of_the_server_are_told_in_the_time_of_the_drill() -> None:
    (term,) = terms(evidence([], events=[_acquired(1, 100.0)], clock_ahead_s=40.0))
    assert term.since == 60.0
