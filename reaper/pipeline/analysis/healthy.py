"""How jobs fare that no fault has hit, while others are hit: from enqueueing to their acknowledgement."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reaper.pipeline.analysis.columns import GROUP, at_ms, named
from reaper.pipeline.analysis.quantiles import quantiles, tally
from workers.protocol.events import EventName

Span = tuple[int, int]
"""From (inclusive) and to (exclusive), ms of the server's clock."""


def healthy_latency(events: DataFrame, faults: Sequence[Span]) -> DataFrame:
    """Return ``stream, group, during, n, p50`` … ``max`` (ms) of jobs that were done in their first delivery.

    ``during`` tells whether the job was enqueued in one of the spans of ``faults``.
    """
    done = events.where(named(EventName.ACKED) & (F.col("delivery") == 1) & (F.coalesce("generation", F.lit(0)) == 0))
    timed = done.select(
        *GROUP,
        _within(F.col("enqueued_ms"), faults).alias("during"),
        F.greatest(at_ms() - F.col("enqueued_ms"), F.lit(0)).alias("ms"),
    )
    keys = [*GROUP, "during"]
    return quantiles(tally(timed, keys, "ms"), keys, "ms")


def _within(instant: Column, spans: Sequence[Span]) -> Column:
    inside = F.lit(False)
    for begin, end in spans:
        inside |= (instant >= begin) & (instant < end)
    return inside
