"""How much happened where and when: one pass over all events, from which counts, rates and lifetimes follow."""

from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reaper.pipeline.analysis.columns import GROUP, PLAIN, at_ms, is_settlement, is_stall, named
from reaper.pipeline.spark.collecting import collect_rows
from workers.protocol.events import EventName

_ENDS = (EventName.ACKED, EventName.NACKED, EventName.HANDED_BACK, EventName.DEAD_LETTERED)


class Extent(NamedTuple):
    """When the first and the last event happened, in ms (zeros where there is none), and how many there are."""

    first_ms: int
    last_ms: int
    events: int

    @property
    def span_ms(self) -> int:
        """Time between the first and the last event."""
        return self.last_ms - self.first_ms


def extent(events: DataFrame) -> Extent:
    """Return how far events reach. Asks at once."""
    asked = events.agg(F.min("at").alias("first"), F.max("at").alias("last"), F.count("*").alias("events"))
    (found,) = collect_rows(
        asked.select(F.unix_millis("first").alias("first_ms"), F.unix_millis("last").alias("last_ms"), "events")
    )
    return Extent(found["first_ms"] or 0, found["last_ms"] or 0, found["events"])


OF_NO_GROUP = (EventName.LEASE_ACQUIRED, EventName.LEASE_LOST, EventName.LEASE_RELEASED, EventName.FAULT_INJECTED)
"""What is told of namespaces."""


def groupless(counted: DataFrame) -> DataFrame:
    """Count events of groups that do not say of which (``counted``: see `activity`): ``stream, what, events``."""
    nameless = counted.where(F.col("group").isNull() & named(*(set(EventName) - set(OF_NO_GROUP))))
    return (
        nameless.groupBy("stream")
        .agg(F.sum("n").alias("events"))
        .select("stream", F.lit("group").alias("what"), "events")
    )


def misdated(events: DataFrame) -> DataFrame:
    """Count events that are left out for their instant: ``stream, what, events``."""
    return (
        events.groupBy("stream")
        .agg(F.count("*").alias("events"))
        .select("stream", F.lit("instant").alias("what"), "events")
    )


def activity(events: DataFrame, period_ms: int) -> DataFrame:
    """Count events: ``stream, group, event, consumer, delivery, stall, period, n``, and times in ms.

    ``period`` is its begin in ms; ``first_ms`` and ``last_ms`` are of the events, ``first_settled_ms`` and
    ``last_settled_ms`` of those that are settlements: null where nothing was settled. ``consumer``, ``delivery`` and
    ``period`` are those of events that end a delivery, and null elsewhere: nobody asks, and it makes fewer counts.
    """
    settled, stalled = is_settlement(), is_stall()
    ends = stalled | settled | named(*_ENDS)
    period = at_ms() - at_ms() % F.lit(period_ms)
    return (
        events.select(
            *GROUP,
            "event",
            F.when(ends, F.col("consumer")).alias("consumer"),
            F.when(ends, F.col("delivery")).alias("delivery"),
            stalled.alias("stall"),
            F.when(ends, period).alias("period"),
            at_ms().alias("at_ms"),
            F.when(settled, at_ms()).alias("settled_ms"),
        )
        .groupBy(*GROUP, "event", "consumer", "delivery", "stall", "period")
        .agg(
            F.count("*").alias("n"),
            F.min("at_ms").alias("first_ms"),
            F.max("at_ms").alias("last_ms"),
            F.min("settled_ms").alias("first_settled_ms"),
            F.max("settled_ms").alias("last_settled_ms"),
        )
    )


def extents(counted: DataFrame) -> DataFrame:
    """Return how much each journal holds (``counted``: see `activity`): ``stream, events, first_ms, last_ms``."""
    return counted.groupBy("stream").agg(
        F.sum("n").alias("events"), F.min("first_ms").alias("first_ms"), F.max("last_ms").alias("last_ms")
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
