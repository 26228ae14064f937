"""Who led when, on rows whose answers were worked out by hand."""

from pyspark.sql import SparkSession

from reaper.pipeline.analysis.leadership import terms
from tests.pipeline.stories import NAMESPACE_JOURNAL, Row, event, frame

OTHER = "{other}:journal"


def _lease(
    name: str, at: int, token: int, holder: str, *, seq: int = 0, stream: str = NAMESPACE_JOURNAL, **data: str
) -> Row:
    return event(name, at, stream=stream, seq=seq, token=token, holder=holder, **data)


def test_terms_have_holders_ends_and_the_gap_after_them(spark: SparkSession) -> None:
    rows = [
        _lease("lease_acquired", 1_000, 1, "r1.a@1500"),
        _lease("lease_released", 5_000, 1, "r1.a@1500", reason="stopped"),
        _lease("lease_acquired", 5_020, 2, "r2.b@1500"),
        # r2 is killed: its lease expires
        _lease("lease_acquired", 9_000, 3, "r3.c@1500"),
        _lease("lease_acquired", 12_000, 4, "r1.d@1500"),
        # r3 was paused, and tells its end when r1 leads already; r1 tells its own twice
        _lease("lease_lost", 13_000, 3, "r3.c@1500", reason="expired"),
        _lease("lease_lost", 14_000, 4, "r1.d@1500", reason="token_behind"),
        _lease("lease_lost", 14_000, 4, "r1.d@1500", seq=1, reason="token_behind"),
        _lease("lease_acquired", 14_100, 6, "r1.e@1500"),
        _lease("lease_acquired", 14_600, 7, "r2.f@1500"),
        _lease("lease_acquired", 2_000, 1, "x.a", stream=OTHER),
        _lease("lease_released", 2_500, 1, "x.a", stream=OTHER, reason="stopped"),
        event("fault_injected", 8_000, stream=NAMESPACE_JOURNAL, kind="kill-leader", target="r2", holder="r2.b@1500"),
    ]
    told = [tuple(row) for row in terms(frame(spark, rows)).orderBy("stream", "token").collect()]
    assert told == [
        (OTHER, 1, "x.a", 2_000, 2_500, "released", "stopped", None, None),
        (NAMESPACE_JOURNAL, 1, "r1.a@1500", 1_000, 5_000, "released", "stopped", 20, None),
        (NAMESPACE_JOURNAL, 2, "r2.b@1500", 5_020, None, "vanished", None, None, 1_500),
        (NAMESPACE_JOURNAL, 3, "r3.c@1500", 9_000, None, "lost", "expired", None, 1_500),
        (NAMESPACE_JOURNAL, 4, "r1.d@1500", 12_000, 14_000, "lost", "token_behind", 100, None),
        (NAMESPACE_JOURNAL, 6, "r1.e@1500", 14_100, None, "vanished", None, None, 500),
        (NAMESPACE_JOURNAL, 7, "r2.f@1500", 14_600, None, "leading", None, None, None),
    ]
