"""How much happened where and when: one pass over all events, from which counts, rates and lifetimes follow."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reaper.pipeline.analysis.columns import GROUP, PLAIN, at_ms, is_settlement, is_stall, named
from workers.protocol.events import EventName


def extents(events: DataFrame) -> DataFrame:
    """Return how much each journal holds, and from when to when: ``stream, events, first_ms, last_ms``."""
    return events.groupBy("stream").agg(
        F.count("*").alias("events"), F.min(at_ms()).alias("first_ms"), F.max(at_ms()).alias("last_ms")
    )


def activity(events: DataFrame, period_ms: int) -> DataFrame:
    """Count events: ``stream, group, event, consumer, delivery, stall, period, n, first_settled_ms, last_settled_ms``.

    ``period`` is its begin in ms. The last two are null where nothing was settled.
    """
    period = at_ms() - at_ms() % F.lit(period_ms)
    return (
        events.where(F.col("group").isNotNull())
        .select(
            *GROUP,
            "event",
            "consumer",
            "delivery",
            is_stall().alias("stall"),
            period.alias("period"),
            F.when(is_settlement(), at_ms()).alias("settled_ms"),
        )
        .groupBy(*GROUP, "event", "consumer", "delivery", "stall", "period")
        .agg(
            F.count("*").alias("n"),
            F.min("settled_ms").alias("first_settled_ms"),
            F.max("settled_ms").alias("last_settled_ms"),
        )
    )


_RARE = ("stream", "group", "event", "at", "seq", "entry", "token", "holder", "reason", "verb", "entries",
         "visibility_ms", "extra")  # fmt: skip


def rare_events(events: DataFrame) -> DataFrame:
    """Return all events but those that every job leaves: some per cent, of which many questions are asked."""
    return events.where(~named(*PLAIN)).select(*_RARE)


def event_counts(counted: DataFrame) -> DataFrame:
    """Count the events of each group (``counted``: see `activity`): ``stream, group, event, n``."""
    return counted.groupBy(*GROUP, "event").agg(F.sum("n").alias("n"))


def deliveries_until_done(counted: DataFrame) -> DataFrame:
    """Count the jobs that were done by their delivery count: ``stream, group, delivery, jobs``."""
    return counted.where(named(EventName.ACKED)).groupBy(*GROUP, "delivery").agg(F.sum("n").alias("jobs"))
