"""Who led when, on rows whose answers were worked out by hand."""

from pyspark.sql import SparkSession

from reaper.pipeline.analysis.leadership import terms
from tests.pipeline.stories import NAMESPACE_JOURNAL, Row, event, frame

OTHER = "{other}:journal"


def _lease(
    name: str, at: int, token: int, holder: str, *, seq: int = 0, stream: str = NAMESPACE_JOURNAL, **data: str
) -> Row:
    return event(name, at, stream=stream, seq=seq, token=token, holder=holder, **data)


def _seen(name: str, at: int, token: int) -> Row:
    """What a leader wrote into the journal of a group."""
    return event(name, at, "1", token=token)


def test_terms_have_holders_ends_and_the_gap_after_them(spark: SparkSession) -> None:
    rows = [
        _lease("lease_acquired", 1_000, 1, "r1.a@1500"),
        _lease("lease_released", 5_000, 1, "r1.a@1500", reason="stopped"),
        _lease("lease_acquired", 5_020, 2, "r2.b@1500"),
        # r2 is killed: its lease expires, and for a while nobody else is there
        _seen("recovered", 7_000, 2),
        _seen("scanned", 8_000, 2),
        _seen("refused", 8_900, 2),  # a write that came too late proves nothing
        _seen("scanned", 9_000 + 1, 2),  # nor does what came after its successor
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
        # Two namespaces, and nobody can say whose token 3 it is.
        _lease("lease_acquired", 8_000, 3, "x.b", stream=OTHER),
        _lease("lease_acquired", 14_500, 4, "x.c", stream=OTHER),
        _seen("scanned", 11_000, 3),
        event("lease_acquired", 15_000, stream=OTHER, token=5),  # nobody's
        event("fault_injected", 8_000, stream=NAMESPACE_JOURNAL, kind="kill-leader", target="r2", holder="r2.b@1500"),
    ]
    told = [tuple(row) for row in terms(frame(spark, rows)).orderBy("stream", "token").collect()]
    assert told == [
        (OTHER, 1, "x.a", 2_000, 2_500, "released", "stopped", 5_500, None),
        (OTHER, 3, "x.b", 8_000, None, "vanished", None, None, 6_500),
        (OTHER, 4, "x.c", 14_500, None, "leading", None, None, None),
        (NAMESPACE_JOURNAL, 1, "r1.a@1500", 1_000, 5_000, "released", "stopped", 20, None),
        (NAMESPACE_JOURNAL, 2, "r2.b@1500", 5_020, None, "vanished", None, None, 1_000),
        (NAMESPACE_JOURNAL, 3, "r3.c@1500", 9_000, None, "lost", "expired", None, 3_000),
        (NAMESPACE_JOURNAL, 4, "r1.d@1500", 12_000, 14_000, "lost", "token_behind", 100, None),
        (NAMESPACE_JOURNAL, 6, "r1.e@1500", 14_100, None, "vanished", None, None, 500),
        (NAMESPACE_JOURNAL, 7, "r2.f@1500", 14_600, None, "leading", None, None, None),
    ]
