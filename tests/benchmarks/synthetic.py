"""Generates a lake for benchmarks, with the journal of a few groups.

Jobs of all groups interleave in time, as in a real journal. Everything follows from the seed and a job's number by
hashing, so the same seed gives the same rows however many cores work on it.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reaper.pipeline.lake.delta import LakeTable
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.schema import DEAD_LETTERS, EVENTS
from reaper.pipeline.lake.tables import create_tables, lake_at, only_writer
from tests.benchmarks.stories import STORIES, Step
from tests.benchmarks.synthetic_steps import (
    BEGIN_MS,
    JOBS_PER_S,
    KINDS,
    TERM_MS,
    Kind,
    consumer,
    entry_of,
    error_of,
    event_columns,
    part_of_error,
    steps,
)
from tests.pipeline.lakes import publish
from workers.protocol.errors import ConfigurationError
from workers.protocol.events import EventName
from workers.protocol.keys import group_keys

ROWS_PER_FILE = 500_000
_METHOD_LIMIT = "spark.sql.codegen.hugeMethodLimit"


def generate_lake(spark: SparkSession, path: str | Path, *, events: int, seed: int = 1) -> int:
    """Make a new lake at ``path`` with about ``events`` lifecycle events. Return their number of jobs.

    Raises ConfigurationError where the lake holds something already.
    """
    layout = lake_at(path)
    with only_writer(layout):
        create_tables(layout)
        if LakeTable(layout.table("events")).files():
            raise ConfigurationError(f"the lake {layout.root} is not empty: name a new folder.")
        jobs = max(1, round(events / _events_per_job()))
        files = max(2, -(-events // ROWS_PER_FILE))
        with _small_methods(spark):
            _write(journal(spark, jobs, seed, files), layout, "events")
            _write(dead_letters(spark, jobs, seed, 2), layout, "dead_letters")
    return jobs


@contextmanager
def _small_methods(spark: SparkSession) -> Iterator[None]:
    """Keep Spark's generated methods short enough for the JVM's compiler.

    Longer ones are interpreted, 4 times slower.
    """
    before = spark.conf.get(_METHOD_LIMIT)
    spark.conf.set(_METHOD_LIMIT, "8000")
    try:
        yield
    finally:
        spark.conf.set(_METHOD_LIMIT, before or "65535")


def _write(rows: DataFrame, layout: Layout, table: str) -> None:
    staged = layout.state / f"{table}.synthetic"
    rows.write.mode("overwrite").partitionBy("date").parquet(staged.as_uri())
    publish(layout, table, sorted(staged.glob("date=*/*.parquet")), batch=0)
    shutil.rmtree(staged)


def _events_per_job() -> float:
    told = [
        kind.per_thousand * story.per_million * sum(_is_told(kind, step) for step in story.steps)
        for kind in KINDS
        for story in STORIES
    ]
    return sum(told) / 1e9


def _is_told(kind: Kind, step: Step) -> bool:
    return step.by != "worker" or not kind.foreign


# ---- the tables


def journal(spark: SparkSession, jobs: int, seed: int, files: int = 2) -> DataFrame:
    """Return the lifecycle events of ``jobs`` jobs (`EVENTS`), in order of time within each of ``files`` parts."""
    events = steps(spark, jobs, seed, files).select(*event_columns())
    # `date` comes first, because files are written by date, and would be sorted once more.
    events = events.sortWithinPartitions("date", "at", "seq")
    return events.union(_terms(spark, jobs))


def dead_letters(spark: SparkSession, jobs: int, seed: int, files: int = 2) -> DataFrame:
    """Return the dead letters of the same jobs (`DEAD_LETTERS`)."""
    dead = steps(spark, jobs, seed, files).where(F.col("event") == EventName.DEAD_LETTERED)
    kind, what, function, file = (part_of_error(part) for part in range(4))
    trace = F.concat(
        F.lit('Traceback (most recent call last):\n  File "/venv/lib/python3.12/site-packages/workers/execution.py"'),
        F.lit(", line 107, in call\n"),
        F.format_string('  File "/srv/%s", line 42, in %s\n', file, function),
        F.concat(kind, F.lit(": "), what),
        F.lit("\n"),
    )
    columns = {
        "id": F.concat_ws("-", "at_ms", "job_no"),
        "stream": F.col("dead"),
        "at": F.timestamp_millis("at_ms"),
        "seq": F.col("job_no"),
        "job": F.col("job"),
        "group": F.col("group"),
        "source_stream": F.col("source"),
        "entry": entry_of("entry"),
        "reason": F.col("reason"),
        "error": error_of(),
        "traceback": F.when(F.col("failed"), trace),
        "deliveries": F.col("delivery"),
        "generation": F.col("generation"),
        "consumers": consumer(),
        "first_ms": F.col("enqueued_ms"),
        "last_ms": F.coalesce(F.col("enqueued_ms") + F.col("delivered"), F.col("at_ms") - F.col("idle")),
        "dead_at_ms": F.col("at_ms"),
        "payload": F.create_map(F.lit("n"), F.col("job_no").cast("string")),
        "date": F.col("date"),
    }
    return dead.select(*(columns[name].cast(DEAD_LETTERS[name].dataType).alias(name) for name in DEAD_LETTERS.names))


# ---- the terms of each group


def _span_ms(jobs: int) -> int:
    return max(1, jobs * 1000 // JOBS_PER_S)


def _terms(spark: SparkSession, jobs: int) -> DataFrame:
    """Return the terms. Each ends because the replica stops. Every third one expires, until another replica begins."""
    rows = []
    groups = sorted({(kind.stream, kind.group) for kind in KINDS if kind.mode == "reaper"})
    for place, (stream, group) in enumerate(groups):
        for term in range(1, _span_ms(jobs) // TERM_MS + 2):
            begin, end = BEGIN_MS + (term - 1) * TERM_MS, BEGIN_MS + term * TERM_MS - 900
            facts = {
                "stream": group_keys(stream, group).journal,
                "seq": term * len(groups) + place,
                "group": group,
                "holder": f"r{term % 3 + 1}.{term:016x}@10000",
                "token": term,
            }
            rows.append(_lease_event(EventName.LEASE_TAKEN, begin, **facts))
            if end < BEGIN_MS + _span_ms(jobs) and term % 3:
                rows.append(_lease_event(EventName.LEASE_LEFT, end, reason="stopped", **facts))
    return spark.createDataFrame(rows, EVENTS).coalesce(1)


def _lease_event(event: EventName, at_ms: int, **data: Any) -> tuple[Any, ...]:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    facts = {"id": f"{at_ms}-{data['seq']}", "at": at, "event": str(event), "date": at.date(), **data}
    return tuple(facts.get(name) for name in EVENTS.names)
