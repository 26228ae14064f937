"""What ran twice, what was refused, and what is not settled.

A *second start* is a job that was started again; a *duplicate* is a job whose work was completed twice.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reaper.pipeline.analysis.columns import BY_HASH, GROUP, JOB, at_ms, named
from reaper.pipeline.analysis.histories import IN_ORDER
from workers.protocol.events import EventName

RELEASES = (
    EventName.RECOVERED,
    EventName.SUSPECTED,
    EventName.NACKED,
    EventName.HANDED_BACK,
    EventName.REDRIVEN,
)
"""Events after which a job has to be run again."""
ENDS = (EventName.ACKED, EventName.DEAD_LETTERED, EventName.LOST_PAYLOAD)

_BEFORE = ("generation", "settled", "run_ms", "stalled_ms", "idle_ms", "visibility_ms", "adopted", "failed",
           "retried", "handed_back")  # fmt: skip


def second_starts(deliveries: DataFrame) -> DataFrame:
    """Return every start of a job after its first: ``stream, group, job, generation, entry, delivery, start, cause``.

    ``start`` counts the starts of the job from 2. ``cause`` is what became of the start before:
    ``early_recovery`` it was recovered before its visibility timeout had passed; ``late_settlement`` its worker lived,
    and settled too late what it had done in time; ``slow`` its worker lived, and ran longer than the visibility
    timeout; ``crash`` nothing was heard of it again; ``restart`` a later process of the same worker took it over;
    ``failed`` the handler failed; ``retried`` the same, uncounted; ``handed_back`` at a shutdown; ``redriven`` by an
    operator; ``unexplained`` none of these.
    """
    of_job = Window.partitionBy(*JOB).orderBy(*IN_ORDER)
    started = deliveries.where(F.col("started_ms").isNotNull())
    before = {f"before_{name}": F.lag(name).over(of_job) for name in _BEFORE}
    numbered = started.withColumns({"start": F.row_number().over(of_job), **before})
    return numbered.where(F.col("start") > 1).select(
        *JOB, "generation", "entry", "delivery", "start", "started_ms", _cause().alias("cause")
    )


def _cause() -> Column:
    def before(name: str) -> Column:
        return F.col(f"before_{name}")

    stalled = before("stalled_ms").isNotNull()
    is_early = stalled & (before("idle_ms") >= 0) & (before("idle_ms") < before("visibility_ms"))
    return (
        F.when(before("generation") < F.col("generation"), "redriven")
        .when(is_early, "early_recovery")
        .when(stalled & before("settled") & (before("run_ms") >= before("visibility_ms")), "slow")
        .when(stalled & before("settled"), "late_settlement")
        .when(stalled & before("adopted"), "restart")
        .when(stalled, "crash")
        .when(before("failed"), "failed")
        .when(before("retried"), "retried")
        .when(before("handed_back"), "handed_back")
        .otherwise("unexplained")
    )


def second_start_counts(starts: DataFrame) -> DataFrame:
    """Count second starts: ``stream, group, cause, starts, jobs``."""
    by_job = starts.groupBy(*JOB, "cause").agg(F.count("*").alias("starts"))
    return by_job.groupBy(*GROUP, "cause").agg(F.sum("starts").alias("starts"), F.count("*").alias("jobs"))


def duplicates(deliveries: DataFrame, starts: DataFrame) -> DataFrame:
    """Return the jobs whose work was completed more than once: ``stream, group, job, generation, times, cause``.

    Work counts as completed when it was acknowledged, each time, and when that was refused because it came too late.
    ``cause`` is that of the job's last second start.
    """
    key = [*JOB, "generation"]
    # A refusal beside an acknowledgement of the same delivery is the same work, told twice: its first reply was lost.
    times = F.sum(F.greatest("acks", F.lit(1)))
    completed = deliveries.where("completed").groupBy(*key).agg(times.alias("times")).where(F.col("times") > 1)
    newest = Window.partitionBy(*key).orderBy(F.desc("start"))
    last = starts.withColumn("_rank", F.row_number().over(newest)).where(F.col("_rank") == 1).select(*key, "cause")
    return completed.join(last, key, "left").select(
        *key, "times", F.coalesce("cause", F.lit("unexplained")).alias("cause")
    )


def duplicate_counts(duplicates: DataFrame) -> DataFrame:
    """Count duplicates: ``stream, group, cause, jobs``."""
    return duplicates.groupBy(*GROUP, "cause").agg(F.count("*").alias("jobs"))


def unsettled_jobs(histories: DataFrame, *, few: bool = False) -> DataFrame:
    """Return the jobs that the journal leaves open: ``stream, group, job, event, at_ms, last_entry``.

    The last word on them (``event``) is none that ends a job. They may be ready, pending, scheduled, settled since, or
    settled by a worker that journals nothing; only a look at the live streams can call one lost. ``last_entry`` is
    where it was last known to lie; null for a parked suspect or a scheduled retry, which lies in no stream, and where
    nobody knows. ``few``: they fit into memory.
    """
    ended_ms = F.max(F.when(named(*ENDS), F.col("at_ms")))
    released_ms = F.max(F.when(named(*RELEASES), F.col("at_ms")))
    told = histories.withColumn("at_ms", at_ms())
    is_open = F.col("ended_ms").isNull() | (F.col("ended_ms") < F.col("released_ms"))
    open_jobs = (
        told.groupBy(*JOB).agg(ended_ms.alias("ended_ms"), released_ms.alias("released_ms")).where(is_open).select(*JOB)
    )
    # A refusal says where the job had been, not where it is: only where nothing else is known, it has the last word.
    newest = Window.partitionBy(*JOB).orderBy(named(EventName.REFUSED), F.desc("at_ms"), F.desc("seq"))
    return (
        told.join(open_jobs.hint(BY_HASH) if few else open_jobs, [*JOB], "left_semi")
        .withColumn("_rank", F.row_number().over(newest))
        .where(F.col("_rank") == 1)
        .select(*JOB, "event", "at_ms", _last_entry().alias("last_entry"))
    )


def _last_entry() -> Column:
    moved = named(EventName.SUSPECTED, EventName.REFUSED) | F.col("due_ms").isNotNull()
    return F.when(~moved, F.coalesce("new_entry", "entry"))


def lost_payloads(histories: DataFrame) -> DataFrame:
    """Return deliveries whose payload was gone, trimmed or deleted by somebody: ``stream, group, entry, at_ms``."""
    return histories.where(named(EventName.LOST_PAYLOAD)).select(*GROUP, "entry", at_ms().alias("at_ms"))


def refused_writes(events: DataFrame) -> DataFrame:
    """Count refused writes: ``stream, group, verb, of, calls, entries``; ``of`` is ``leader`` or ``worker``.

    A leader's refusal is one call about many entries: its term was over. A worker's is one delivery that was not its
    own any more.
    """
    return (
        events.where(named(EventName.REFUSED) & F.col("group").isNotNull())
        .withColumn("of", F.when(F.col("token").isNotNull(), "leader").otherwise("worker"))
        .groupBy(*GROUP, "verb", "of")
        .agg(F.count("*").alias("calls"), F.sum(F.coalesce("entries", F.lit(1))).alias("entries"))
    )
