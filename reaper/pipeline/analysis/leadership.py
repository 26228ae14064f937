"""Who led when, how each term ended, and how long nobody led: from the journals of namespaces."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from reaper.pipeline.analysis.columns import at_ms, named
from workers.protocol.events import EventName

TERM = ("stream", "token")
"""Key of a term; ``stream`` is the journal of the namespace."""

_TTL = r"@(\d+)$"


def terms(events: DataFrame) -> DataFrame:
    """Return one row for each term, and the gap in leadership after it.

    Columns: `TERM`, ``holder``, ``began_ms``, ``ended_ms``; ``end``: ``released``, ``lost``, ``vanished`` (it told
    nothing, as a killed leader does) or ``leading`` (the newest); ``reason``; ``gap_ms``: from its end until the next
    term began. Of one that told its end too late, or never, ``ended_ms`` and ``gap_ms`` are null: nobody knows when it
    stopped. ``gap_at_most_ms``: then its lease's TTL, or what the next term leaves of it, bounds the gap.
    """
    began = _acquisitions(events)
    following = Window.partitionBy("stream").orderBy("began_ms", "token")
    with_next = began.withColumn("next_ms", F.lead("began_ms").over(following))
    told_in_time = F.col("told_ms").isNotNull() & (F.col("next_ms").isNull() | (F.col("told_ms") <= F.col("next_ms")))
    is_last = F.col("next_ms").isNull()
    end = (
        F.when(told_in_time & (F.col("event") == EventName.LEASE_RELEASED), "released")
        .when(F.col("event").isNotNull(), "lost")
        .when(is_last, "leading")
        .otherwise("vanished")
    )
    held_ms = F.col("next_ms") - F.col("began_ms")
    ttl_ms = F.regexp_extract("holder", _TTL, 1).try_cast("bigint")
    unknown = ~told_in_time & ~is_last
    return with_next.join(_ends(events), [*TERM], "left").select(
        *TERM,
        "holder",
        "began_ms",
        F.when(told_in_time, F.col("told_ms")).alias("ended_ms"),
        end.alias("end"),
        "reason",
        F.when(told_in_time, F.col("next_ms") - F.col("told_ms")).alias("gap_ms"),
        F.when(unknown, F.least(held_ms, ttl_ms)).alias("gap_at_most_ms"),
    )


def _acquisitions(events: DataFrame) -> DataFrame:
    acquired = events.where(named(EventName.LEASE_ACQUIRED) & F.col("token").isNotNull())
    return acquired.groupBy(*TERM, "holder").agg(F.min(at_ms()).alias("began_ms"))


def _ends(events: DataFrame) -> DataFrame:
    """Return the first that was told of each term's end: an attempt whose reply was lost tells it twice."""
    told = events.where(named(EventName.LEASE_RELEASED, EventName.LEASE_LOST))
    first = Window.partitionBy(*TERM).orderBy("at", "seq")
    return (
        told.withColumn("_rank", F.row_number().over(first))
        .where(F.col("_rank") == 1)
        .select(*TERM, "event", "reason", at_ms().alias("told_ms"))
    )
