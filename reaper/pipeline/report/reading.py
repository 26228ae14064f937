"""Makes the report's findings of a lake."""

from collections.abc import Callable
from datetime import datetime

from pyspark.sql import SparkSession

from reaper.pipeline.lake import read_dead_letters, read_events, read_malformed
from reaper.pipeline.report.findings import Findings, ask
from reaper.pipeline.report.queries import Tables, shelf
from reaper.pipeline.report.scope import Scope


def read_tables(spark: SparkSession, lake: str, scope: Scope) -> Tables:
    """Return what the report reads of ``lake``. Raises NoLakeError."""
    return Tables(
        scope.of_events(read_events(spark, lake)),
        scope.of_dead_letters(read_dead_letters(spark, lake)),
        read_malformed(spark, lake),
    )


def read_report(spark: SparkSession, lake: str, scope: Scope, now: datetime, tell: Callable[[str], None]) -> Findings:
    """Ask everything of ``lake``. ``tell`` is told how far it has come. Raises NoLakeError."""
    about = {"lake": lake, "made_at": now.isoformat(timespec="seconds"), **scope.as_json()}
    with shelf() as kept:
        return ask(read_tables(spark, lake, scope), about, kept, tell)
