"""Brings the few rows of an answer into this process."""

from typing import Any

from pyspark.sql import DataFrame


def collect_rows(question: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of ``question`` as plain dictionaries. Raises what Spark raises."""
    return [row.asDict(recursive=True) for row in question.collect()]
