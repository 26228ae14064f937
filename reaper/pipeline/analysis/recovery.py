"""How stalled deliveries came back: how long after their time was up, and how long until the job was started again."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reaper.pipeline.analysis.columns import (
    DELIVERY,
    GROUP,
    LONGEST_MS,
    at_ms,
    holds,
    is_duration,
    is_stall,
    true_delivery,
)
from reaper.pipeline.analysis.quantiles import quantiles, tally

CAUSE = (*GROUP, "mode", "outcome", "reason")
"""How recoveries are told apart: who recovered, what became of the delivery, and why."""


def recoveries(histories: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return one row for each delivery that stalled: `DELIVERY`, `CAUSE`, ``consumer`` (who held it), and times.

    ``overshoot_ms``: idle time beyond the visibility timeout when it was recovered; negative = too early; null where
    nobody owned the delivery, it was not recovered by its time (a worker's restart), or these are no durations.
    ``wait_ms``: from the recovery until the job was started again; null where it was not, or no worker tells. Parked
    suspects wait by intention.
    """
    stalled = histories.where(is_stall()).select(
        *GROUP,
        "job",
        F.coalesce("generation", F.lit(0)).alias("generation"),
        "entry",
        true_delivery().alias("delivery"),
        "consumer",
        "mode",
        F.col("event").alias("outcome"),
        "reason",
        at_ms().alias("at_ms"),
        F.when(_is_timed(), F.col("idle_ms") - F.col("visibility_ms")).alias("overshoot_ms"),
    )
    next_starts = deliveries.select(*DELIVERY, "next_started_ms")
    # `greatest` leaves nulls out: without the condition, a job that was never started again would have waited for 0.
    wait_ms = F.greatest(F.col("next_started_ms") - F.col("at_ms"), F.lit(0))
    return stalled.join(next_starts, [*DELIVERY], "left").select(
        *stalled.columns, F.when(F.col("next_started_ms").isNotNull(), wait_ms).alias("wait_ms")
    )


def _is_timed() -> Column:
    return is_duration(F.col("idle_ms")) & is_duration(F.col("visibility_ms"))


def _is_skewed() -> Column:
    return holds(F.col("idle_ms") > LONGEST_MS) | holds(~is_duration(F.col("visibility_ms")))


def skewed_recoveries(histories: DataFrame) -> DataFrame:
    """Count recoveries whose times were put aside, as those of `durations`: ``stream, what, events``."""
    by_stream = histories.where(is_stall() & _is_skewed()).groupBy("stream").agg(F.count("*").alias("events"))
    return by_stream.select("stream", F.lit("duration").alias("what"), "events")


def recovery_tally(recoveries: DataFrame) -> DataFrame:
    """Count equal times: `CAUSE`, ``measure`` (overshoot | wait), ``ms``, ``n``."""
    measured = recoveries.select(
        *CAUSE,
        F.inline(
            F.array(
                F.struct(F.lit("overshoot").alias("measure"), F.col("overshoot_ms").alias("ms")),
                F.struct(F.lit("wait").alias("measure"), F.col("wait_ms").alias("ms")),
            )
        ),
    )
    return tally(measured, [*CAUSE, "measure"], "ms")


def recovery_times(tallied: DataFrame) -> DataFrame:
    """Return quantiles of `recovery_tally`: `CAUSE`, ``measure``, ``n``, ``p50`` … ``max`` (ms)."""
    return quantiles(tallied, [*CAUSE, "measure"], "ms")


def recovery_counts(recoveries: DataFrame) -> DataFrame:
    """Count recoveries: `CAUSE`, ``recoveries``, ``early`` (before the visibility timeout had passed)."""
    return recoveries.groupBy(*CAUSE).agg(
        F.count("*").alias("recoveries"), F.count_if(F.col("overshoot_ms") < 0).alias("early")
    )
