"""How long jobs wait and run, where workers journal it; and what a leader's scans allow to say where they do not."""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reaper.pipeline.analysis.columns import GROUP, at_ms, holds, is_duration, is_settlement, named
from reaper.pipeline.analysis.quantiles import quantiles, tally
from workers.protocol.events import EventName

KIND = (*GROUP, "type")
"""A group and a type of job; the type is empty where workers journal none."""

WAIT, RUN, HELD, SKEWED = "wait", "run", "held", "skewed"

_CLOCKS_DIFFER_MS = 60_000
"""A worker follows the server's clock with an error of one round trip; more than this is a clock that was set."""
_AGES = "array<array<bigint>>"


def duration_tally(events: DataFrame, part_ms: int) -> DataFrame:
    """Count equal durations of deliveries that their worker ended: `KIND`, ``mode, measure, part, ms, n``.

    ``wait``: of acknowledged ones, from the moment an entry could be read until it was delivered; ``run``: of the same,
    the handler's time; ``held``: of all but those handed back, waiting in the worker, running, waiting to be settled.
    What is no duration is ``skewed``: put aside, and counted once an event.
    ``part``: of ``held``, in which part of ``part_ms`` it ended, as its begin in ms; null of the others.
    """
    acked, held = named(EventName.ACKED), ~named(EventName.HANDED_BACK)
    held_ms = F.greatest(at_ms() - F.col("delivered_ms"), F.col("run_ms"))
    told = (F.when(acked, _wait_ms()), F.when(acked, F.col("run_ms")), F.when(held, held_ms))
    is_skewed = reduce(Column.__or__, (holds(~is_duration(ms)) for ms in told))
    wait, run, held_for = (F.when(is_duration(ms), ms) for ms in told)
    measured = events.where(is_settlement() & F.col("group").isNotNull()).select(
        *GROUP,
        F.coalesce("type", F.lit("")).alias("type"),
        "mode",
        F.inline(
            F.array(
                _measure(WAIT, wait),
                _measure(RUN, run),
                _measure(HELD, held_for, at_ms() - at_ms() % F.lit(part_ms)),
                _measure(SKEWED, F.when(is_skewed, F.lit(0).cast("bigint"))),
            )
        ),
    )
    return tally(measured, [*KIND, "mode", "measure", "part"], "ms")


def _wait_ms() -> Column:
    """Return how long a delivery waited from when it could be read; two clocks that differ a little make no skew."""
    wait_ms = F.col("delivered_ms") - F.col("ready_ms")
    return F.when(wait_ms.between(-_CLOCKS_DIFFER_MS, 0), 0).otherwise(wait_ms)


def _measure(name: str, ms: Column, part: Column | None = None) -> Column:
    of_part = F.lit(None).cast("bigint") if part is None else part
    return F.struct(F.lit(name).alias("measure"), of_part.alias("part"), ms.alias("ms"))


def told_apart(tallied: DataFrame) -> DataFrame:
    """Return those of `duration_tally` that tell of jobs: waiting and running."""
    return tallied.where(F.col("measure").isin(WAIT, RUN))


def skewed_durations(tallied: DataFrame) -> DataFrame:
    """Count the events whose durations were put aside (``tallied``: see `duration_tally`): ``stream, what, events``."""
    skewed = tallied.where(F.col("measure") == SKEWED)
    return (
        skewed.groupBy("stream")
        .agg(F.sum("n").alias("events"))
        .select("stream", F.lit("duration").alias("what"), "events")
    )


def durations(tallied: DataFrame) -> DataFrame:
    """Return quantiles of `duration_tally`: `KIND`, ``measure``, ``n``, ``p50`` … ``max`` (ms)."""
    return quantiles(told_apart(tallied), [*KIND, "measure"], "ms")


def scanned_ages(events: DataFrame) -> DataFrame:
    """Count what leaders saw disappear between full scans: ``stream, group, at_least_ms, below_ms, n``.

    An age is the time between a delivery (or its last extension) and its settlement, by somebody. ``below_ms`` is null
    where no upper bound is known.
    """
    ages = F.from_json(F.get_json_object("extra", "$.gone_ages"), _AGES)
    return (
        events.where(named(EventName.SCANNED) & F.col("group").isNotNull())
        .select(*GROUP, F.explode(ages).alias("age"))
        .select(
            *GROUP, *(F.get("age", F.lit(i)).alias(name) for i, name in enumerate(("at_least_ms", "below_ms", "n")))
        )
        .where((F.col("at_least_ms") >= 0) & (F.col("n") > 0))
        .groupBy(*GROUP, "at_least_ms", "below_ms")
        .agg(F.sum("n").alias("n"))
    )


def scanned_durations(ages: DataFrame) -> DataFrame:
    """Return, for each group, between which bounds the quantiles of `scanned_ages` lie.

    ``stream, group, n, p50_at_least, p50_below, p95_at_least, …`` (ms). A quantile of ages is at least that of their
    lower bounds, and below that of their upper bounds; null = no upper bound is known. These are times in a worker:
    waiting there and running. What was settled between two looks is missing, so short jobs are underrated.
    """
    lower = quantiles(ages.groupBy(*GROUP, "at_least_ms").agg(F.sum("n").alias("n")), GROUP, "at_least_ms")
    unbounded = F.lit(_UNBOUNDED_MS)
    bounded = ages.withColumn("below_ms", F.coalesce("below_ms", unbounded))
    upper = quantiles(bounded.groupBy(*GROUP, "below_ms").agg(F.sum("n").alias("n")), GROUP, "below_ms")
    names = ("p50", "p95", "p99")
    below = upper.select(*GROUP, *(_known(name).alias(f"{name}_below") for name in names))
    at_least = lower.select(*GROUP, "n", *(F.col(name).alias(f"{name}_at_least") for name in names))
    return at_least.join(below, [*GROUP]).select(
        *GROUP, "n", *(f"{name}_{bound}" for name in names for bound in ("at_least", "below"))
    )


_UNBOUNDED_MS = 2**62


def _known(name: str) -> Column:
    return F.when(F.col(name) < _UNBOUNDED_MS, F.col(name))


def foreign_groups(counts: DataFrame) -> DataFrame:
    """Return the groups whose workers journal nothing: ``stream, group, seen_by_leader`` (events).

    ``counts`` are those of `event_counts`. Leaders see deliveries there, and no worker tells of a settlement: they are
    not ours, or their journal is off.
    """
    settled = F.col("event").isin(EventName.ACKED, EventName.NACKED, EventName.HANDED_BACK, EventName.REFUSED)
    seen = F.col("event").isin(EventName.SCANNED, EventName.RECOVERED, EventName.SUSPECTED)
    return (
        counts.groupBy(*GROUP)
        .agg(
            F.sum(F.when(settled, F.col("n")).otherwise(0)).alias("journalled"),
            F.sum(F.when(seen, F.col("n")).otherwise(0)).alias("seen_by_leader"),
        )
        .where((F.col("journalled") == 0) & (F.col("seen_by_leader") > 0))
        .drop("journalled")
    )
