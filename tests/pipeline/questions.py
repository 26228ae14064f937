"""Asks the questions of the analysis about rows that a test has written."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from reaper.pipeline.analysis.answers import LakeAnswers
from reaper.pipeline.analysis.asking import QUESTIONS, LakeQueries
from reaper.pipeline.analysis.scope import Scope
from reaper.pipeline.lake.schema import TABLES
from tests.pipeline.stories import EPOCH, Row

EVER = Scope(datetime(2030, 1, 1, tzinfo=UTC), earliest=EPOCH)
"""The events of hand-made stories begin in 1970."""


def frames(spark: SparkSession, **rows: Sequence[Row]) -> dict[str, DataFrame]:
    """Return the tables of a lake with these rows; columns that a row does not name are null."""
    return {
        table: spark.createDataFrame(
            [tuple(row.get(name) for name in schema.names) for row in rows.get(table, ())], schema
        )
        for table, schema in TABLES.items()
    }


def ask(
    spark: SparkSession, only: Collection[str] = QUESTIONS, scope: Scope = EVER, **rows: Sequence[Row]
) -> LakeAnswers:
    """Ask about a lake with these rows. The views stay in the session until the next call."""
    return LakeQueries(spark, frames(spark, **rows), scope, embedded=True).ask(lambda _: None, only)
