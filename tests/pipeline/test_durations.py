"""How long jobs wait and run, on rows whose answers were worked out by hand; and quantiles by counting."""

import json
import math
import random

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reaper.pipeline.analysis import activity, durations
from reaper.pipeline.analysis.quantiles import QUANTILES, quantiles, tally
from tests.pipeline.stories import GROUP, JOURNAL, about, acked, event, frame, recovered

FOREIGN = "{mails}:journal"


def _scanned(at: int, gone_ages: list[list[int | None]], pending: int = 1) -> dict[str, object]:
    extra = json.dumps({"pending": pending, "gone": len(gone_ages), "gone_ages": gone_ages, "period_ms": 30_000})
    return event("scanned", at, stream=FOREIGN, group="plain", token=1, extra=extra)


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> DataFrame:
    ours = [
        acked(1_100, 100, about("1000", 1), wait=0, type="mail"),
        acked(2_300, 300, about("2000", 1), wait=40, type="mail"),
        acked(3_200, 200, about("3000", 1), wait=10, type="mail"),
        acked(4_000, 7, about("4000", 1), wait=3),
        recovered(8_010, 3_010, about("5000", 1), "8010"),
        acked(8_500, 400, about("5000", 2, "8010"), wait=90, type="mail"),
        acked(9_100, 50, about("9000", 1), wait=50),
    ]
    ours[-1]["ready_ms"] = None  # explicit entry IDs
    foreign = [
        _scanned(30_000, [[64, 128, 2], [1024, 2048, 7]]),
        _scanned(60_000, [[1024, 2048, 10], [4096, None, 1]]),
        _scanned(90_000, []),
        {**recovered(95_000, 3_100, about("90000", 1), "95000"), "stream": FOREIGN, "group": "plain"},
    ]
    return frame(spark, [*ours, *foreign]).cache()


def test_what_is_no_duration_is_put_aside_and_counted(spark: SparkSession) -> None:
    year_ms = 365 * 86_400_000
    rows = [
        acked(1_000_100, 100, about("1000000", 1), wait=5),
        acked(1_000_200, 100, about("1000001", 1), wait=-100_000),
        acked(2 * year_ms, 100, about("1000002", 1), wait=7) | {"delivered_ms": 0},
        acked(1_000_400, -3, about("1000003", 1), wait=-1),  # two clocks that differ a little: no wait at all
        acked(1_000_500, 100, about("1000004", 1), wait=9) | {"delivered_ms": 1_000_451},  # held: as long as it ran
    ]
    tallied = durations.duration_tally(frame(spark, rows), 1_000).cache()
    assert [row.asDict() for row in durations.skewed_durations(tallied).collect()] == [
        {"stream": JOURNAL, "what": "duration", "events": 3}
    ]
    told = {
        (row.measure, row.ms): row.n for row in tallied.groupBy("measure", "ms").agg(F.sum("n").alias("n")).collect()
    }
    assert told == {
        ("wait", 5): 1, ("wait", 0): 1, ("wait", 60): 1, ("run", 100): 4, ("held", 100): 3, ("skewed", 0): 3,
    }  # fmt: skip


def test_waits_and_runs_are_ranked_by_group_and_type(events: DataFrame) -> None:
    rows = durations.durations(durations.duration_tally(events, 1_000)).collect()
    assert {(row.type, row.measure): tuple(row)[4:] for row in rows} == {
        ("mail", "run"): (4, 200, 400, 400, 400, 400),
        ("mail", "wait"): (4, 10, 90, 90, 90, 90),
        ("", "run"): (2, 7, 50, 50, 50, 50),
        ("", "wait"): (1, 3, 3, 3, 3, 3),
    }
    assert {tuple(row)[:2] for row in rows} == {(JOURNAL, GROUP)}


def test_scans_bound_the_durations_of_workers_that_journal_nothing(events: DataFrame) -> None:
    ages = durations.scanned_ages(events)
    assert {tuple(row)[2:] for row in ages.collect()} == {(64, 128, 2), (1024, 2048, 17), (4096, None, 1)}
    (row,) = durations.scanned_durations(ages).collect()
    assert tuple(row) == (FOREIGN, "plain", 20, 1024, 2048, 1024, 2048, 4096, None)


def test_groups_whose_workers_journal_nothing_are_found(events: DataFrame) -> None:
    counts = activity.event_counts(activity.activity(events, 1_000))
    assert [tuple(row) for row in durations.foreign_groups(counts).collect()] == [(FOREIGN, "plain", 4)]


def test_quantiles_are_those_of_sorted_values(spark: SparkSession) -> None:
    draw = random.Random(7)
    values = {
        key: [int(draw.lognormvariate(4, 1.5)) for _ in range(count)]
        for key, count in {"a": 1, "b": 20, "c": 1_999}.items()
    }
    rows = [(key, value) for key, some in values.items() for value in some] + [("a", None)]
    counted = tally(spark.createDataFrame(rows, "key string, ms bigint"), ["key"], "ms")
    for row in quantiles(counted, ["key"], "ms").collect():
        ordered = sorted(values[row.key])
        ranks = {name: ordered[math.ceil(share * len(ordered) / 1000) - 1] for name, share in QUANTILES.items()}
        assert row.asDict() == {"key": row.key, "n": len(ordered), **ranks, "max": ordered[-1]}
