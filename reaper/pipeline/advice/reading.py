"""Reads a lake, and says which visibility timeouts to set in it."""

from collections.abc import Sequence
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from reaper.pipeline.advice.choice import advise_group
from reaper.pipeline.advice.model import GroupAdvice, GroupRecord, Weights, Workers
from reaper.pipeline.advice.records import read_records
from reaper.pipeline.analysis.columns import CLOCKS_DIFFER, is_misdated
from reaper.pipeline.lake.tables import read_events
from workers.protocol.errors import ConfigurationError
from workers.protocol.keys import stream_of_journal


def advise_lake(
    spark: SparkSession, lake: str, weights: Weights, *, workers: Workers | None = None, pair: str | None = None
) -> list[GroupAdvice]:
    """Advise on each group of the lake, or on the one that ``pair`` names. Raises NoLakeError, ConfigurationError."""
    # What a wrong clock has dated would stretch the time in which drift is looked for.
    dated = read_events(spark, lake).where(~is_misdated(datetime.now(UTC) + CLOCKS_DIFFER))
    records = read_records(dated, workers)
    return [advise_group(record, weights) for record in chosen(records, pair)]


def chosen(records: Sequence[GroupRecord], pair: str | None) -> Sequence[GroupRecord]:
    """Return the records of all groups that are written like ``pair``; None = of all. Raises ConfigurationError."""
    names = [f"{stream_of_journal(record.stream)}/{record.group}" for record in records]
    found = [record for name, record in zip(names, records, strict=True) if pair in (None, name, record.group)]
    if found:
        return found
    if not names:
        raise ConfigurationError("the lake tells of no delivery that was settled: there is nothing to advise on.")
    raise ConfigurationError(f"the lake knows no group {pair!r}: it has {', '.join(names)}.")
