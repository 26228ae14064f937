"""Writes one micro-batch into the lake. Runs where the query runs: in our process, or on a Spark Connect server.

There it is shipped by value, so only the standard library, pyspark, and modules of this package that keep the same
rule may be imported.
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from reaper.pipeline.lake.delta import LakeTable
from reaper.pipeline.lake.events import classify, dead_letters, event_facts, malformed
from reaper.pipeline.lake.files import WRITTEN, FileWriter
from reaper.pipeline.lake.layout import TABLES, Layout, remove
from reaper.pipeline.spark.collecting import collect_rows

_ROWS_OF = {"events": event_facts, "dead_letters": dead_letters, "malformed": malformed}


_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ANY = str(2**31 - 1)


@contextmanager
def _unweighed(session: SparkSession) -> Iterator[None]:
    """Let Spark hand rows over by their number alone.

    It weighs a batch of Arrow after each row, which takes as long as the batch is for columns of lists: 70 µs an event.
    """
    before = session.conf.get(_MOST_BYTES)
    session.conf.set(_MOST_BYTES, _ANY)
    try:
        yield
    finally:
        session.conf.set(_MOST_BYTES, before or "")


@dataclass(slots=True)
class Staged:
    """What a batch has for one table."""

    rows: int = 0
    files: Sequence[Path] = ()


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
            self._publish(self._stage(batch, attempt), number)
        finally:
            remove(attempt)

    def _stage(self, batch: DataFrame, attempt: Path) -> dict[str, Staged]:
        """Write the rows of each table.

        Batches are nearly all events, so those are read, parsed and written in one pass that counts the rest; only
        where it counts some is the batch read again.
        """
        classified = classify(batch.coalesce(self.files))
        staged = self._write(classified, "events", attempt)
        for table in TABLES[1:]:
            if staged[table].rows:
                staged[table] = self._write(classified, table, attempt)[table]
        return staged

    def _write(self, classified: DataFrame, table: str, attempt: Path) -> dict[str, Staged]:
        """Write the rows of one table; return what there is for it, and how many entries for others."""
        written = _ROWS_OF[table](classified).mapInArrow(FileWriter(table, attempt / table), WRITTEN)
        staged = {name: Staged() for name in TABLES}
        with _unweighed(classified.sparkSession) if table == TABLES[0] else nullcontext():
            rows = collect_rows(written)
        for told in rows:
            of_table = staged[told["table"]]
            of_table.rows += told["rows"]
            if told["file"] is not None:
                of_table.files = [*of_table.files, Path(told["file"])]
        return staged

    def _publish(self, staged: dict[str, Staged], number: int) -> None:
        checkpoint = self.layout.name()
        for table in (name for name in TABLES if name == TABLES[0] or staged[name].rows):  # the first tells the fence
            lake_table = LakeTable(self.layout.table(table))
            lake_table.publish(staged[table].files, checkpoint=checkpoint, batch=number, fence=self.fence)
        self.layout.note_counts(number, *(staged[table].rows for table in TABLES))
