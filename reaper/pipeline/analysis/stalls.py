"""Where deliveries stall, and when."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reaper.pipeline.analysis.columns import GROUP, permille, worker_of
from workers.protocol.events import EventName

SETTLED = (EventName.ACKED, EventName.NACKED, EventName.HANDED_BACK)
"""Ends of a delivery that did not stall; dead letters are of both kinds."""


def _ended() -> tuple[Column, Column]:
    """Return how many deliveries ended, and how many of them stalled, of counts as `activity` makes them."""
    ended = F.col("stall") | F.col("event").isin(*SETTLED, EventName.DEAD_LETTERED)
    return (
        F.sum(F.when(ended, F.col("n")).otherwise(0)).alias("deliveries"),
        F.sum(F.when(F.col("stall"), F.col("n")).otherwise(0)).alias("stalls"),
    )


def stalls_by_worker(counted: DataFrame) -> DataFrame:
    """Return ``stream, group, worker, processes, deliveries, stalls, permille`` (``counted``: see `activity`).

    A worker is a consumer without the nonce of its process, and so by default a host. Deliveries are those that ended.
    A worker that journals nothing is seen only where it stalls: ``permille`` is then 1000.
    """
    by_process = counted.where(F.col("consumer").isNotNull()).groupBy(*GROUP, "consumer").agg(*_ended())
    return (
        by_process.withColumn("worker", worker_of("consumer"))
        .groupBy(*GROUP, "worker")
        .agg(
            F.count("*").alias("processes"),
            F.sum("deliveries").alias("deliveries"),
            F.sum("stalls").alias("stalls"),
        )
        .where(F.col("deliveries") > 0)
        .withColumn("permille", permille(F.col("stalls"), F.col("deliveries")))
    )


def stalls_over_time(counted: DataFrame) -> DataFrame:
    """Return ``stream, group, period, deliveries, stalls, permille``; ``period`` is its begin in ms."""
    return (
        counted.groupBy(*GROUP, "period")
        .agg(*_ended())
        .where(F.col("deliveries") > 0)
        .withColumn("permille", permille(F.col("stalls"), F.col("deliveries")))
    )
