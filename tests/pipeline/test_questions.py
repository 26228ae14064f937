"""The questions of the analysis, on hand-made histories whose answers were worked out by hand."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reaper.pipeline.analysis.answers import SHARES, LakeAnswers, Rows
from reaper.pipeline.analysis.scope import Scope
from reaper.pipeline.report.findings import tables_of
from tests.pipeline import stories
from tests.pipeline.questions import ask
from tests.pipeline.stories import GROUP, JOURNAL, NAMESPACE_JOURNAL, about, acked, event, nacked, recovered, rejected

FOREIGN = "{mails}:journal"
Tables = dict[str, Rows]


@pytest.fixture(scope="module")
def asked(spark: SparkSession) -> LakeAnswers:
    fault = event("fault_injected", 500, stream=NAMESPACE_JOURNAL, group=None, kind="kill-holder", holder="r1")
    return ask(spark, events=[*stories.ALL, fault])


@pytest.fixture(scope="module")
def tables(asked: LakeAnswers) -> Tables:
    return tables_of(asked.answers)


def picked(rows: Rows, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def by_job(rows: Rows, *names: str) -> dict[str, Any]:
    return {row["job"].removesuffix("-0"): tuple(row[name] for name in names) for row in rows}


# ---- integrity


@pytest.mark.usefixtures("asked")
def test_every_second_start_has_its_cause(spark: SparkSession) -> None:
    rows = spark.sql("select job, start, started_ms, cause from delivery where cause is not null").collect()
    assert {(row.job.removesuffix("-0"), row.start): (row.started_ms, row.cause) for row in rows} == {
        ("2000", 2): (5_110, "crash"),
        ("3000", 2): (6_104, "slow"),
        ("4000", 2): (7_100, "late_settlement"),
        ("5000", 2): (7_990, "early_recovery"),
        ("6000", 2): (6_150, "failed"),
        ("6000", 3): (8_100, "failed"),
        ("7000", 2): (7_200, "retried"),
        ("8000", 2): (9_600, "handed_back"),
        ("9000", 2): (12_500, "crash"),
        ("9000", 3): (15_900, "crash"),
        ("10000", 2): (20_200, "crash"),
        ("12000", 2): (30_050, "redriven"),
        ("13000", 2): (13_800, "unexplained"),
        ("19000", 2): (22_600, "crash"),
        ("27000", 2): (30_100, "late_settlement"),
        ("28000", 2): (31_050, "slow"),
        ("29000", 2): (32_100, "late_settlement"),
    }


@pytest.mark.usefixtures("asked")
def test_jobs_that_went_well_have_no_story(spark: SparkSession) -> None:
    told = {row.job.removesuffix("-0") for row in spark.sql("select distinct job from story where is_of_job").collect()}
    assert told == {str(n * 1_000) for n in range(2, 21)} - {"11000", "16000", "17000", "18000"} | {
        "25000",
        "27000",
        "28000",
        "29000",
    }


def test_second_starts_are_counted_by_cause(tables: Tables) -> None:
    once = ("early_recovery", "retried", "handed_back", "redriven", "unexplained")
    assert {row["cause"]: (row["starts"], row["jobs"]) for row in tables["second_starts"]} == {
        "crash": (5, 4),
        "slow": (2, 2),
        "late_settlement": (3, 3),
        "failed": (2, 1),
        **dict.fromkeys(once, (1, 1)),
    }


def test_work_that_was_completed_twice_is_a_duplicate_and_has_a_cause(tables: Tables) -> None:
    assert by_job(tables["duplicate_jobs"], "times", "cause") == {
        "3000": (2, "slow"),
        "4000": (2, "late_settlement"),
        "5000": (2, "early_recovery"),
        "13000": (2, "unexplained"),
        "25000": (2, "unexplained"),
        "27000": (2, "late_settlement"),
        "28000": (2, "slow"),
        "29000": (2, "late_settlement"),
    }
    assert picked(tables["duplicates"], "cause", "jobs") == [
        ("early_recovery", 1), ("late_settlement", 3), ("slow", 2), ("unexplained", 2),
    ]  # fmt: skip


def test_jobs_without_an_end_are_named_with_their_last_place(tables: Tables) -> None:
    assert by_job(tables["unsettled_jobs"], "event", "at_ms", "last_entry") == {
        "14000": ("recovered", 17_100, "17100-0"),
        "15000": ("quarantined", 18_100, None),
    }
    assert dict(picked(tables["unsettled"], "event", "jobs")) == dict.fromkeys(("recovered", "quarantined"), 1)


def test_lost_payloads_and_rejected_writes_are_counted(tables: Tables) -> None:
    assert picked(tables["lost_payloads"], "stream", "group", "entries") == [(JOURNAL, GROUP, 1)]
    assert picked(tables["late_writes"], "event", "verb", "calls") == [
        ("fenced", "recover", 1),
        ("rejected", "ack", 6),
    ]


# ---- recovery


def test_recoveries_have_overshoots_and_waits_by_mode_outcome_and_reason(tables: Tables) -> None:
    cause = ("mode", "outcome", "reason", "measure")
    times = {tuple(row[name] for name in cause): row for row in tables["recovery_times"]}
    by_timeout = ("reaper", "recovered", "visibility_timeout")
    tenths = [SHARES.index(n / 10) for n in range(1, 10)]
    assert [times[*by_timeout, "overshoot"]["quantiles"][n] for n in tenths] == [-10, 4, 10, 20, 20, 30, 50, 50, 100]
    assert [times[*by_timeout, "wait"]["quantiles"][n] for n in tenths] == [0, 20, 50, 50, 80, 100, 100, 100, 480]
    assert {key: (row["n"], row["p50"], row["p95"], row["max"]) for key, row in times.items()} == {
        (*by_timeout, "overshoot"): (9, 20, 100, 100),
        (*by_timeout, "wait"): (9, 80, 480, 480),
        ("reaper", "quarantined", "last_delivery", "overshoot"): (2, 0, 100, 100),
        ("reaper", "quarantined", "last_delivery", "wait"): (1, 400, 400, 400),
        ("reaper", "quarantined", "not_released", "overshoot"): (1, 0, 0, 0),
        ("reaper", "quarantined", "not_released", "wait"): (1, 200, 200, 200),
        ("reaper", "dead_lettered", "max_deliveries", "overshoot"): (1, 100, 100, 100),
    }


def test_recoveries_before_their_time_are_counted(tables: Tables) -> None:
    assert picked(tables["recovery_counts"], "mode", "outcome", "reason", "recoveries", "early") == [
        ("reaper", "dead_lettered", "max_deliveries", 1, 0),
        ("reaper", "quarantined", "last_delivery", 2, 0),
        ("reaper", "quarantined", "not_released", 1, 0),
        ("reaper", "recovered", "visibility_timeout", 10, 1),
    ]


def test_the_time_from_a_crash_to_the_second_start_is_one_figure(tables: Tables) -> None:
    """Visibility timeout, overshoot and wait are 3,110 for job 2000, 3,500 and 3,400 for 9000, and 3,200 for 10000.

    The entry of job 19000 had no owner, so no one knows when a worker was last alive.
    """
    (row,) = tables["restarts"]
    quarters = [row["quantiles"][SHARES.index(share)] for share in (0.2, 0.5, 0.7)]
    assert (row["n"], *quarters, row["max"], row["visibility_ms"]) == (4, 3_110, 3_200, 3_400, 3_500, 3_000)


# ---- counts


def test_each_journal_has_its_extent(asked: LakeAnswers, tables: Tables) -> None:
    assert (asked.first_ms, asked.last_ms, asked.events) == (500, 41_000, len(stories.ALL) + 1)
    assert picked(tables["extents"], "stream", "events", "first_ms", "last_ms") == [
        (JOURNAL, len(stories.ALL), 1_105, 41_000),
        (NAMESPACE_JOURNAL, 1, 500, 500),
    ]


def test_an_empty_lake_has_answers(spark: SparkSession) -> None:
    asked = ask(spark)
    assert (asked.first_ms, asked.last_ms, asked.events) == (0, 0, 0)
    assert [name for name, rows in tables_of(asked.answers).items() if rows] == []


@pytest.fixture(scope="module")
def counted(spark: SparkSession) -> Tables:
    second = {"consumer": "w1~ba9876543210"}
    rows = [
        acked(1_100, 100, about("1000", 1), wait=30),
        acked(1_200, 100, {**about("1000", 1), **second}, wait=70),
        nacked(1_300, 100, about("1200", 1)),
        recovered(1_900, 3_000, {**about("1000", 1), **second}, "1900"),
        rejected(2_000, 900, {**about("1000", 1), **second}),
        stories.quarantined(2_100, 3_000, about("1000", 2, consumer="w2")),
        stories.released(2_200, about("1000", 2), "2200"),
        recovered(3_100, 3_050, {**about("900", 1), "consumer": "plain"}, "3100"),
        event("dead_lettered", 3_200, run_ms=5, **about("3100", 1, consumer="w2")),
        acked(5_000, 1, about("4999", 3, consumer="w2")),
    ]
    asked = ask(spark, events=rows)
    assert asked.period_ms == 1_000
    return tables_of(asked.answers)


def test_stalls_are_those_of_the_worker_that_held_the_job(counted: Tables) -> None:
    rows = counted["stalls_by_worker"]
    assert sorted(picked(rows, "worker", "processes", "deliveries", "stalls", "permille")) == [
        ("plain", 1, 1, 1, 1000.0),
        ("w1", 2, 4, 1, 250.0),
        ("w2", 1, 3, 1, 333.333),
    ]


def test_throughput_waits_and_recoveries_have_a_course(counted: Tables) -> None:
    names = ("period", "acked", "longest_wait_ms", "deliveries", "stalls", "permille")
    assert picked(counted["over_time"], *names) == [
        (1_000, 2, 70, 4, 1, 250.0),
        (2_000, 0, None, 1, 1, 1000.0),
        (3_000, 0, None, 2, 1, 500.0),
        (5_000, 1, 0, 1, 0, 0.0),
    ]


def test_deliveries_until_done_are_counted(counted: Tables) -> None:
    assert picked(counted["deliveries_until_done"], "delivery", "jobs") == [(1, 2), (3, 1)]


# ---- durations


@pytest.fixture(scope="module")
def timed(spark: SparkSession) -> Tables:
    rows = [
        acked(1_100, 100, about("1000", 1), wait=0, type="mail"),
        acked(2_300, 300, about("2000", 1), wait=40, type="mail"),
        acked(3_200, 200, about("3000", 1), wait=10, type="mail"),
        acked(4_000, 7, about("4000", 1), wait=3),
        recovered(8_010, 3_010, about("5000", 1), "8010"),
        acked(8_500, 400, about("5000", 2, "8010"), wait=90, type="mail"),
        acked(9_100, 50, about("9000", 1)) | {"ready_ms": None},  # an entry ID that a producer chose
        recovered(95_000, 3_100, about("90000", 1), "95000") | {"stream": FOREIGN, "group": "plain"},
    ]
    return tables_of(ask(spark, events=rows).answers)


def test_waits_and_runs_are_ranked_by_group_and_type(timed: Tables) -> None:
    ranks = ("n", "p50", "p95", "p99", "p999", "max")
    assert {(row["type"], row["measure"]): tuple(row[name] for name in ranks) for row in timed["durations"]} == {
        ("mail", "run"): (4, 200, 400, 400, 400, 400),
        ("mail", "wait"): (4, 10, 90, 90, 90, 90),
        ("", "run"): (2, 7, 50, 50, 50, 50),
        ("", "wait"): (1, 3, 3, 3, 3, 3),
    }


def test_the_queue_wait_of_a_claimed_delivery_is_unknown(spark: SparkSession) -> None:
    """Its entry is as old as the job, so workers journal no ``ready_ms`` for it."""
    rows = [
        recovered(13_000, 3_000, about("10000", 1), mode="embedded"),
        acked(13_105, 100, about("10000", 2), mode="embedded") | {"ready_ms": None},
    ]
    answers = ask(spark, ("durations",), events=rows).answers
    assert {row["measure"]: row["max"] for row in answers["durations"]} == {"run": 100}


def test_a_duration_that_cannot_be_is_counted_and_in_no_figure(spark: SparkSession) -> None:
    year_ms = 365 * 86_400_000
    rows = [
        acked(1_000_100, 100, about("1000000", 1), wait=5),
        acked(1_000_200, 100, about("1000001", 1), wait=-100_000),
        acked(2 * year_ms, 100, about("1000002", 1), wait=7) | {"delivered_ms": 0},
        acked(1_000_400, -3, about("1000003", 1), wait=-1),  # two clocks that differ a little give no wait at all
        nacked(1_000_500, -3, about("1000004", 1)),
    ]
    answers = ask(spark, ("durations",), events=rows).answers
    assert {row["measure"]: (row["n"], row["quantiles"] and row["quantiles"][6]) for row in answers["durations"]} == {
        "wait": (2, 0), "run": (3, 100), "skewed": (4, None),
    }  # fmt: skip


# ---- terms

OTHER = "{other}:journal"


def lease(name: str, at: int, token: int, holder: str, *, stream: str = JOURNAL, **data: Any) -> stories.Row:
    return event(name, at, stream=stream, token=token, holder=holder, **data)


def test_terms_have_holders_ends_and_the_gap_after_them(spark: SparkSession) -> None:
    rows = [
        # The first term began before there was a journal.
        lease("lease_left", 900, 4, "r0.a@1500", reason="handed_over"),
        lease("lease_taken", 1_000, 5, "r1.a@1500"),
        lease("lease_left", 5_000, 5, "r1.a@1500", reason="stopped"),
        lease("lease_taken", 5_020, 6, "r2.b@1500"),
        # r2 is killed, so its lease expires, and for a while no replica holds it.
        event("recovered", 7_000, "1", token=6),
        event("dead_lettered", 8_000, "1", token=6),
        event("fenced", 8_900, "1", token=6),  # a write that came too late is no proof
        event("dead_lettered", 9_000 + 1, "1", token=6),  # nor does an event after its successor's first
        event("recovered", 8_500, "1", token=6, stream=OTHER, group=GROUP),  # nor does one of another group
        event("recovered", 8_500, "1", token=6, group="audit"),
        # Redis has lost the group's hash, so tokens start over.
        lease("lease_taken", 9_000, 1, "r3.c@1500"),
        lease("lease_left", 12_000, 0, "r3.c@1500"),
        lease("lease_taken", 14_100, 2, "r1.e@1500"),
        lease("lease_taken", 14_600, 3, "r2.f@1500"),
        lease("lease_taken", 14_700, 6, "r2.g@1500", stream=OTHER, group=GROUP),
        lease("lease_taken", 14_800, 6, "r2.h@1500", group="audit"),
        event("lease_taken", 15_000, token=5),  # without a holder
        lease("lease_taken", 15_000, 5, "x.a", group=None),
        event("fault_injected", 8_000, stream=NAMESPACE_JOURNAL, kind="kill-holder", target="r2", holder="r2.b@1500"),
    ]
    names = ("stream", "group", "token", "holder", "began_ms", "ended_ms", "end", "gap_ms", "gap_at_most_ms")
    found = tables_of(ask(spark, events=rows).answers)["terms"]
    assert picked(found, *names) == [
        (JOURNAL, "audit", 6, "r2.h@1500", 14_800, None, "holds", None, None),
        (JOURNAL, GROUP, 4, "r0.a@1500", None, 900, "handed_over", 100, None),
        (JOURNAL, GROUP, 5, "r1.a@1500", 1_000, 5_000, "stopped", 20, None),
        (JOURNAL, GROUP, 6, "r2.b@1500", 5_020, None, "expired", None, 1_000),
        (JOURNAL, GROUP, 1, "r3.c@1500", 9_000, 12_000, "left", 2_100, None),
        (JOURNAL, GROUP, 2, "r1.e@1500", 14_100, None, "expired", None, 500),
        (JOURNAL, GROUP, 3, "r2.f@1500", 14_600, None, "holds", None, None),
        (OTHER, GROUP, 6, "r2.g@1500", 14_700, None, "holds", None, None),
    ]


# ---- the scope

NOON = datetime(2025, 12, 31, 12, tzinfo=UTC)
NOON_MS = 1_767_182_400_000


@pytest.mark.parametrize(
    ("name", "found"),
    [("a/b/c", {("a/b", "c"), ("a", "b/c")}), ("b/c", {("a", "b/c"), ("b", "c")}), ("c", {("a/b", "c"), ("b", "c")})],
)
def test_groups_are_chosen_as_they_are_written(spark: SparkSession, name: str, found: set[tuple[str, str]]) -> None:
    pairs = [("a/b", "c"), ("a", "b/c"), ("b", "c"), ("b", "d")]
    rows = [event("acked", NOON_MS, "1-0", stream=f"{{{stream}}}:journal", group=group) for stream, group in pairs]
    counts = ask(spark, ("activity_counts",), Scope(NOON, groups=(name,)), events=rows).answers["activity_counts"]
    assert {(row["stream"][1 : -len("}:journal")], row["group"]) for row in counts} == found
