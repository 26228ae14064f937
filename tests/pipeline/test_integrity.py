"""What ran twice, was refused, or is not settled, on rows whose answers were worked out by hand."""

import pytest
from pyspark.sql import DataFrame, SparkSession

from reaper.pipeline.analysis import histories, integrity
from tests.pipeline import stories
from tests.pipeline.stories import GROUP, JOURNAL


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> DataFrame:
    return stories.frame(spark, stories.ALL).cache()


@pytest.fixture(scope="module")
def troubled(events: DataFrame) -> DataFrame:
    return histories.histories(events, histories.troubled_jobs(events)).cache()


@pytest.fixture(scope="module")
def deliveries(troubled: DataFrame) -> DataFrame:
    return histories.deliveries(troubled).cache()


@pytest.fixture(scope="module")
def starts(deliveries: DataFrame) -> DataFrame:
    return integrity.second_starts(deliveries).cache()


def _job(name: str) -> str:
    return name.removesuffix("-0")


def test_jobs_that_went_well_have_no_history(troubled: DataFrame) -> None:
    told = {_job(row.job) for row in troubled.select("job").distinct().collect()}
    assert told == {str(n * 1_000) for n in range(2, 21)} - {"18000"} | {"25000", "27000", "28000", "29000"}


def test_every_second_start_has_its_cause(starts: DataFrame) -> None:
    rows = starts.select("job", "start", "started_ms", "cause").collect()
    assert {(_job(job), start): (started_ms, cause) for job, start, started_ms, cause in rows} == {
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
        ("11000", 2): (21_050, "restart"),
        ("12000", 2): (30_050, "redriven"),
        ("13000", 2): (13_800, "unexplained"),
        ("19000", 2): (22_600, "crash"),
        ("27000", 2): (30_100, "late_settlement"),
        ("28000", 2): (31_050, "slow"),
        ("29000", 2): (32_100, "late_settlement"),
    }


def test_second_starts_are_counted_by_cause(starts: DataFrame) -> None:
    rows = integrity.second_start_counts(starts).collect()
    once = ("early_recovery", "retried", "handed_back", "restart", "redriven", "unexplained")
    assert {row.cause: (row.starts, row.jobs) for row in rows} == {
        "crash": (5, 4),
        "slow": (2, 2),
        "late_settlement": (3, 3),
        "failed": (2, 1),
        **dict.fromkeys(once, (1, 1)),
    }


def test_work_that_was_completed_twice_is_a_duplicate_and_has_a_cause(deliveries: DataFrame, starts: DataFrame) -> None:
    twice = integrity.duplicates(deliveries, starts).cache()
    assert {_job(row.job): (row.times, row.cause) for row in twice.collect()} == {
        "3000": (2, "slow"),
        "4000": (2, "late_settlement"),
        "5000": (2, "early_recovery"),
        "13000": (2, "unexplained"),
        "25000": (2, "unexplained"),
        "27000": (2, "late_settlement"),
        "28000": (2, "slow"),
        "29000": (2, "late_settlement"),
    }
    counts = integrity.duplicate_counts(twice).collect()
    assert {row.cause: row.jobs for row in counts} == {
        "slow": 2,
        "late_settlement": 3,
        "early_recovery": 1,
        "unexplained": 2,
    }


def test_what_the_journal_leaves_open_is_named_with_where_it_was_last(troubled: DataFrame) -> None:
    rows = integrity.unsettled_jobs(troubled).select("job", "event", "at_ms", "last_entry").collect()
    assert {_job(row[0]): tuple(row[1:]) for row in rows} == {
        "14000": ("recovered", 17_100, "17100-0"),
        "15000": ("suspected", 18_100, None),
        "16000": ("started", 16_010, "16000-0"),
    }


def test_lost_payloads_are_listed(troubled: DataFrame) -> None:
    rows = integrity.lost_payloads(troubled).collect()
    assert list(map(tuple, rows)) == [(JOURNAL, GROUP, "20000-0", 23_000)]


def test_refused_writes_tell_leaders_from_workers(events: DataFrame) -> None:
    rows = integrity.refused_writes(events).drop("stream", "group").collect()
    assert sorted(map(tuple, rows)) == [("ack", "worker", 6, 6), ("recover", "leader", 1, 7)]
