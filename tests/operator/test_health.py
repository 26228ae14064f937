"""The verdict: pure, from a snapshot."""

from dataclasses import replace
from typing import Any

import pytest

from reaper.operations.judgement import RECENT_MS, folded, judge, remarks, wrong
from reaper.operations.state import Count, GroupState, Snapshot, SourceState
from reaper.reasons import ProblemKind
from reaper.replicas import SCANNED, GroupReport, PatternCounts, Replica
from reaper.settings import observers_of
from tests.operator.heartbeats import a_replica, a_report
from workers.protocol.calls.declined import RecoveryWait

NOW = 1_766_000_000_000
HOLDER = "alice-1-abc.0a@10000"
ALL_WELL = a_report(last_scan_ms=NOW - 100)


def a_snapshot(*replicas: Replica, report: GroupReport | None = ALL_WELL, **group: Any) -> Snapshot:
    """Return a snapshot that is healthy: alice holds orders/billing, and bob could take it over."""
    reports = (report,) if report else ()
    replicas = replicas or (a_replica("alice", *reports, at_ms=NOW), a_replica("bob", at_ms=NOW))
    usual: dict[str, Any] = {
        "group": "orders/billing",
        "visibility_ms": 30_000,
        "main": SourceState(exists=True),
        "holder": HOLDER,
        "lease_left_ms": 5_000,
        "token": 7,
        "served_by": "alice-1-abc" if any(one.name == "alice" and one.is_live(NOW) for one in replicas) else "",
        "report": report,
        "reported_ms": NOW,
    }
    return Snapshot(
        now_ms=NOW,
        namespace="reaper",
        server="Redis 7.0.15",
        replicas=replicas,
        watching={replica.id: frozenset({"orders/billing"}) for replica in replicas},
        groups=(GroupState(**(usual | group)),),
    )


def notes(snapshot: Snapshot) -> tuple[str, ...]:
    return tuple(folded(remarks(snapshot)))


def _troubles(snapshot: Snapshot) -> list[str]:
    return [problem.check for problem in judge(snapshot)]


def test_a_group_that_is_held_and_scanned_is_healthy() -> None:
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


def test_a_group_that_no_replica_holds_is_degraded() -> None:
    (problem,) = judge(a_snapshot(report=None, holder="", served_by=""))
    assert (problem.check, problem.group) == (ProblemKind.UNHELD, "orders/billing")
    assert problem.text.startswith("no replica holds the lease of this group. If this lasts, see the logs")


def test_a_group_whose_holder_is_no_live_replica_is_degraded() -> None:
    gone = a_replica("alice", at_ms=NOW - 15_001)
    (problem,) = judge(a_snapshot(gone, a_replica("bob", at_ms=NOW), report=None))
    assert problem.check is ProblemKind.UNHELD
    assert problem.text.startswith("the lease is held by alice-1-abc, which is not a live replica of this namespace.")


def test_a_lease_that_was_just_handed_over_is_no_problem() -> None:
    assert judge(a_snapshot(report=None, holder="offer:bob-1-abc", served_by="bob-1-abc")) == ()


def test_a_replica_that_cannot_serve_a_group_says_why_and_that_is_enough() -> None:
    disabled = replace(ALL_WELL, token=0, disabled="explicit_ids")
    assert _troubles(a_snapshot(report=disabled, holder="", served_by="")) == [ProblemKind.DISABLED]


def test_a_group_that_no_replica_watches_is_named() -> None:
    replicas = a_replica("alice", at_ms=NOW), a_replica("bob", at_ms=NOW)
    others = {"bob-1-abc": frozenset({"orders/audit"})}
    snapshot = replace(a_snapshot(*replicas, report=None, holder="", served_by=""), watching=others)
    assert judge(snapshot) == (
        wrong(
            ProblemKind.UNSERVED,
            "no live replica watches this group. Add it to the settings of the replicas.",
            "orders/billing",
        ),
    )
    embedded = replace(snapshot, groups=(replace(snapshot.groups[0], mode="embedded"),))
    assert judge(embedded) == (), "its workers recover"


def test_observers_hold_no_lease_and_that_is_no_problem() -> None:
    olga = a_replica("olga", replace(ALL_WELL, token=0), at_ms=NOW, observe=True)
    observed = replace(a_snapshot(olga, served_by="olga-1-abc"), namespace=observers_of("reaper"))
    assert judge(observed) == ()
    assert judge(replace(observed, groups=(replace(observed.groups[0], served_by="", report=None),))) == ()


def test_of_groups_that_were_not_looked_at_the_replicas_say_how_many_are_ill() -> None:
    counts = PatternCounts(watched=9_000, held=8_998, problems={"disabled": 41, "overdue": 1})
    alice = a_replica("alice", at_ms=NOW, held=4_998, patterns={"orders:*": replace(counts, held=4_998)})
    bob = a_replica("bob", at_ms=NOW, held=4_000, patterns={"orders:*": replace(counts, held=4_000, problems={})})
    disabled = replace(ALL_WELL, disabled="explicit_ids")
    snapshot = replace(a_snapshot(alice, bob, report=disabled), left_out=8_999)
    assert snapshot.patterns == {"orders:*": counts}
    assert [(problem.check, problem.group, problem.text) for problem in judge(snapshot)][:3] == [
        (ProblemKind.UNHELD, "", "2 of 9000 groups are held by no replica."),
        (ProblemKind.DISABLED, "", "40 more groups have the problem disabled. Run `reaper status --all`."),
        (ProblemKind.OVERDUE, "", "1 more group has the problem overdue. Run `reaper status --all`."),
    ]
    assert [problem.check for problem in judge(replace(snapshot, left_out=0))] == [ProblemKind.DISABLED]


def test_without_any_group_there_is_nothing_to_watch() -> None:
    assert _troubles(replace(a_snapshot(), groups=())) == [ProblemKind.NO_GROUPS]
    assert _troubles(replace(a_snapshot(), groups=(), left_out=2)) == [], "none of them was asked for"


def test_a_pattern_that_finds_no_stream_now_is_no_problem() -> None:
    alice = replace(a_replica("alice", at_ms=NOW), scan=SCANNED)
    assert _troubles(replace(a_snapshot(alice), groups=())) == []


@pytest.mark.parametrize(("other", "troubles"), [("", [ProblemKind.NO_SCAN]), (SCANNED, [])])
def test_one_replica_of_all_must_be_able_to_scan(other: str, troubles: list[ProblemKind]) -> None:
    alice = replace(a_replica("alice", ALL_WELL, at_ms=NOW), scan="NOPERM no permissions to run the 'scan' command")
    snapshot = a_snapshot(alice, replace(a_replica("bob", at_ms=NOW), scan=other))
    assert _troubles(snapshot) == troubles
    sentence = (
        "no replica can scan for the streams of patterns: NOPERM no permissions to run the 'scan' command. Grant "
        "`SCAN` to the Redis user of one replica, or run `reaper watch add` for each group."
    )
    assert [problem.text for problem in judge(snapshot)] == [sentence] * len(troubles)


@pytest.mark.parametrize(
    ("found", "trouble", "says"),
    [
        ({"disabled": "several_groups"}, ProblemKind.DISABLED, "Set redelivery = 'retry-stream'"),
        ({"disabled": "explicit_ids"}, ProblemKind.DISABLED, "Set redelivery = 'retry-stream'"),
        ({"disabled": "something_new"}, ProblemKind.DISABLED, "something_new"),
        ({"undeliverable": 2}, ProblemKind.UNDELIVERABLE, "2 overdue deliveries cannot be redelivered"),
        ({"error": "scan: NOPERM"}, ProblemKind.ERROR, "scan: NOPERM"),
        ({"late_ms": 32_001}, ProblemKind.OVERDUE, "recovery is 32 s late"),
    ],
)
def test_what_the_holder_reports_degrades(found: dict[str, Any], trouble: ProblemKind, says: str) -> None:
    (problem,) = judge(a_snapshot(report=replace(ALL_WELL, **found)))
    assert (problem.check, problem.group) == (trouble, "orders/billing")
    assert says in problem.text


@pytest.mark.parametrize(
    ("group", "trouble", "says"),
    [
        ({"paused": True}, ProblemKind.PAUSED, "Run `reaper groups resume orders/billing` to resume it."),
        ({"mismatches": ("max_deliveries differ",)}, ProblemKind.MISMATCH, "max_deliveries differ"),
        ({"main": SourceState(exists=False)}, ProblemKind.DISABLED, "the stream or its group does not exist"),
    ],
)
def test_what_redis_says_degrades(group: dict[str, Any], trouble: ProblemKind, says: str) -> None:
    (problem,) = judge(a_snapshot(**group))
    assert (problem.check, problem.group) == (trouble, "orders/billing")
    assert says in problem.text


def test_a_missing_group_is_told_once() -> None:
    snapshot = a_snapshot(report=replace(ALL_WELL, disabled="no_group"), main=SourceState(exists=False))
    assert _troubles(snapshot) == [ProblemKind.DISABLED]


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


@pytest.mark.parametrize("where", ["main", "retry"])
@pytest.mark.parametrize(
    ("source", "unread"),
    [
        (WAITING, True),
        (replace(WAITING, consumers=0, last_read_ms=None), True),
        (replace(WAITING, last_read_ms=29_999), False),  # somebody reads, though others came before
        (replace(WAITING, oldest_ready_ms=30_000), False),  # within the visibility timeout
        (replace(WAITING, pending=1), False),  # somebody is at work, and may have no slot free
        (replace(WAITING, ready=Count(0), oldest_ready_ms=None), False),
    ],
)
def test_jobs_that_wait_where_nobody_reads_degrade(where: str, source: SourceState, unread: bool) -> None:
    facts: dict[str, Any] = {where: source}
    assert _troubles(a_snapshot(**facts)) == ([ProblemKind.UNREAD] if unread else [])


def test_retry_copies_that_no_group_reads_degrade() -> None:
    assert _troubles(a_snapshot(retry=SourceState(exists=False, entries=2))) == [ProblemKind.UNREAD]
    assert _troubles(a_snapshot(retry=SourceState())) == []


def test_every_problem_is_told() -> None:
    report = replace(
        ALL_WELL,
        disabled="several_groups",
        undeliverable=1,
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
        lost_delivery=1,
        groups_lost=1,
        groups_lost_ms=NOW,
        retry=WAITING,
        main=WAITING,
    )
    assert set(_troubles(snapshot)) == set(ProblemKind) - {
        ProblemKind.NO_REPLICA,
        ProblemKind.NO_GROUPS,
        ProblemKind.NO_SCAN,
        ProblemKind.UNSERVED,
        ProblemKind.UNHELD,
    }


def test_a_key_of_another_program_is_one_problem() -> None:
    disabled = replace(ALL_WELL, disabled="no_group")
    assert _troubles(a_snapshot(main=SourceState(is_foreign=True), report=disabled)) == [ProblemKind.DISABLED]


@pytest.mark.parametrize("found", ["lost_payload", "groups_lost"])
@pytest.mark.parametrize(("ago_ms", "degrades"), [(RECENT_MS, True), (RECENT_MS + 1, False)])
def test_a_deletion_degrades_for_an_hour(found: str, ago_ms: int, degrades: bool) -> None:
    facts: dict[str, Any] = {found: 1, f"{found}_ms": NOW - ago_ms}
    assert bool(_troubles(a_snapshot(**facts))) is degrades


def test_notes_tell_what_may_matter_soon() -> None:
    alice = a_replica("alice", ALL_WELL, at_ms=NOW)
    dead = a_replica("dave", at_ms=NOW - 60_000)
    snapshot = a_snapshot(
        alice,
        dead,
        report=ALL_WELL,
        main=SourceState(exists=True),
        recovery_wait=RecoveryWait(2_500, 41_000),
    )
    drained = replace(snapshot, drained={"alice-1-abc": NOW + 90_000})
    assert judge(drained) == ()
    assert notes(drained) == (
        "there is no replica to take over from alice-1-abc. Start a second replica.",
        "replica alice-1-abc is drained for 1.5 min more. `reaper drain alice-1-abc --undo` ends this.",
        "replica dave-1-abc has not registered for 1.0 min",
        "orders/billing: recovery waits 2.5 s: no heartbeat could be served for 41 s",
    )


def test_that_replicas_only_observe_is_noted() -> None:
    olga = a_replica("olga", ALL_WELL, at_ms=NOW, observe=True)
    observed = replace(a_snapshot(olga, served_by="olga-1-abc"), namespace=observers_of("reaper"))
    assert notes(observed) == ("the replicas only observe and recover no job",)


DIFFER = (
    "replicas have different settings, so they do not take groups from each other: alice-1-abc and bob-1-abc. Give all "
    "replicas the same settings."
)


def test_replicas_with_different_settings_are_noted() -> None:
    assert notes(a_snapshot(a_replica("alice", at_ms=NOW), a_replica("bob", at_ms=NOW, settings="other"))) == (DIFFER,)


def test_what_may_have_been_a_false_recovery_is_a_note() -> None:
    snapshot = a_snapshot(report=replace(ALL_WELL, false_recoveries=3, false_recoveries_of={"web\n1": 3}))
    assert judge(snapshot) == ()
    (note,) = notes(snapshot)
    assert note.endswith(
        "3 deliveries were settled by a consumer after another one was recovered from it (web\\n1: 3). If it was not "
        "restarted under this name, raise the visibility timeout."
    )


def test_what_is_said_of_many_groups_is_said_once() -> None:
    replicas = a_replica("alice", ALL_WELL, at_ms=NOW), a_replica("bob", at_ms=NOW)
    young = a_snapshot(*replicas, report=ALL_WELL, recovery_wait=RecoveryWait(2_500, 41_000))
    (one,) = young.groups
    many = replace(young, groups=tuple(replace(one, group=f"orders-{number}/billing") for number in range(50)))
    (line,) = notes(many)
    assert line == (
        "orders-0/billing, orders-1/billing, orders-2/billing and 47 more groups: recovery waits 2.5 s: no heartbeat "
        "could be served for 41 s"
    )


def test_several_versions_at_once_are_noted() -> None:
    old = a_replica("bob", at_ms=NOW, version="0.1.9")
    assert notes(a_snapshot(a_replica("alice", ALL_WELL, at_ms=NOW), old)) == (
        "replicas of several versions are running: 0.1.9, 0.2.0",
    )
