"""Publishes one micro-batch. It runs in the process of the query, which may be a Spark Connect server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from reaper.pipeline.lake.delta import LakeTable, ReplacedError
from reaper.pipeline.lake.layout import TABLES, Layout


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Called with each micro-batch and its number (``foreachBatch``). A repeated batch has no effect."""

    layout: Layout
    name: str
    """Name of the lake's state at the start of the ingester, because batches are numbered by its checkpoint."""
    fence: int
    """Number of the ingester. Its commits fail after another one has begun."""

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Have the batch's tasks write their files, then publish them. Raises ReplacedError."""
        self.publish([row.asDict() for row in batch.collect()], number)

    def publish(self, written: Sequence[Mapping[str, Any]], number: int) -> None:
        """Add files (rows of `reaper.pipeline.lake.files.WRITTEN`) to their tables.

        Each table gets a commit with the batch's number, even without rows, so that it shows its newest batch.
        """
        if self.layout.name() != self.name:
            raise ReplacedError("the lake was replaced during the ingestion")
        self.layout.flush_plan(number)
        for table in TABLES:
            of_table = [file for file in written if file["table"] == table]
            LakeTable(self.layout.table(table)).publish(of_table, checkpoint=self.name, batch=number, fence=self.fence)
        counts = {table: sum(file["rows"] for file in written if file["table"] == table) for table in TABLES}
        self.layout.add_to_totals(number, **counts)
