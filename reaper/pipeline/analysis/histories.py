"""The few jobs with a story to tell, and what became of each of their deliveries.

Nearly every job goes well: it leaves one ``acked`` event behind (and, at journal level ``full``, some more). All others
are *troubled*: recovered, failed, refused, settled twice, or not settled yet. One pass over all events finds them, by
hash; what costs more is done with their events alone.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reaper.pipeline.analysis.columns import (
    DELIVERY,
    JOB,
    MODE_ADOPT,
    PLAIN,
    REASON_SUSPECT,
    at_ms,
    holds,
    is_completion,
    is_settlement,
    is_stall,
    named,
    true_delivery,
)
from workers.protocol.events import EventName

JOB_HASH = "job_hash"
IN_ORDER = ("generation", "delivery", "delivered_ms", "started_ms", "entry")
"""Order of a job's deliveries. A settlement may come after those of later deliveries, so its time says nothing."""
_OF_NO_DELIVERY = (EventName.REDRIVEN, EventName.LOST_PAYLOAD, EventName.LOST_DELIVERY)
"""They name an entry, and are no part of what became of a delivery by those who had it."""
_ODD = 2**32

_TOLD = (
    *JOB, "at", "seq", "event", "entry", "new_entry", "delivery", "generation", "consumer", "mode", "reason", "verb",
    "type", "counts", "delivered_ms", "begun_ms", "run_ms", "idle_ms", "visibility_ms", "due_ms",
)  # fmt: skip


def troubled_jobs(events: DataFrame) -> DataFrame:
    """Return the hashes (column `JOB_HASH`) of the jobs that did not simply go well.

    A job that did has one ``acked`` event, and nothing but plain ones beside it: it adds up to 1. Where two jobs have
    the same hash, one too many is troubled, which does no harm; to be overlooked, one of them must have had no end and
    no story, which happens to one lake in millions.
    """
    weight = F.when(named(EventName.ACKED), 1).when(named(*PLAIN), 0).otherwise(_ODD)
    return _of_jobs(events).groupBy(_job_hash().alias(JOB_HASH)).agg(F.sum(weight).alias("weight")).where(
        F.col("weight") != 1
    ).select(JOB_HASH)  # fmt: skip


def histories(events: DataFrame, troubled: DataFrame) -> DataFrame:
    """Return all events of the troubled jobs (see `troubled_jobs`), with the columns that their story needs."""
    told = _of_jobs(events).select(*_TOLD, _job_hash().alias(JOB_HASH))
    return told.join(troubled, JOB_HASH, "left_semi").drop(JOB_HASH)


def deliveries(histories: DataFrame) -> DataFrame:
    """Return one row for each delivery of which the journal tells.

    Columns: `DELIVERY`; ``delivered_ms``, when it was first heard of; ``started_ms``, null where it was never started,
    as far as the journal tells; ``run_ms``; ``completed``, its work was done; ``acked``, and that counted; ``acks``,
    how often; ``settled``, its worker settled it, in time or late; ``stalled_ms``, when it was taken for dead;
    ``idle_ms`` and ``visibility_ms`` of that moment; ``adopted``; ``failed``, ``retried``, ``handed_back``: its worker
    gave it back; ``dead_lettered``; and ``next_started_ms``, when the job was started after it.
    """
    return _with_next_start(_by_delivery(_about_deliveries(histories)))


def _of_jobs(events: DataFrame) -> DataFrame:
    """Leave out what is about no job, and what only a later version of ours knows: nobody can say what it means."""
    return events.where(F.col("job").isNotNull() & F.col("group").isNotNull() & named(*EventName))


def _job_hash() -> Column:
    return F.xxhash64(*JOB)


def _about_deliveries(histories: DataFrame) -> DataFrame:
    is_release = holds(F.col("reason") == REASON_SUSPECT) & named(EventName.RECOVERED)
    is_delivery = F.col("entry").isNotNull() & ~named(*_OF_NO_DELIVERY) & ~is_release
    return histories.where(is_delivery).withColumns(
        {
            "at_ms": at_ms(),
            "delivery": true_delivery(),
            "generation": F.coalesce("generation", F.lit(0)),
            "is_stall": is_stall(),
            "marks": _marks(),
        }
    )


_MARKS = (
    "completed", "acked", "settled", "adopted", "failed", "retried", "handed_back", "dead_lettered", "waited",
)  # fmt: skip
"""What events say of a delivery, one bit each: aggregated at once, they cost a tenth of as many columns."""


def _marks() -> Column:
    is_uncounted = holds(~F.col("counts"))
    conditions = (
        is_completion(),
        named(EventName.ACKED),
        is_settlement(),
        is_stall() & (F.col("mode") == MODE_ADOPT),
        named(EventName.NACKED) & ~is_uncounted,
        named(EventName.NACKED) & is_uncounted,
        named(EventName.HANDED_BACK),
        named(EventName.DEAD_LETTERED),
        named(EventName.DELIVERED) | (is_settlement() & F.col("begun_ms").isNull()),
    )
    bits = (F.when(holds(condition), F.lit(1 << place)).otherwise(0) for place, condition in enumerate(conditions))
    return reduce(Column.bitwiseOR, bits)


def _marked(name: str) -> Column:
    return F.col("marks").bitwiseAND(1 << _MARKS.index(name)) != 0


def _by_delivery(about: DataFrame) -> DataFrame:
    at, stalled, ran = F.col("at_ms"), F.col("is_stall"), F.col("run_ms") >= 0
    delivered_ms = F.coalesce("delivered_ms", F.when(stalled, at - F.greatest("idle_ms", F.lit(0))), at)
    found = about.groupBy(*DELIVERY).agg(
        F.bit_or("marks").alias("marks"),
        F.min(delivered_ms).alias("delivered_ms"),
        F.min(F.coalesce("begun_ms", F.when(named(EventName.STARTED), at))).alias("_begun_ms"),
        F.max(F.when(ran, F.col("run_ms"))).alias("run_ms"),
        F.count_if(named(EventName.ACKED)).alias("acks"),
        F.min(F.when(stalled, at)).alias("stalled_ms"),
        F.max(F.when(stalled, F.col("idle_ms"))).alias("idle_ms"),
        F.max(F.when(stalled, F.col("visibility_ms"))).alias("visibility_ms"),
    )
    # If deliveries are journaled one by one, one without `started` waited in its worker until the end. If they are not,
    # a stalled one counts as started, because most were and the journal does not tell.
    assumed = F.when(~_marked("waited"), F.col("delivered_ms"))
    return found.withColumn("started_ms", F.coalesce("_begun_ms", assumed)).select(
        *DELIVERY,
        *("delivered_ms", "started_ms", "run_ms", "acks", "stalled_ms", "idle_ms", "visibility_ms"),
        *(_marked(name).alias(name) for name in _MARKS if name != "waited"),
    )


def _with_next_start(found: DataFrame) -> DataFrame:
    later = Window.partitionBy(*JOB).orderBy(*IN_ORDER).rowsBetween(1, Window.unboundedFollowing)
    return found.withColumn("next_started_ms", F.min("started_ms").over(later))
