"""How stalled deliveries came back, on rows whose answers were worked out by hand."""

import pytest
from pyspark.sql import DataFrame, SparkSession

from reaper.pipeline.analysis import histories, recovery
from tests.pipeline import stories
from tests.pipeline.stories import JOURNAL

Told = tuple[str, str, int | None, int | None]


@pytest.fixture(scope="module")
def recoveries(spark: SparkSession) -> DataFrame:
    events = stories.frame(spark, stories.ALL)
    troubled = histories.histories(events, histories.troubled_jobs(events)).cache()
    return recovery.recoveries(troubled, histories.deliveries(troubled)).cache()


def test_each_stalled_delivery_has_its_overshoot_and_the_wait_until_the_next_start(recoveries: DataFrame) -> None:
    rows = recoveries.select("job", "outcome", "reason", "overshoot_ms", "wait_ms").collect()
    told: dict[str, list[Told]] = {}
    for job, *rest in sorted(map(tuple, rows), key=lambda row: (row[0], row[1] == "dead_lettered", row[1])):
        told.setdefault(job.removesuffix("-0"), []).append(tuple(rest))
    by_timeout = "visibility_timeout"
    assert told == {
        "2000": [("recovered", by_timeout, 10, 100)],
        "3000": [("recovered", by_timeout, 4, 100)],
        "4000": [("recovered", by_timeout, 50, 50)],
        "5000": [("recovered", by_timeout, -10, 0)],
        "9000": [
            ("recovered", by_timeout, 20, 480),
            ("suspected", "last_delivery", 0, 400),
            ("dead_lettered", "max_deliveries", 100, None),
        ],
        "10000": [("suspected", "crashed_in_company", 0, 200)],
        "11000": [("recovered", "restart", None, 50)],
        "14000": [("recovered", by_timeout, 100, None)],
        "15000": [("suspected", "last_delivery", 100, None)],
        "17000": [("recovered", by_timeout, 0, 14)],
        "19000": [("recovered", by_timeout, None, 100)],
        "27000": [("recovered", by_timeout, 50, 50)],
        "28000": [("recovered", by_timeout, 30, 20)],
        "29000": [("recovered", by_timeout, 20, 80)],
    }


def test_times_are_ranked_by_mode_outcome_and_reason(recoveries: DataFrame) -> None:
    times = recovery.recovery_times(recovery.recovery_tally(recoveries)).drop("stream", "group").collect()
    assert {tuple(row)[:4]: tuple(row)[4:] for row in times} == {
        # overshoots -10 0 4 10 20 20 30 50 50 100, waits 0 14 20 50 50 80 100 100 100 480: nearest ranks
        ("reaper", "recovered", "visibility_timeout", "overshoot"): (10, 20, 100, 100, 100, 100),
        ("reaper", "recovered", "visibility_timeout", "wait"): (10, 50, 480, 480, 480, 480),
        ("reaper", "suspected", "last_delivery", "overshoot"): (2, 0, 100, 100, 100, 100),
        ("reaper", "suspected", "last_delivery", "wait"): (1, 400, 400, 400, 400, 400),
        ("reaper", "suspected", "crashed_in_company", "overshoot"): (1, 0, 0, 0, 0, 0),
        ("reaper", "suspected", "crashed_in_company", "wait"): (1, 200, 200, 200, 200, 200),
        ("reaper", "dead_lettered", "max_deliveries", "overshoot"): (1, 100, 100, 100, 100, 100),
        ("adopt", "recovered", "restart", "wait"): (1, 50, 50, 50, 50, 50),
    }


def test_recoveries_before_their_time_are_counted(recoveries: DataFrame) -> None:
    counts = recovery.recovery_counts(recoveries).collect()
    assert {(*row[:2], row.mode, row.reason): (row.recoveries, row.early) for row in counts} == {
        (JOURNAL, "billing", "reaper", "visibility_timeout"): (10 + 1, 1),
        (JOURNAL, "billing", "reaper", "last_delivery"): (2, 0),
        (JOURNAL, "billing", "reaper", "crashed_in_company"): (1, 0),
        (JOURNAL, "billing", "reaper", "max_deliveries"): (1, 0),
        (JOURNAL, "billing", "adopt", "restart"): (1, 0),
    }
