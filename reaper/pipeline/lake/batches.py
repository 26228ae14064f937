"""Writes one micro-batch into the lake. Runs where the query runs: in our process, or on a Spark Connect server.

There it is shipped by value, so only the standard library, pyspark, and modules of this package that keep the same
rule may be imported.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from reaper.pipeline.lake.delta import LakeTable
from reaper.pipeline.lake.events import classify, dead_letters, lifecycle_events, malformed, number_of_events
from reaper.pipeline.lake.layout import TABLES, Layout, remove, spark_path

_ROWS_OF: dict[str, Callable[[DataFrame], DataFrame]] = {
    "events": lifecycle_events,
    "dead_letters": dead_letters,
    "malformed": malformed,
}

# Spark's own choice is a marker file in each folder it wrote; ours is that what is visible is complete.
WRITE_OPTIONS = {"compression": "zstd", "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Called with each micro-batch and its number (``foreachBatch``); a replay of a batch changes nothing."""

    layout: Layout
    fence: int
    """The ingester's number; once another one has begun, nothing is published any more."""
    files: int
    """Most files a batch has for each date."""

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Stage the batch's rows, table by table, then make them visible. Raises ReplacedError."""
        attempt = self.layout.staging / f"batch-{number}-{uuid.uuid4().hex}"
        try:
            counts = self._stage(batch, attempt)
            self._publish(attempt, number, counts)
        finally:
            remove(attempt)

    def _stage(self, batch: DataFrame, attempt: Path) -> dict[str, int]:
        """Write the rows of each table. Returns their numbers.

        Batches are nearly all events, so those are read, parsed and written in one pass that counts the rest; only
        where it counts some is the batch read again.
        """
        seen = Observation()
        counts = [F.count_if(F.col("table") == table).alias(table) for table in TABLES[1:]]
        counts.append(F.sum(number_of_events()).alias(TABLES[0]))
        self._write(classify(batch).observe(seen, *counts), "events", attempt)
        found = {table: int(seen.get[table] or 0) for table in TABLES}
        for table in TABLES[1:]:
            if found[table]:
                self._write(classify(batch), table, attempt)
        return found

    def _write(self, classified: DataFrame, table: str, attempt: Path) -> None:
        rows = _ROWS_OF[table](classified).coalesce(self.files)
        rows.write.mode("overwrite").options(**WRITE_OPTIONS).partitionBy("date").parquet(spark_path(attempt / table))

    def _publish(self, attempt: Path, number: int, counts: dict[str, int]) -> None:
        checkpoint = self.layout.name()
        for table in (name for name in TABLES if name == TABLES[0] or counts[name]):  # the first one tells the fence
            lake_table = LakeTable(self.layout.table(table))
            lake_table.publish(attempt / table, checkpoint=checkpoint, batch=number, fence=self.fence)
        self.layout.note_counts(number, counts["events"], counts["dead_letters"], counts["malformed"])
