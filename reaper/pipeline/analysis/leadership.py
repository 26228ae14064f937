"""Who led when, how each term ended, and how long nobody led: from the journals of namespaces."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from reaper.pipeline.analysis.columns import at_ms, named
from workers.protocol.events import EventName

TERM = ("stream", "token")
"""Key of a term; ``stream`` is the journal of the namespace."""
_FOR_EVER_MS = 1 << 62

_AT_WORK = (EventName.SCANNED, EventName.RECOVERED, EventName.SUSPECTED, EventName.DEAD_LETTERED)
"""What a leader writes in a group's journal, with its token: its fence stood there at that moment."""


def terms(events: DataFrame) -> DataFrame:
    """Return one row for each term, and the gap in leadership after it.

    Columns: `TERM`, ``holder``, ``began_ms``, ``ended_ms``; ``end``: ``released``, ``lost``, ``vanished`` (it told
    nothing, as a killed leader does) or ``leading`` (the newest); ``reason``; ``gap_ms``: from its end until the next
    term began. Of one that told its end too late, or never, ``ended_ms`` and ``gap_ms`` are null: nobody knows when it
    stopped. ``gap_at_most_ms``: then the time since it was last seen to lead bounds the gap. A lease's TTL does not: it
    says when others may lead, not when one of them is there.
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
    unknown = ~told_in_time & ~is_last
    told = with_next.join(_ends(events), [*TERM], "left").join(_last_seen(with_next, events), [*TERM], "left")
    return told.select(
        *TERM,
        "holder",
        "began_ms",
        F.when(told_in_time, F.col("told_ms")).alias("ended_ms"),
        end.alias("end"),
        "reason",
        F.when(told_in_time, F.col("next_ms") - F.col("told_ms")).alias("gap_ms"),
        F.when(unknown, F.col("next_ms") - F.coalesce("seen_ms", "began_ms")).alias("gap_at_most_ms"),
    )


def _acquisitions(events: DataFrame) -> DataFrame:
    acquired = events.where(named(EventName.LEASE_ACQUIRED) & F.col("token").isNotNull() & F.col("holder").isNotNull())
    return acquired.groupBy(*TERM, "holder").agg(F.min(at_ms()).alias("began_ms"))


def _last_seen(spans: DataFrame, events: DataFrame) -> DataFrame:
    """Return when the holder of each term was last seen at work: `TERM`, ``seen_ms``.

    A group's journal does not say whose token it tells. So nothing is seen of a term beside which another namespace
    has one with the same token.
    """
    span = spans.select(*TERM, "began_ms", F.coalesce("next_ms", F.lit(_FOR_EVER_MS)).alias("next_ms"))
    other = span.select("token", *(F.col(name).alias(f"other_{name}") for name in ("stream", "began_ms", "next_ms")))
    beside = (
        (F.col("stream") != F.col("other_stream"))
        & (F.col("began_ms") <= F.col("other_next_ms"))
        & (F.col("other_began_ms") <= F.col("next_ms"))
    )
    mistakable = span.join(other, "token").where(beside).select(*TERM)
    at_work = events.where(named(*_AT_WORK) & F.col("token").isNotNull()).select("token", at_ms().alias("seen_ms"))
    seen = span.join(mistakable, [*TERM], "left_anti").join(at_work, "token")
    return (
        seen.where(F.col("seen_ms").between(F.col("began_ms"), F.col("next_ms")))
        .groupBy(*TERM)
        .agg(F.max("seen_ms").alias("seen_ms"))
    )


def _ends(events: DataFrame) -> DataFrame:
    """Return the first that was told of each term's end: an attempt whose reply was lost tells it twice."""
    told = events.where(named(EventName.LEASE_RELEASED, EventName.LEASE_LOST))
    first = Window.partitionBy(*TERM).orderBy("at", "seq")
    return (
        told.withColumn("_rank", F.row_number().over(first))
        .where(F.col("_rank") == 1)
        .select(*TERM, "event", "reason", at_ms().alias("told_ms"))
    )
