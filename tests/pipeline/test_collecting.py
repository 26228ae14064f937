"""A question that Spark does not answer ends the report: a page with a part missing would mislead."""

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from reaper.pipeline.analysis.asking import LakeQueries
from tests.pipeline import stories
from tests.pipeline.questions import EVER, frames


@pytest.mark.parametrize(("table", "column"), [("malformed", "reason"), ("events", "idle_ms")])
def test_what_spark_does_not_answer_is_an_error(spark: SparkSession, table: str, column: str) -> None:
    tables = frames(spark, events=stories.CRASH)
    tables[table] = tables[table].drop(column)
    with pytest.raises(AnalysisException, match=f"`{column}` cannot be resolved"):
        LakeQueries(spark, tables, EVER, embedded=True).ask(lambda _: None)
