"""Counts what the visibility-timeout advisor decides on: durations in bins, stalls of dead, slow and living.

Only numbers are aggregated, and what comes back is small: some hundred bins a group and type. The decision is
`reaper.pipeline.advice.choice`'s, in plain Python.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from reaper.pipeline.advice.histogram import BINS_PER_OCTAVE, Bin, Histogram, bin_of, merged, of_bins
from reaper.pipeline.advice.model import GroupRecord, Record, Workers
from reaper.pipeline.analysis.activity import activity, extent, rare_events
from reaper.pipeline.analysis.columns import (
    DELIVERY,
    GROUP,
    JOB,
    MODE_ADOPT,
    at_ms,
    holds,
    is_duration,
    is_settlement,
    is_stall,
    named,
)
from reaper.pipeline.analysis.durations import HELD, KIND, duration_tally, scanned_ages
from reaper.pipeline.analysis.histories import histories, troubled_jobs
from reaper.pipeline.spark.collecting import collect_rows
from workers.protocol.events import EventName

_OURS = r"\.[0-9a-f]{12}$"
"""How consumers of our own workers end."""

PARTS = 8
"""Of the time in which something happened, to compare its halves."""

GroupKey = tuple[str, str]
AnyRow = Row | Mapping[str, Any]


# ---- what Spark counts


def _bins(rows: DataFrame, keys: Iterable[str], duration: str, *more: Column) -> DataFrame:
    """Return ``keys…, bin, n, total_ms, longest_ms`` and ``more`` of the durations; nulls are left out."""
    return (
        rows.where(F.col(duration).isNotNull())
        .groupBy(*keys, _bin_number(duration).alias("bin"))
        .agg(F.count("*").alias("n"), F.sum(duration).alias("total_ms"), F.max(duration).alias("longest_ms"), *more)
    )


def _bin_number(duration: str) -> Column:
    return F.floor(F.log2(F.greatest(F.col(duration), F.lit(1))) * BINS_PER_OCTAVE)


def _typed() -> Column:
    return F.coalesce("type", F.lit("")).alias("type")


def held_bins(tallied: DataFrame) -> DataFrame:
    """Count how long deliveries were held that their worker ended: `KIND`, ``mode, part, bin``, and sums.

    ``tallied``: see `duration_tally`.
    """
    held = tallied.where(F.col("measure") == HELD)
    return held.groupBy(*KIND, "mode", "part", _bin_number("ms").alias("bin")).agg(
        F.sum("n").alias("n"), F.sum(F.col("n") * F.col("ms")).alias("total_ms"), F.max("ms").alias("longest_ms")
    )


def _is_timed_stall() -> Column:
    """Tell whether a delivery outlasted its timeout, as far as its times can be: a worker's restart is no stall."""
    timed = is_duration(F.col("idle_ms")) & is_duration(F.col("visibility_ms"))
    return holds(is_stall() & ~holds(F.col("mode") == MODE_ADOPT) & timed)


def _stalls(troubled: DataFrame) -> DataFrame:
    stalled = troubled.where(_is_timed_stall())
    return stalled.select(*DELIVERY, (at_ms() - F.col("idle_ms")).alias("last_life_ms"))


def silence_bins(troubled: DataFrame) -> DataFrame:
    """Count how long workers showed no life that settled too late: `KIND`, ``bin, n, total_ms, longest_ms, run_ms``.

    ``troubled`` are events, at least those of `histories`.
    """
    last_life = _stalls(troubled).select(*DELIVERY, "last_life_ms")
    late = troubled.where(named(EventName.REFUSED) & F.col("run_ms").isNotNull())
    timed = late.select(*DELIVERY, _typed(), "run_ms", at_ms().alias("at_ms")).join(last_life, [*DELIVERY])
    silent = timed.withColumn("ms", F.greatest(F.col("at_ms") - F.col("last_life_ms"), F.lit(1)))
    possible = silent.where(is_duration(F.col("ms")) & is_duration(F.col("run_ms")))
    return _bins(possible, KIND, "ms", F.sum("run_ms").alias("run_ms"))


def stall_counts(troubled: DataFrame) -> DataFrame:
    """Count deliveries that stalled and were not settled later by the worker that had them, by what their jobs tell.

    ``stream, group, repeated, proven, visibility_ms, jobs, stalls, foreign``. ``repeated``: that happened to the job
    more than once; ``proven``: another delivery of it was settled, within the timeout, so it was no slow job;
    ``visibility_ms``: the longest timeout that a delivery of it outlasted; ``foreign``: stalls, late ones too, of
    consumers that are not of ours.
    """
    stalled = _is_timed_stall()
    late = named(EventName.REFUSED) & F.col("run_ms").isNotNull()
    held_ms = F.greatest(at_ms() - F.col("delivered_ms"), F.col("run_ms"))
    settled_ms = F.when(is_settlement() & is_duration(held_ms), held_ms)
    jobs = troubled.groupBy(*JOB).agg(
        F.count_if(stalled).alias("all_stalls"),
        F.count_if(late).alias("late"),
        F.count_if(stalled & ~F.col("consumer").rlike(_OURS)).alias("foreign"),
        F.min(settled_ms).alias("settled_ms"),
        F.max(F.when(stalled, F.col("visibility_ms"))).alias("visibility_ms"),
    )
    stalls = F.greatest(F.col("all_stalls") - F.col("late"), F.lit(0))
    told = jobs.where(F.col("all_stalls") > 0).select(
        *GROUP,
        (stalls > 1).alias("repeated"),
        holds(F.col("settled_ms") < F.col("visibility_ms")).alias("proven"),
        "visibility_ms",
        stalls.alias("stalls"),
        "foreign",
    )
    return told.groupBy(*GROUP, "repeated", "proven", "visibility_ms").agg(
        F.count("*").alias("jobs"), F.sum("stalls").alias("stalls"), F.sum("foreign").alias("foreign")
    )


def process_times(counted: DataFrame) -> DataFrame:
    """Return for how long processes worked in all: ``stream, group, process_s, strangers``.

    ``counted``: see `activity`; ``strangers``: how many of them are none of ours.
    """
    alive_ms = F.max("last_settled_ms") - F.min("first_settled_ms")
    settled = counted.where(F.col("first_settled_ms").isNotNull() & F.col("group").isNotNull())
    alive = settled.groupBy(*GROUP, "consumer").agg(alive_ms.alias("alive_ms"))
    strangers = F.count_if(~F.col("consumer").rlike(_OURS)).alias("strangers")
    return alive.groupBy(*GROUP).agg((F.sum("alive_ms") / 1000).alias("process_s"), strangers)


def timeouts_in_force(events: DataFrame) -> DataFrame:
    """Return the visibility timeouts that events tell of: ``stream, group, visibility_ms, last_ms``."""
    told = events.where(is_duration(F.col("visibility_ms")) & F.col("group").isNotNull())
    return told.groupBy(*GROUP, "visibility_ms").agg(F.max(at_ms()).alias("last_ms"))


# ---- put together


@dataclass
class _Found:
    """What was counted of one group."""

    held: dict[str, list[Bin]] = field(default_factory=lambda: defaultdict(list))
    parts: dict[int, list[Bin]] = field(default_factory=lambda: defaultdict(list))
    silences: dict[str, list[Bin]] = field(default_factory=lambda: defaultdict(list))
    silent_runs_ms: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    scanned: list[Bin] = field(default_factory=list)
    overdue: list[Bin] = field(default_factory=list)
    modes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    stalls: list[AnyRow] = field(default_factory=list)
    strangers: int = 0
    process_s: float = 0.0
    configured: tuple[int, int] | None = None


def read_records(events: DataFrame, workers: Workers | None = None) -> list[GroupRecord]:
    """Count what there is to know of each group, in order of their names. ``workers``: see `records_of`."""
    part_ms = part_of(extent(events).span_ms)
    troubled = histories(events, troubled_jobs(events)).persist()
    try:
        asked = questions(activity(events, part_ms), duration_tally(events, part_ms), rare_events(events), troubled)
        answers = {name: collect_rows(question) for name, question in asked.items()}
    finally:
        troubled.unpersist()
    return records_of(answers, workers)


def part_of(span_ms: int) -> int:
    """Return how long each of the `PARTS` is, in ms."""
    return span_ms // PARTS + 1


def questions(counted: DataFrame, tallied: DataFrame, rare: DataFrame, troubled: DataFrame) -> dict[str, DataFrame]:
    """Return what has to be counted, by the names that `records_of` knows.

    See `activity`, `duration_tally`, `rare_events`; ``troubled``: events of `histories`.
    """
    return {
        "held_bins": held_bins(tallied),
        "silence_bins": silence_bins(troubled),
        "stall_counts": stall_counts(troubled),
        "scanned_ages": scanned_ages(rare),
        "process_times": process_times(counted),
        "timeouts_in_force": timeouts_in_force(rare),
    }


def records_of(answers: Mapping[str, Sequence[AnyRow]], workers: Workers | None = None) -> list[GroupRecord]:
    """Return what is known of each group, in order of their names, of the answers to `questions`.

    ``workers`` says how all groups' workers keep what they hold; None = a group's extend it where every consumer that
    is known is one of ours, and at least one is; otherwise they are bare, as far as anybody can tell.
    """
    found: dict[GroupKey, _Found] = defaultdict(_Found)
    _collect(answers, found)
    records = [_record(key, counted, workers) for key, counted in sorted(found.items())]
    return [record for record in records if any(kind.held.count or kind.cut_off.count for kind in record.kinds)]


def _collect(answers: Mapping[str, Sequence[AnyRow]], found: Mapping[GroupKey, _Found]) -> None:
    for row in answers["held_bins"]:
        found[_key(row)].held[row["type"]].append(_bin(row))
        found[_key(row)].parts[row["part"]].append(_bin(row))
        found[_key(row)].modes[row["mode"] or ""] += row["n"]
    for row in answers["silence_bins"]:
        found[_key(row)].silences[row["type"]].append(_bin(row))
        found[_key(row)].silent_runs_ms[row["type"]] += row["run_ms"]
    for row in answers["stall_counts"]:
        found[_key(row)].stalls.append(row)
        found[_key(row)].strangers += row["foreign"]
    for row in answers["scanned_ages"]:
        # Where no upper bound is known, it was overdue when it was last seen: it took longer, nobody knows how much.
        known = found[_key(row)].overdue if row["below_ms"] is None else found[_key(row)].scanned
        known.append(_equal(row["at_least_ms"] if row["below_ms"] is None else row["below_ms"], row["n"]))
    for row in answers["process_times"]:
        found[_key(row)].process_s = row["process_s"]
        found[_key(row)].strangers += row["strangers"]
    for row in answers["timeouts_in_force"]:
        told = found[_key(row)]
        told.configured = max(told.configured or (0, 0), (row["last_ms"], row["visibility_ms"]))


def _key(row: AnyRow) -> GroupKey:
    return row["stream"], row["group"]


def _bin(row: AnyRow) -> Bin:
    return Bin(row["bin"], row["n"], row["total_ms"], row["longest_ms"])


def _equal(ms: int, count: int) -> Bin:
    """Return the bin of so many durations of the same length."""
    ms = max(1, ms)
    return Bin(bin_of(ms), count, count * ms, ms)


def _record(key: GroupKey, found: _Found, workers: Workers | None) -> GroupRecord:
    bounded = not found.held
    kinds = {"": of_bins(found.scanned)} if bounded else {name: of_bins(bins) for name, bins in found.held.items()}
    if workers is None:
        ours = not found.strangers and bool(found.held or found.stalls)
        workers = Workers.EXTENDING if ours else Workers.BARE
    bare = workers is Workers.BARE
    slow = [row for row in found.stalls if bare and row["repeated"] and not row["proven"]]
    cut_off = [_equal(row["visibility_ms"], row["jobs"]) for row in slow]
    crashes = sum(row["stalls"] for row in found.stalls if row not in slow)
    if bounded:
        cut_off += found.overdue
    # Leaders do not know the type of what they recover: slow jobs are taken for those of the slowest type.
    slowest = max(kinds, key=lambda name: kinds[name].longest_ms)
    total_ms = merged(kinds.values()).total_ms
    return GroupRecord(
        stream=key[0],
        group=key[1],
        workers=workers,
        kinds=tuple(
            _kind(
                name,
                held,
                found,
                crashes * held.total_ms / total_ms if total_ms else float(crashes),
                cut_off if name == slowest else (),
            )
            for name, held in sorted(kinds.items())
        ),
        mode=max(found.modes, key=lambda mode: found.modes[mode], default="reaper"),
        process_s=found.process_s,
        configured_ms=found.configured[1] if found.configured else None,
        bounded=bounded,
        doubtful=sum(row["stalls"] for row in found.stalls if not row["proven"]) if bare else 0,
        halves=_halves(found.parts),
    )


def _halves(parts: Mapping[int, Sequence[Bin]]) -> tuple[Histogram, Histogram] | None:
    """Return how long deliveries were held, earlier and later, cut where the halves are most alike in number."""
    by_time = [of_bins(parts[part]) for part in sorted(parts)]
    if len(by_time) < 2:
        return None
    whole = sum(each.count for each in by_time)
    earlier = list(accumulate(each.count for each in by_time))
    cut = min(range(1, len(by_time)), key=lambda number: abs(2 * earlier[number - 1] - whole))
    return merged(by_time[:cut]), merged(by_time[cut:])


def _kind(name: str, held: Histogram, found: _Found, crashes: float, cut_off: Iterable[Bin]) -> Record:
    return Record(
        type=name,
        held=held,
        silences=of_bins(found.silences.get(name, ())),
        silent_runs_ms=found.silent_runs_ms.get(name, 0),
        # A crash hits what is held: often what is held for long.
        crashes=crashes,
        cut_off=of_bins(cut_off),
    )
