"""Makes the report's findings of a lake."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from pyspark.sql import SparkSession

from reaper.pipeline.advice.executions import records_of
from reaper.pipeline.advice.timeouts import Promise, advise
from reaper.pipeline.advice.words import as_json
from reaper.pipeline.analysis.columns import CLOCKS_DIFFER
from reaper.pipeline.lake.tables import read_dead_letters, read_events, read_malformed
from reaper.pipeline.report.findings import Findings, ask
from reaper.pipeline.report.queries import Tables, shelf
from reaper.pipeline.report.scope import Scope

LOCAL_PARTITIONS = 4
"""Parts of a shuffle where Spark runs in this process."""
_UNCHANGED_PARTITIONS = "200"


def tune(spark: SparkSession, *, embedded: bool) -> None:
    """Set what the report's queries are quickest with, where nobody has chosen otherwise."""
    # Small rows that a window has sorted would be aggregated in that order. By hash they are aggregated as well, and
    # SortAggregate in a plan always means what it must not: that strings are aggregated.
    spark.conf.set("spark.sql.execution.replaceHashWithSortAgg", "false")
    # What is kept is small, and asked once or twice: finding out how to press it costs more than reading it.
    spark.conf.set("spark.sql.inMemoryColumnarStorage.compressed", "false")
    # A first, smaller table for each hash aggregate holds too few groups for what is counted here.
    spark.conf.set("spark.sql.codegen.aggregate.map.twolevel.enabled", "false")
    # All that is told of a job is in one part, so deliveries of the same job are.
    spark.conf.set("spark.sql.requireAllClusterKeysForCoPartition", "false")
    if embedded and spark.conf.get("spark.sql.shuffle.partitions") == _UNCHANGED_PARTITIONS:
        spark.conf.set("spark.sql.shuffle.partitions", str(LOCAL_PARTITIONS))


def read_tables(spark: SparkSession, lake: str, scope: Scope) -> Tables:
    """Return what the report reads of ``lake``. Raises NoLakeError."""
    events = read_events(spark, lake)
    return Tables(
        scope.of_events(events),
        scope.of_dead_letters(read_dead_letters(spark, lake)),
        read_malformed(spark, lake),
        scope.misdated(events),
    )


def read_report(spark: SparkSession, lake: str, scope: Scope, now: datetime, tell: Callable[[str], None]) -> Findings:
    """Ask everything of ``lake``. ``tell`` is told how far it has come. Raises NoLakeError."""
    scope = replace(scope, latest=now + CLOCKS_DIFFER)
    about = {"lake": lake, "made_at": now.isoformat(timespec="seconds"), **scope.as_json()}
    with shelf() as kept:
        findings = ask(read_tables(spark, lake, scope), about, kept, tell)
    add_advice(findings)
    return findings


def add_advice(findings: Findings) -> None:
    """Add which visibility timeouts to set."""
    promise = Promise()
    findings.advice = as_json(
        [advise(record, promise) for record in records_of(findings.tables["executions"])], promise
    )
