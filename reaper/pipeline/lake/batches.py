"""Publishes one micro-batch. It runs where the query runs: in our process, or on a Spark Connect server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from reaper.pipeline.lake.delta import LakeTable, ReplacedError
from reaper.pipeline.lake.layout import TABLES, Layout


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Called with each micro-batch and its number (``foreachBatch``). Repeating a batch changes nothing."""

    layout: Layout
    name: str
    """The name of the lake's state when the ingester began: numbers of batches belong to that checkpoint."""
    fence: int
    """The ingester's number; once another one has begun, its commits fail."""

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Have the batch's tasks write their files, then publish them. Raises ReplacedError."""
        self.publish([row.asDict() for row in batch.collect()], number)

    def publish(self, written: Sequence[Mapping[str, Any]], number: int) -> None:
        """Add files (rows of `reaper.pipeline.lake.files.WRITTEN`) to their tables.

        Each table gets a commit with the batch's number, also where it has no rows: so the tables show how far they go.
        """
        if self.layout.name() != self.name:
            raise ReplacedError("the lake was replaced during the ingestion")
        self.layout.flush_plan(number)
        for table in TABLES:
            of_table = [file for file in written if file["table"] == table]
            LakeTable(self.layout.table(table)).publish(of_table, checkpoint=self.name, batch=number, fence=self.fence)
        counts = {table: sum(file["rows"] for file in written if file["table"] == table) for table in TABLES}
        self.layout.add_to_totals(number, **counts)
