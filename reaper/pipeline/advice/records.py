"""Counts what the visibility-timeout advisor decides on: durations in bins, stalls of the dead and of the living.

Only numbers are aggregated, and what comes back is small: some hundred bins a group and type. The decision is
`reaper.pipeline.advice.model`'s, in plain Python.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from reaper.pipeline.advice.histogram import BINS_PER_OCTAVE, Bin, Histogram, bin_of, merged, of_bins
from reaper.pipeline.advice.model import GroupRecord, Record, Workers
from reaper.pipeline.analysis.activity import activity, rare_events
from reaper.pipeline.analysis.columns import DELIVERY, GROUP, MODE_ADOPT, at_ms, holds, is_stall, named
from reaper.pipeline.analysis.durations import HELD, KIND, duration_tally, scanned_ages
from reaper.pipeline.analysis.histories import histories, troubled_jobs
from workers.protocol.events import EventName

_OURS = r"\.[0-9a-f]{12}$"
"""How consumers of our own workers end."""

_ANY_PERIOD_MS = 86_400_000
"""Nobody asks here when something happened."""

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
    """Count how long deliveries were held that their worker ended: `KIND`, ``mode, bin, n, total_ms, longest_ms``.

    ``tallied``: see `duration_tally`.
    """
    held = tallied.where(F.col("measure") == HELD)
    return held.groupBy(*KIND, "mode", _bin_number("ms").alias("bin")).agg(
        F.sum("n").alias("n"), F.sum(F.col("n") * F.col("ms")).alias("total_ms"), F.max("ms").alias("longest_ms")
    )


def _stalls(troubled: DataFrame) -> DataFrame:
    stalled = troubled.where(is_stall() & ~holds(F.col("mode") == MODE_ADOPT) & (F.col("idle_ms") >= 0))
    return stalled.select(*DELIVERY, "consumer", (at_ms() - F.col("idle_ms")).alias("last_life_ms"))


def silence_bins(troubled: DataFrame) -> DataFrame:
    """Count how long workers showed no life that settled too late: `KIND`, ``bin, n, total_ms, longest_ms, run_ms``.

    ``troubled`` are events, at least those of `histories`.
    """
    last_life = _stalls(troubled).select(*DELIVERY, "last_life_ms")
    late = troubled.where(named(EventName.REFUSED) & F.col("run_ms").isNotNull())
    timed = late.select(*DELIVERY, _typed(), "run_ms", at_ms().alias("at_ms")).join(last_life, [*DELIVERY])
    silent = timed.withColumn("ms", F.greatest(F.col("at_ms") - F.col("last_life_ms"), F.lit(1)))
    return _bins(silent, KIND, "ms", F.sum("run_ms").alias("run_ms"))


def stall_counts(troubled: DataFrame) -> DataFrame:
    """Count deliveries that stalled: ``stream, group, stalls, foreign`` (held by consumers that are not of ours)."""
    foreign = ~F.col("consumer").rlike(_OURS)
    return _stalls(troubled).groupBy(*GROUP).agg(F.count("*").alias("stalls"), F.count_if(foreign).alias("foreign"))


def process_times(counted: DataFrame) -> DataFrame:
    """Return for how long processes worked in all: ``stream, group, process_s`` (``counted``: see `activity`)."""
    alive_s = (F.max("last_settled_ms") - F.min("first_settled_ms")) / 1000
    settled = counted.where(F.col("first_settled_ms").isNotNull() & F.col("group").isNotNull())
    alive = settled.groupBy(*GROUP, "consumer").agg(alive_s.alias("alive_s"))
    return alive.groupBy(*GROUP).agg(F.sum("alive_s").alias("process_s"))


def timeouts_in_force(events: DataFrame) -> DataFrame:
    """Return the visibility timeouts that events tell of: ``stream, group, visibility_ms, last_ms``."""
    told = events.where(F.col("visibility_ms").isNotNull() & F.col("group").isNotNull())
    return told.groupBy(*GROUP, "visibility_ms").agg(F.max(at_ms()).alias("last_ms"))


# ---- put together


@dataclass
class _Found:
    """What was counted of one group."""

    held: dict[str, list[Bin]] = field(default_factory=lambda: defaultdict(list))
    silences: dict[str, list[Bin]] = field(default_factory=lambda: defaultdict(list))
    silent_runs_ms: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    scanned: list[Bin] = field(default_factory=list)
    modes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    stalls: int = 0
    foreign: int = 0
    process_s: float = 0.0
    configured: tuple[int, int] | None = None


def read_records(events: DataFrame, workers: Workers | None = None) -> list[GroupRecord]:
    """Count what there is to know of each group, in order of their names. ``workers``: see `records_of`."""
    troubled = histories(events, troubled_jobs(events)).persist()
    try:
        asked = questions(activity(events, _ANY_PERIOD_MS), duration_tally(events), rare_events(events), troubled)
        answers = {name: question.collect() for name, question in asked.items()}
    finally:
        troubled.unpersist()
    return records_of(answers, workers)


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

    ``workers`` says how all groups' workers keep what they hold; None = a group's are bare where one of them is none
    of ours, and extending otherwise.
    """
    found: dict[GroupKey, _Found] = defaultdict(_Found)
    _collect(answers, found)
    records = [_record(key, counted, workers) for key, counted in sorted(found.items())]
    return [record for record in records if any(kind.held.count for kind in record.kinds)]


def _collect(answers: Mapping[str, Sequence[AnyRow]], found: Mapping[GroupKey, _Found]) -> None:
    for row in answers["held_bins"]:
        found[_key(row)].held[row["type"]].append(_bin(row))
        found[_key(row)].modes[row["mode"] or ""] += row["n"]
    for row in answers["silence_bins"]:
        found[_key(row)].silences[row["type"]].append(_bin(row))
        found[_key(row)].silent_runs_ms[row["type"]] += row["run_ms"]
    for row in answers["stall_counts"]:
        found[_key(row)].stalls, found[_key(row)].foreign = row["stalls"], row["foreign"]
    for row in answers["scanned_ages"]:
        # Twice the lower bound where no upper one is known: that is how wide the bounds are elsewhere.
        upper_ms = row["below_ms"] or 2 * max(1, row["at_least_ms"])
        found[_key(row)].scanned.append(Bin(bin_of(upper_ms), row["n"], row["n"] * upper_ms, upper_ms))
    for row in answers["process_times"]:
        found[_key(row)].process_s = row["process_s"]
    for row in answers["timeouts_in_force"]:
        told = found[_key(row)]
        told.configured = max(told.configured or (0, 0), (row["last_ms"], row["visibility_ms"]))


def _key(row: AnyRow) -> GroupKey:
    return row["stream"], row["group"]


def _bin(row: AnyRow) -> Bin:
    return Bin(row["bin"], row["n"], row["total_ms"], row["longest_ms"])


def _record(key: GroupKey, found: _Found, workers: Workers | None) -> GroupRecord:
    bounded = not found.held
    kinds = {"": of_bins(found.scanned)} if bounded else {name: of_bins(bins) for name, bins in found.held.items()}
    if workers is None:
        workers = Workers.BARE if bounded or found.foreign else Workers.EXTENDING
    silent = sum(each.count for bins in found.silences.values() for each in bins)
    crashes = max(0, found.stalls - silent)
    total_ms = merged(kinds.values()).total_ms
    return GroupRecord(
        stream=key[0],
        group=key[1],
        workers=workers,
        kinds=tuple(_kind(name, held, found, crashes, total_ms) for name, held in sorted(kinds.items())),
        mode=max(found.modes, key=lambda mode: found.modes[mode], default="reaper"),
        process_s=found.process_s,
        configured_ms=found.configured[1] if found.configured else None,
        bounded=bounded,
    )


def _kind(name: str, held: Histogram, found: _Found, crashes: int, total_ms: int) -> Record:
    return Record(
        type=name,
        held=held,
        silences=of_bins(found.silences.get(name, ())),
        silent_runs_ms=found.silent_runs_ms.get(name, 0),
        # Leaders do not know the type of what they recover. A crash hits what is held: often what is held for long.
        crashes=crashes * held.total_ms / total_ms if total_ms else 0.0,
    )
