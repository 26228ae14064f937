"""The verdict: pure, from a snapshot."""

from dataclasses import replace
from typing import Any

import pytest

from reaper.operations.judgement import RECENT_MS, Problem, ProblemKind, judge, notes
from reaper.operations.state import Count, GroupState, SilentConsumer, Snapshot, SourceState
from reaper.replicas import FOLLOWER, GroupReport, Replica
from reaper.settings import observers_of
from tests.operator.heartbeats import a_replica, a_report
from workers.protocol.calls.beat import RecoveryWait

NOW = 1_766_000_000_000
ALL_WELL = a_report(last_scan_ms=NOW - 100)


def a_snapshot(*replicas: Replica, report: GroupReport | None = ALL_WELL, **group: Any) -> Snapshot:
    """Return a snapshot that is healthy: alice leads, bob follows, orders/billing is watched."""
    reports = (report,) if report else ()
    replicas = replicas or (a_replica("alice", *reports, at_ms=NOW), a_replica("bob", at_ms=NOW, role=FOLLOWER))
    usual: dict[str, Any] = {
        "stream": "orders",
        "group": "billing",
        "visibility_ms": 30_000,
        "main": SourceState(exists=True),
        "report": report,
        "reported_ms": NOW,
    }
    return Snapshot(
        now_ms=NOW,
        namespace="reaper",
        server="Redis 7.0.15",
        holder="alice-1-abc.nonce",
        lease_left_ms=5_000,
        token=7,
        replicas=replicas,
        groups=(GroupState(**(usual | group)),),
    )


def _troubles(snapshot: Snapshot) -> list[str]:
    return [problem.trouble for problem in judge(snapshot)]


def test_a_leader_that_watches_and_scans_is_healthy() -> None:
    assert judge(a_snapshot()) == ()
    assert notes(a_snapshot()) == ()


def test_without_any_live_replica_the_service_is_degraded() -> None:
    gone = a_replica("alice", ALL_WELL, at_ms=NOW - 15_001)
    assert _troubles(a_snapshot(gone, report=None)) == [ProblemKind.NO_REPLICA]


@pytest.mark.parametrize(
    ("namespace", "start"), [("reaper", "`reaper run`"), (observers_of("reaper"), "`reaper run --observe`")]
)
def test_who_looks_for_observers_is_told_how_to_start_one(namespace: str, start: str) -> None:
    nobody = replace(a_snapshot(a_replica("gone", at_ms=0), report=None), namespace=namespace)
    assert [start in problem.text for problem in judge(nobody)] == [True]


def test_without_a_replica_groups_that_their_workers_recover_are_well() -> None:
    gone = a_replica("alice", ALL_WELL, at_ms=NOW - 15_001)
    theirs = a_snapshot(gone, report=None, mode="embedded")
    assert judge(theirs) == ()
    assert "orders/billing: its workers recover stalled jobs (mode embedded)" in notes(theirs)
    assert _troubles(a_snapshot(gone, report=None, mode="reaper")) == [ProblemKind.NO_REPLICA]


def test_groups_that_nobody_has_served_yet_are_well_beside_an_observer() -> None:
    olga = a_replica("olga", ALL_WELL, at_ms=NOW, observe=True)
    alone = replace(a_snapshot(a_replica("gone", at_ms=0), report=None), observers=(olga,))
    assert judge(alone) == ()
    assert any("olga-1-abc observes. `reaper status --observe` shows" in note for note in notes(alone))
    served = replace(a_snapshot(a_replica("gone", at_ms=0), report=None, mode="reaper"), observers=(olga,))
    assert _troubles(served) == [ProblemKind.NO_REPLICA], "whoever served them is gone"
    assert _troubles(replace(alone, groups=())) == [ProblemKind.NO_REPLICA, ProblemKind.NO_GROUPS]


def test_false_alarms_of_an_observer_are_noted_with_the_timeout_that_would_have_had_none() -> None:
    report = replace(ALL_WELL, recovered=45, false_alarms=22, slowest_ms=61_040)
    (note,) = notes(a_snapshot(report=report))
    assert note.startswith("orders/billing: of 45 deliveries that would have been recovered, 22 were settled by their")
    assert note.endswith("A visibility timeout above 61.0 s avoids these false recoveries.")


def test_a_replica_is_live_for_three_heartbeats() -> None:
    assert judge(a_snapshot(a_replica("alice", ALL_WELL, at_ms=NOW - 15_000))) == ()


def test_a_heartbeat_of_the_future_is_none_the_servers_clock_was_set_back() -> None:
    assert _troubles(a_snapshot(a_replica("alice", ALL_WELL, at_ms=NOW + 3_600_000))) == [ProblemKind.NO_REPLICA]


def test_what_embedded_workers_leave_lying_degrades_once_two_timeouts_are_over() -> None:
    def idle_for(ms: int, **more: Any) -> GroupState:
        return a_snapshot(
            report=None, mode="embedded", main=SourceState(exists=True, pending=1, oldest_pending_ms=ms), **more
        ).groups[0]

    def troubles(group: GroupState) -> list[str]:
        gone = a_replica("alice", at_ms=NOW - 15_001)
        return _troubles(replace(a_snapshot(gone, report=None), groups=(group,)))

    assert troubles(idle_for(62_000)) == []
    assert troubles(idle_for(62_001)) == [ProblemKind.OVERDUE]
    assert troubles(idle_for(62_001, recovery_wait=RecoveryWait(10_000, 60_000))) == [], "recovery waits"


NO_LEASE = "no leader: no replica holds the lease. If this lasts, see the logs of the replicas and `reaper doctor`."


def test_followers_without_a_leader_are_degraded() -> None:
    snapshot = a_snapshot(a_replica("bob", at_ms=NOW, role=FOLLOWER), report=None)
    assert [problem.text for problem in judge(snapshot)] == [
        "no leader: the lease is held by alice-1-abc.nonce, which is not alive."
    ]
    assert [problem.text for problem in judge(replace(snapshot, holder=""))] == [NO_LEASE]


def test_who_led_and_has_lost_the_lease_is_no_leader_though_it_could_not_register_that() -> None:
    snapshot = replace(a_snapshot(), holder="", lease_left_ms=0)
    assert snapshot.leader is None
    assert [problem.text for problem in judge(snapshot)] == [NO_LEASE]


def test_the_holder_of_the_lease_is_the_leader_before_its_heartbeat_says_so() -> None:
    new, old = a_replica("alice", at_ms=NOW, role=FOLLOWER), a_replica("bob", at_ms=NOW, token=6)
    leader = a_snapshot(new, old).leader
    assert leader is not None
    assert leader.name == "alice"


def test_a_pair_that_the_leader_does_not_watch_is_named() -> None:
    snapshot = a_snapshot(report=None)
    assert judge(snapshot) == (
        Problem(
            ProblemKind.UNSERVED,
            "orders/billing",
            "the leader does not watch this group. Add it to the settings of the replicas.",
        ),
    )


def test_without_any_group_there_is_nothing_to_watch() -> None:
    assert _troubles(replace(a_snapshot(), groups=())) == [ProblemKind.NO_GROUPS]


@pytest.mark.parametrize(
    ("found", "trouble", "says"),
    [
        ({"refusal": "several_groups"}, ProblemKind.REFUSED, "Set redelivery = 'retry-stream'"),
        ({"refusal": "explicit_ids"}, ProblemKind.REFUSED, "Set redelivery = 'retry-stream'"),
        ({"refusal": "foreign_namespace"}, ProblemKind.REFUSED, "another namespace"),
        ({"refusal": "something_new"}, ProblemKind.REFUSED, "something_new"),
        ({"held": 2}, ProblemKind.HELD, "2 overdue deliveries cannot be redelivered"),
        ({"error": "scan: NOPERM"}, ProblemKind.ERROR, "scan: NOPERM"),
        ({"late_ms": 32_001}, ProblemKind.OVERDUE, "recovery is 32 s late"),
    ],
)
def test_what_the_leader_reports_degrades(found: dict[str, Any], trouble: ProblemKind, says: str) -> None:
    (problem,) = judge(a_snapshot(report=replace(ALL_WELL, **found)))
    assert (problem.trouble, problem.group) == (trouble, "orders/billing")
    assert says in problem.text


@pytest.mark.parametrize(
    ("group", "trouble", "says"),
    [
        ({"paused": True}, ProblemKind.PAUSED, "Run `reaper groups resume orders/billing` to resume it."),
        ({"mismatches": ("max_deliveries differ",)}, ProblemKind.MISMATCH, "max_deliveries differ"),
        ({"main": SourceState(exists=False)}, ProblemKind.REFUSED, "the stream or its group does not exist"),
    ],
)
def test_what_redis_says_degrades(group: dict[str, Any], trouble: ProblemKind, says: str) -> None:
    (problem,) = judge(a_snapshot(**group))
    assert (problem.trouble, problem.group) == (trouble, "orders/billing")
    assert says in problem.text


def test_a_missing_group_is_told_once() -> None:
    snapshot = a_snapshot(report=replace(ALL_WELL, refusal="no_group"), main=SourceState(exists=False))
    assert _troubles(snapshot) == [ProblemKind.REFUSED]


def test_a_scan_is_too_old_after_three_missed_ones_and_a_second() -> None:
    assert judge(a_snapshot(report=replace(ALL_WELL, last_scan_ms=NOW - 4_000))) == ()
    assert _troubles(a_snapshot(report=replace(ALL_WELL, last_scan_ms=NOW - 4_001))) == [ProblemKind.SCAN_TOO_OLD]


def test_a_long_pending_entries_list_may_take_longer_to_scan() -> None:
    long = replace(ALL_WELL, last_scan_ms=NOW - 50_000, scan_entries=1_000_000)
    assert judge(a_snapshot(report=long)) == ()


def test_the_first_scan_of_a_term_is_a_note_and_no_problem() -> None:
    snapshot = a_snapshot(report=replace(ALL_WELL, last_scan_ms=0))
    assert judge(snapshot) == ()
    assert notes(snapshot) == ("orders/billing: the first scan of this term is running",)


WAITING = SourceState(exists=True, entries=2, ready=Count(2), oldest_ready_ms=40_000, consumers=1, last_read_ms=41_000)


@pytest.mark.parametrize(
    ("retry", "unread"),
    [
        (WAITING, True),
        (replace(WAITING, last_read_ms=39_999), False),  # somebody has read since they came
        (replace(WAITING, oldest_ready_ms=30_000), False),  # within the visibility timeout
        (replace(WAITING, consumers=0, last_read_ms=None, oldest_ready_ms=1), True),
        (replace(WAITING, ready=Count(0), oldest_ready_ms=None), False),
        (SourceState(exists=False, entries=2), True),  # no group reads it
        (SourceState(), False),
    ],
)
def test_retry_copies_that_nobody_reads_degrade(retry: SourceState, unread: bool) -> None:
    assert _troubles(a_snapshot(retry=retry)) == ([ProblemKind.RETRY_UNREAD] if unread else [])


@pytest.mark.parametrize(
    ("main", "unread"),
    [
        (WAITING, True),
        (replace(WAITING, consumers=0, last_read_ms=None), True),
        (replace(WAITING, last_read_ms=29_999), False),  # somebody reads, though others came before
        (replace(WAITING, oldest_ready_ms=30_000), False),  # within the visibility timeout
        (replace(WAITING, pending=1), False),  # somebody is at work, and may have no slot free
        (replace(WAITING, ready=Count(0), oldest_ready_ms=None), False),
    ],
)
def test_jobs_that_wait_where_nobody_reads_degrade(main: SourceState, unread: bool) -> None:
    assert _troubles(a_snapshot(main=main)) == ([ProblemKind.UNREAD] if unread else [])
    assert _troubles(a_snapshot(main=main, visibility_ms=0)) == []


def test_every_problem_is_told() -> None:
    report = replace(
        ALL_WELL,
        refusal="several_groups",
        held=1,
        error="x",
        last_scan_ms=1,
        late_ms=32_001,
    )
    snapshot = a_snapshot(
        report=report,
        paused=True,
        mismatches=("m",),
        lost_payload=1,
        lost_payload_ms=NOW,
        lost_deliveries=1,
        groups_lost=1,
        groups_lost_ms=NOW,
        retry=WAITING,
        main=replace(WAITING, is_exhausted=True),
    )
    assert set(_troubles(snapshot)) == set(ProblemKind) - {
        ProblemKind.NO_REPLICA,
        ProblemKind.NO_LEADER,
        ProblemKind.NO_GROUPS,
        ProblemKind.UNSERVED,
    }


def test_notes_tell_what_may_matter_soon() -> None:
    alice = a_replica("alice", ALL_WELL, at_ms=NOW, observe=True)
    dead = a_replica("dave", at_ms=NOW - 60_000, role=FOLLOWER)
    snapshot = a_snapshot(
        alice,
        dead,
        report=ALL_WELL,
        lost_payload=4,
        lost_payload_ms=NOW - RECENT_MS - 1,
        main=SourceState(exists=True, silent=(SilentConsumer("w1", 3, 61_000),)),
        recovery_wait=RecoveryWait(2_500, 41_000),
    )
    assert judge(snapshot) == ()
    assert notes(snapshot) == (
        "the leader only observes and recovers no job",
        "there is no follower to take over from the leader. Start a second replica.",
        "replica dave-1-abc has not registered for 60 s",
        "orders/billing: recovery waits 2.5 s: no heartbeat could be served for 41 s",
        "orders/billing: 4 entries were deleted while pending, the last of them more than an hour ago",
        "orders/billing: consumer w1 has 3 deliveries and has been silent for 61 s",
    )


def test_what_may_have_been_a_false_recovery_is_a_note() -> None:
    snapshot = a_snapshot(report=replace(ALL_WELL, false_recoveries=3, false_recoveries_of={"web\n1": 3}))
    assert judge(snapshot) == ()
    (note,) = notes(snapshot)
    assert note.endswith(
        "3 deliveries were settled by a consumer after another one was recovered from it (web\\n1: 3). If it was not "
        "restarted under this name, raise the visibility timeout."
    )


def test_what_is_said_of_many_groups_is_said_once() -> None:
    replicas = a_replica("alice", ALL_WELL, at_ms=NOW), a_replica("bob", at_ms=NOW, role=FOLLOWER)
    young = a_snapshot(*replicas, report=ALL_WELL, recovery_wait=RecoveryWait(2_500, 41_000))
    (one,) = young.groups
    many = replace(young, groups=tuple(replace(one, stream=f"orders-{number}") for number in range(50)))
    (line,) = notes(many)
    assert line == (
        "orders-0/billing, orders-1/billing, orders-2/billing and 47 more groups: recovery waits 2.5 s: no heartbeat "
        "could be served for 41 s"
    )


def test_a_replica_that_has_not_noticed_the_end_of_its_term_is_noted() -> None:
    late = a_replica("zoe", at_ms=NOW, token=6)
    follower = a_replica("bob", at_ms=NOW, role=FOLLOWER)
    snapshot = a_snapshot(a_replica("alice", ALL_WELL, at_ms=NOW), follower, late)
    assert judge(snapshot) == ()
    assert notes(snapshot) == ("replica zoe-1-abc still reports that it leads (token 6). The fence rejects it.",)


def test_several_versions_at_once_are_noted() -> None:
    old = a_replica("bob", at_ms=NOW, role=FOLLOWER, version="0.1.9")
    assert notes(a_snapshot(a_replica("alice", ALL_WELL, at_ms=NOW), old)) == (
        "replicas of several versions are running: 0.1.9, 0.2.0",
    )
