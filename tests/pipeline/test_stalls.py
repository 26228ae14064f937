"""Where deliveries stall and when, on rows whose answers were worked out by hand."""

import pytest
from pyspark.sql import DataFrame, SparkSession

from reaper.pipeline.analysis import activity, stalls
from reaper.pipeline.analysis.columns import stream_of, worker_of
from tests.pipeline import stories
from tests.pipeline.stories import (
    JOURNAL,
    NAMESPACE_JOURNAL,
    about,
    acked,
    event,
    frame,
    nacked,
    recovered,
    refused,
    released,
    suspected,
)


@pytest.fixture(scope="module")
def counted(spark: SparkSession) -> DataFrame:
    second = {"consumer": "w1.ba9876543210"}
    rows = [
        acked(1_100, 100, about("1000", 1)),
        acked(1_200, 100, {**about("1000", 1), **second}),
        nacked(1_300, 100, about("1200", 1)),
        recovered(1_900, 3_000, {**about("1000", 1), **second}, "1900"),
        refused(2_000, 900, {**about("1000", 1), **second}),
        suspected(2_100, 3_000, about("1000", 2, consumer="w2")),
        released(2_200, about("1000", 2), "2200"),
        recovered(3_100, 3_050, {**about("900", 1), "consumer": "plain"}, "3100"),
        event("dead_lettered", 3_200, run_ms=5, **about("3100", 1, consumer="w2")),
        acked(5_000, 1, about("4999", 3, consumer="w2")),
        event("scanned", 5_100, token=1),
    ]
    return activity.activity(frame(spark, rows), 1_000).cache()


def test_stalls_are_those_of_the_worker_that_held_the_job(counted: DataFrame) -> None:
    rows = stalls.stalls_by_worker(counted).drop("stream", "group").collect()
    assert sorted(map(tuple, rows)) == [
        ("plain", 1, 1, 1, 1000.0),
        ("w1", 2, 4, 1, 250.0),
        ("w2", 1, 3, 1, 333.333),
    ]


def test_the_stall_rate_has_a_course(counted: DataFrame) -> None:
    rows = stalls.stalls_over_time(counted).drop("stream", "group").collect()
    assert sorted(map(tuple, rows)) == [
        (1_000, 4, 1, 250.0),
        (2_000, 1, 1, 1000.0),
        (3_000, 2, 1, 500.0),
        (5_000, 1, 0, 0.0),
    ]


def test_deliveries_until_done_are_counted(counted: DataFrame) -> None:
    rows = activity.deliveries_until_done(counted).drop("stream", "group").collect()
    assert sorted(map(tuple, rows)) == [(1, 2), (3, 1)]


def test_each_journal_has_its_extent(spark: SparkSession) -> None:
    lease = event("lease_acquired", 500, stream=NAMESPACE_JOURNAL, token=1, holder="r1")
    events = frame(spark, [*stories.ALL, lease])
    assert activity.extent(events)[:2] == (500, 41_000)
    assert activity.extent(events.limit(0)) == (0, 0, 0)
    extents = activity.extents(activity.activity(events, 1_000)).collect()
    assert sorted(map(tuple, extents)) == [
        (JOURNAL, len(stories.ALL), 1_105, 41_000),
        (NAMESPACE_JOURNAL, 1, 500, 500),
    ]


def test_workers_and_streams_are_told_from_consumers_and_journals(spark: SparkSession) -> None:
    names = [
        ("host-1.0123456789ab", "{orders}:journal"),
        ("host.example.org", "{shop}orders:journal"),
        ("w.0123456789AB", "{a:b}:journal"),
        ("w", "{a{b}:journal"),
    ]
    rows = spark.createDataFrame(names, "consumer string, journal string").select(
        worker_of("consumer"), stream_of("journal")
    )
    assert list(map(tuple, rows.collect())) == [
        ("host-1", "orders"),
        ("host.example.org", "{shop}orders"),
        ("w.0123456789AB", "a:b"),
        ("w", "a{b"),
    ]
