"""Writes one micro-batch into the lake. Runs where the query runs: in our process, or on a Spark Connect server.

There it is shipped by value, so only the standard library, pyspark, and modules of this package that keep the same
rule may be imported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame

from reaper.pipeline.lake.delta import LakeTable, ReplacedError
from reaper.pipeline.lake.layout import TABLES, Layout, remove
from reaper.pipeline.spark.collecting import collect_rows


@dataclass(slots=True)
class Staged:
    """What a batch has for one table."""

    rows: int = 0
    files: Sequence[Path] = ()


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Called with each micro-batch and its number (``foreachBatch``); a replay of a batch changes nothing."""

    layout: Layout
    name: str
    """What the lake's state called itself when the ingester began: numbers of batches are that checkpoint's."""
    fence: int
    """The ingester's number; once another one has begun, nothing is published any more."""
    folder: Path
    """Where tasks write. What is left in it after a batch was told by nobody."""

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Have the batch's tasks write, then make visible what they have told of. Raises ReplacedError."""
        try:
            self._publish(self._stage(batch), number)
        finally:
            remove(self.folder)

    def _stage(self, batch: DataFrame) -> dict[str, Staged]:
        staged = {table: Staged() for table in TABLES}
        for told in collect_rows(batch):
            of_table = staged[told["table"]]
            of_table.rows += told["rows"]
            of_table.files = [*of_table.files, Path(told["file"])]
        return staged

    def _publish(self, staged: Mapping[str, Staged], number: int) -> None:
        if self.layout.name() != self.name:
            raise ReplacedError("the lake was removed and made anew while it was being filled")
        self.layout.flush_plan(number)
        for table in (name for name in TABLES if name == TABLES[0] or staged[name].rows):  # the first tells the fence
            lake_table = LakeTable(self.layout.table(table))
            lake_table.publish(staged[table].files, checkpoint=self.name, batch=number, fence=self.fence)
        self.layout.note_counts(number, *(staged[table].rows for table in TABLES))
