"""The questions of the report, each a DataFrame of a few rows.

The lake is read six times: for its extent, to find the jobs with a story, for the activity, for the durations, for the
rare events, and to fetch the events of the jobs with a story. What these passes leave is small and kept in memory;
everything else is asked of that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reaper.pipeline.analysis import (
    activity,
    advisor,
    dead_letters,
    durations,
    histories,
    integrity,
    leadership,
    recovery,
    stalls,
)
from reaper.pipeline.analysis.columns import GROUP, JOB
from reaper.pipeline.analysis.quantiles import curve

MOST_BROADCAST = 2_000_000
"""Hashes of troubled jobs that are sent to every executor (some 50 bytes each); with more, the join shuffles."""
MOST_CLUSTERS = 200
LISTED = 10_000
"""Jobs that are named one by one, at most; all are counted."""

Questions = dict[str, DataFrame]


@dataclass(frozen=True, slots=True)
class Tables:
    """What the report reads of the lake, cut to its scope."""

    events: DataFrame
    dead_letters: DataFrame
    malformed: DataFrame


@dataclass(slots=True)
class Shelf:
    """Keeps results that several questions need, in memory or on disk."""

    _kept: list[DataFrame] = field(default_factory=list)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Keep ``frame`` from when it is first computed."""
        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    def clear(self) -> None:
        """Free everything."""
        while self._kept:
            self._kept.pop().unpersist()


@contextmanager
def shelf() -> Iterator[Shelf]:
    """Give a shelf, and clear it at the end of the block."""
    new = Shelf()
    try:
        yield new
    finally:
        new.clear()


def questions(tables: Tables, period_ms: int, keep: Callable[[DataFrame], DataFrame]) -> Questions:
    """Return the report's questions by name, in the order in which they are best asked.

    Finds the troubled jobs at once, to know how many they are. ``keep``: see `Shelf`.
    """
    events = tables.events
    told = keep(_troubled_histories(events, keep))
    counted = keep(_in_one_part(activity.activity(events, period_ms)))
    tallied = keep(_in_one_part(durations.duration_tally(events)))
    rare = keep(activity.rare_events(events))
    clusters = dead_letters.clusters(tables.dead_letters, rare)
    return {
        **_of_activity(counted),
        **_of_durations(tallied, durations.scanned_ages(rare)),
        **_of_histories(told, keep),
        **advisor.questions(counted, tallied, rare, told),
        "dead_letter_clusters": clusters.orderBy(F.desc("n"), *dead_letters.CLUSTER).limit(MOST_CLUSTERS),
        "refused_writes": integrity.refused_writes(rare),
        "terms": leadership.terms(rare).orderBy("stream", "began_ms"),
        "malformed": tables.malformed.groupBy("stream", "reason").agg(F.count("*").alias("entries")),
    }


def _of_activity(counted: DataFrame) -> Questions:
    counts = activity.event_counts(counted)
    return {
        "event_counts": counts.orderBy(*GROUP, "event"),
        "foreign_groups": durations.foreign_groups(counts),
        "deliveries_until_done": activity.deliveries_until_done(counted).orderBy(*GROUP, "delivery"),
        "stalls_by_worker": stalls.stalls_by_worker(counted).orderBy(F.desc("stalls"), *GROUP, "worker").limit(LISTED),
        "stalls_over_time": stalls.stalls_over_time(counted).orderBy(*GROUP, "period"),
    }


def _of_durations(tallied: DataFrame, ages: DataFrame) -> Questions:
    kinds = [*durations.KIND, "measure"]
    return {
        "durations": durations.durations(tallied).orderBy(*kinds),
        "duration_curves": curve(durations.told_apart(tallied), kinds, "ms").orderBy(*kinds, "below"),
        "scanned_durations": durations.scanned_durations(ages).orderBy(*GROUP),
    }


def _troubled_histories(events: DataFrame, keep: Callable[[DataFrame], DataFrame]) -> DataFrame:
    troubled = keep(histories.troubled_jobs(events))
    few = troubled.count() <= MOST_BROADCAST
    told = histories.histories(events, F.broadcast(troubled) if few else troubled)
    # Nearly every question is about jobs: with all that is told of one in one part, none has to shuffle it again.
    return told.repartition(int(events.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1), *JOB)


def _in_one_part(counted: DataFrame) -> DataFrame:
    """Put what was counted together: it is small however large the lake is, and asked without a shuffle then."""
    return counted.coalesce(1)


def _of_histories(told: DataFrame, keep: Callable[[DataFrame], DataFrame]) -> Questions:
    deliveries = keep(histories.deliveries(told))
    starts = keep(integrity.second_starts(deliveries))
    twice = keep(integrity.duplicates(deliveries, starts))
    unsettled = keep(integrity.unsettled_jobs(told))
    recoveries = keep(recovery.recoveries(told, deliveries))
    tallied = keep(_in_one_part(recovery.recovery_tally(recoveries)))
    by_mode = [*GROUP, "mode", "measure"]
    return {
        "recovery_counts": recovery.recovery_counts(recoveries).orderBy(*recovery.CAUSE),
        "recovery_times": recovery.recovery_times(tallied).orderBy(*recovery.CAUSE, "measure"),
        "recovery_curves": curve(tallied, by_mode, "ms").orderBy(*by_mode, "below"),
        "second_starts": integrity.second_start_counts(starts).orderBy(*GROUP, "cause"),
        "duplicates": integrity.duplicate_counts(twice).orderBy(*GROUP, "cause"),
        "duplicate_jobs": twice.orderBy(*JOB).limit(LISTED),
        "unsettled": unsettled.groupBy(*GROUP, "event").agg(F.count("*").alias("jobs")).orderBy(*GROUP, "event"),
        "unsettled_jobs": unsettled.orderBy("at_ms", *JOB).limit(LISTED),
        "lost_payloads": integrity.lost_payloads(told).groupBy(*GROUP).agg(F.count("*").alias("entries")),
    }
