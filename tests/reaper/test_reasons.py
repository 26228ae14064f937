"""Which groups are worst, by the reports of their holders."""

from typing import Any

import pytest

from reaper.reasons import MOST_WORST, ProblemKind, count_patterns, kinds_of, worst
from reaper.replicas import MOST_BYTES, GroupReport, PatternCounts, Replica

NOW = 1_766_000_000_000


def report(stream: str = "well", **found: Any) -> GroupReport:
    usual: dict[str, Any] = {"visibility_ms": 30_000, "max_deliveries": 3, "redelivery": "stream", "token": 7}
    return GroupReport(group=f"{stream}/g", **(usual | {"last_scan_ms": NOW, "scan_interval_ms": 1_000} | found))


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        ({}, set()),
        ({"disabled": "several_groups"}, {ProblemKind.DISABLED}),
        ({"paused": True}, {ProblemKind.PAUSED}),
        ({"undeliverable": 1}, {ProblemKind.UNDELIVERABLE}),
        ({"lost": 1}, {ProblemKind.LOST_DELIVERY}),
        ({"unread_ms": 30_001}, {ProblemKind.UNREAD}),
        ({"unread_ms": 30_000}, set()),
        ({"error": "scan: NOPERM", "late_ms": 32_001}, {ProblemKind.ERROR, ProblemKind.OVERDUE}),
        ({"late_ms": 32_000}, set()),
        ({"last_scan_ms": NOW - 4_001}, {ProblemKind.SCAN_TOO_OLD}),
        ({"false_recoveries": 2, "in_doubt": 1}, set()),
    ],
)
def test_a_report_names_the_kinds_of_problems(found: dict[str, Any], kinds: set[ProblemKind]) -> None:
    assert set(kinds_of(report(**found), NOW)) == kinds


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({"error": "x"}, {"disabled": "several_groups"}),
        ({"disabled": "several_groups"}, {"late_ms": 40_000}),
        ({"late_ms": 40_000}, {"late_ms": 39_000}),
        ({"late_ms": 40_000}, {"undeliverable": 9}),
        ({"undeliverable": 2}, {"undeliverable": 1}),
        ({"undeliverable": 1, "paused": True}, {"undeliverable": 1}),
        ({"undeliverable": 1}, {"paused": True}),
        ({"paused": True}, {"false_alarms": 1}),
        ({"false_recoveries": 1}, {"late_ms": 2}),
    ],
)
def test_the_worst_comes_first(worse: dict[str, Any], better: dict[str, Any]) -> None:
    # The names are in the other order, because groups that are equally bad are sorted by name.
    first, second = report("z", **worse), report("a", **better)
    if worse.get("undeliverable") == better.get("undeliverable") and "paused" in worse:
        first, second = report("a", **worse), report("z", **better)
    assert worst([second, report("b"), first], NOW, 2) == [first, second]


def test_what_a_replica_says_has_the_worst_groups_only() -> None:
    many = [report(f"s{number:05}", undeliverable=number % 50) for number in range(10_000)]
    found = worst(many, NOW)
    assert len(found) == MOST_WORST
    assert {one.undeliverable for one in found} == {49}


def test_groups_are_counted_by_the_pattern_that_they_were_found_by() -> None:
    reports = [
        report("a", pattern="orders:*", undeliverable=1),
        report("b", pattern="orders:*", token=0, disabled="no_group", paused=True),
        report("c"),
    ]
    assert count_patterns({"orders:*": (3, 1), "": (1, 1)}, reports, NOW) == {
        "orders:*": PatternCounts(watched=3, held=1, problems={"undeliverable": 1, "disabled": 1, "paused": 1}),
        "": PatternCounts(watched=1, held=1),
    }
    assert list(count_patterns({"a": (1, 0), "b": (2, 0), "c": (3, 0)}, [], NOW, most=2)) == ["c", "b"]


def test_what_a_replica_says_has_at_most_8_kb() -> None:
    long = "é" * 3_000
    reports = [report(f"{number:02}{'s' * 180}", error=long, disabled="several_groups") for number in range(20)]
    replica = Replica(
        id="a-1", name="a", host="h", pid=1, version="1", started_ms=0, at_ms=NOW, heartbeat_ms=5_000,
        watched=20, held=20, groups={one.group: one for one in reports},
    )  # fmt: skip
    written = replica.to_json()
    read = Replica.from_json(written)
    assert len(written.encode()) <= MOST_BYTES
    assert 5 < len(read.groups) < 20
    assert list(read.groups) == [one.group for one in reports][: len(read.groups)]
    assert (read.watched, read.held, read.groups[reports[0].group].error) == (20, 20, long[:300])
