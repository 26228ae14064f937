"""The questions of the report, each a DataFrame of a few rows.

The lake is read six times: for its span, to find the jobs with a story, for the durations, for the activity, for the
rare events, and to fetch the events of the jobs with a story. What these passes leave is small and kept in memory;
everything else is asked of that.

To put a question into words takes Spark's driver about as long as to answer a small one. So they are made one by one,
while those before them are being answered.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reaper.pipeline.advice.executions import executions
from reaper.pipeline.analysis import (
    activity,
    dead_letters,
    durations,
    histories,
    integrity,
    leadership,
    recovery,
    stalls,
)
from reaper.pipeline.analysis.columns import BY_HASH, GROUP, JOB
from reaper.pipeline.analysis.quantiles import curve

FEW = 2_000_000
"""Troubled jobs that fit into memory: their hashes are sent to every executor (some 50 bytes each), and what is known
of them is joined by hash. More are shuffled, sorted and merged."""
FEW_EVENTS = 10_000_000
"""Of so many one task can count, whatever they are: what is counted in one part is asked without a shuffle."""
VERY_FEW = 20_000
"""Troubled jobs of which one task can do everything: that saves a shuffle, and a stage, in each of its questions."""
MOST_CLUSTERS = 200
LISTED = 10_000
"""Jobs that are named one by one, at most; all are counted."""

_PERIODS_MS = [unit * n for unit, ns in (
    (1_000, (1, 2, 5, 10, 30)), (60_000, (1, 2, 5, 10, 30)), (3_600_000, (1, 2, 6, 12)), (86_400_000, (1, 7, 30, 365)),
) for n in ns]  # fmt: skip
MOST_PERIODS = 120
"""Points of a course over time."""


class Question(NamedTuple):
    """What is asked."""

    name: str
    answer: DataFrame
    order: Sequence[str] = ()
    """The columns that its rows are put in order by once they are here: Spark would take two more jobs for it."""


Questions = Iterator[Question]


def choose_period(span_ms: int) -> int:
    """Return how long a point of a course over time should last, in ms."""
    return next((period for period in _PERIODS_MS if span_ms <= period * MOST_PERIODS), _PERIODS_MS[-1])


@dataclass(frozen=True, slots=True)
class Tables:
    """What the report reads of the lake, cut to its scope."""

    events: DataFrame
    dead_letters: DataFrame
    malformed: DataFrame
    misdated: DataFrame
    """Events whose instant cannot be: see `Scope.misdated`."""


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


def questions(
    tables: Tables,
    extent: Callable[[], activity.Extent],
    keep: Callable[[DataFrame], DataFrame],
    begin: Callable[[Callable[[], int]], Future[int]],
) -> Questions:
    """Make the report's questions, in the order in which they are best asked.

    ``extent`` of the events, and what ``begin`` begins are waited for when they are
    needed. ``keep``: see `Shelf`.
    """
    events = tables.events
    troubled = keep(histories.troubled_jobs(events))
    how_many = begin(troubled.count)
    few_events = extent().events <= FEW_EVENTS
    tallied = keep(_together(durations.duration_tally(events, extent().span_ms + 1), few_events))
    yield from _of_durations(tallied)
    rare = activity.rare_events(events)
    rare = keep(rare.repartition(1) if few_events else rare)
    yield from _of_rare_events(rare)
    counted = keep(_together(activity.activity(events, choose_period(extent().span_ms)), few_events))
    yield from _of_activity(counted)
    yield Question("dead_letter_clusters", _newest_clusters(tables.dead_letters, rare))
    yield Question("malformed", tables.malformed.groupBy("stream", "reason").agg(F.count("*").alias("entries")))
    few = how_many.result() <= FEW
    told = keep(_told(events, troubled, how_many.result()))
    yield from _of_histories(told, keep, few, few_events)
    aside = durations.skewed_durations(tallied), recovery.skewed_recoveries(told), activity.groupless(counted)
    yield Question("skewed", reduce(DataFrame.unionByName, aside, activity.misdated(tables.misdated)))
    yield Question("executions", executions(events), [*GROUP, "type", "kind", "bin"])


def _of_durations(tallied: DataFrame) -> Questions:
    kinds = [*durations.KIND, "measure"]
    yield Question("durations", durations.durations(tallied), kinds)
    yield Question("duration_curves", curve(durations.told_apart(tallied), kinds, "ms"), [*kinds, "below"])


def _of_rare_events(rare: DataFrame) -> Questions:
    yield Question("scanned_durations", durations.scanned_durations(durations.scanned_ages(rare)), GROUP)
    yield Question("refused_writes", integrity.refused_writes(rare), [*GROUP, "verb", "of"])
    yield Question("terms", leadership.terms(rare), ["stream", "began_ms"])


def _of_activity(counted: DataFrame) -> Questions:
    yield Question("extents", activity.extents(counted), ["stream"])
    of_groups = counted.where(F.col("group").isNotNull())
    counts = activity.event_counts(of_groups)
    yield Question("event_counts", counts, [*GROUP, "event"])
    yield Question("foreign_groups", durations.foreign_groups(counts))
    yield Question("deliveries_until_done", activity.deliveries_until_done(of_groups), [*GROUP, "delivery"])
    by_worker = stalls.stalls_by_worker(of_groups)
    yield Question("stalls_by_worker", by_worker.orderBy(F.desc("stalls"), *GROUP, "worker").limit(LISTED))
    yield Question("stalls_over_time", stalls.stalls_over_time(of_groups), [*GROUP, "period"])


def _newest_clusters(letters: DataFrame, rare: DataFrame) -> DataFrame:
    clusters = dead_letters.clusters(letters, rare)
    return clusters.orderBy(F.desc("n"), *dead_letters.CLUSTER).limit(MOST_CLUSTERS)


def _told(events: DataFrame, troubled: DataFrame, how_many: int) -> DataFrame:
    told = histories.histories(events, F.broadcast(troubled) if how_many <= FEW else troubled)
    if how_many <= VERY_FEW:
        return told.repartition(1)
    # Nearly every question is about jobs: with all that is told of one in one part, none has to shuffle it again.
    return told.repartition(int(events.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1), *JOB)


def _together(counted: DataFrame, few_events: bool) -> DataFrame:
    """Put what was counted of few events into one part, to be asked without a shuffle: one task counts it then.

    There are never more counts than events; of more, which may all have a duration or a consumer of their own, they are
    left where they were counted.
    """
    return counted.coalesce(1) if few_events else counted


def _of_histories(told: DataFrame, keep: Callable[[DataFrame], DataFrame], few: bool, few_events: bool) -> Questions:
    deliveries = keep(histories.deliveries(told))
    recoveries = keep(recovery.recoveries(told, deliveries.hint(BY_HASH) if few else deliveries))
    yield Question("recovery_counts", recovery.recovery_counts(recoveries), recovery.CAUSE)
    unsettled = keep(integrity.unsettled_jobs(told, few=few))
    yield Question("unsettled", unsettled.groupBy(*GROUP, "event").agg(F.count("*").alias("jobs")), [*GROUP, "event"])
    starts = keep(integrity.second_starts(deliveries))
    yield Question("second_starts", integrity.second_start_counts(starts), [*GROUP, "cause"])
    tallied = keep(_together(recovery.recovery_tally(recoveries), few_events))
    by_mode = [*GROUP, "mode", "measure"]
    yield Question("recovery_times", recovery.recovery_times(tallied), [*recovery.CAUSE, "measure"])
    yield Question("recovery_curves", curve(tallied, by_mode, "ms"), [*by_mode, "below"])
    twice = keep(integrity.duplicates(deliveries, starts))
    yield Question("duplicates", integrity.duplicate_counts(twice), [*GROUP, "cause"])
    yield Question("duplicate_jobs", twice.orderBy(*JOB).limit(LISTED))
    yield Question("unsettled_jobs", unsettled.orderBy("at_ms", *JOB).limit(LISTED))
    yield Question("lost_payloads", integrity.lost_payloads(told).groupBy(*GROUP).agg(F.count("*").alias("entries")))
