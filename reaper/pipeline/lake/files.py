"""Parquet files of the lake: how they are written, and how Spark's tasks write a batch's rows, a file for each day.

Tasks run in Spark's Python, so beside the standard library only pyarrow, pyspark, and modules of this package that keep
the same rule may be imported.
"""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reaper.pipeline.lake.events import TableRows, read_entries

PARTITION = "date"
ROWS_TOGETHER = 250_000
"""Rows that are held in memory while files are written: a row group."""
BYTES_TOGETHER = 128_000_000
"""How much is held at most, where rows are large."""
MOST_OPEN = 64
"""Days whose files stay open for what comes: systems allow a process some thousand files. A stream may hold years."""
_EACH_ITS_OWN = {"id", "at", "job", "entry", "enqueued_ms", "delivered_ms", "due_ms", "new_entry", "dead_letter"}
"""Columns whose values hardly ever return: a dictionary of them would hold them all, and be thrown away."""

WRITTEN = "table string, file string, rows bigint"
"""What a task says: how many rows of which table it has written into which file."""


def parquet_writer(where: Any, schema: pa.Schema, filesystem: Any = None) -> pq.ParquetWriter:
    """Open a file of a table."""
    repeated = [name for name in schema.names if name not in _EACH_ITS_OWN]
    return pq.ParquetWriter(where, schema, filesystem=filesystem, compression="zstd", use_dictionary=repeated)


@dataclass(slots=True)
class _Day:
    """The file of one day, and rows that wait to be written."""

    path: Path
    rows: int = 0
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    writer: pq.ParquetWriter | None = None

    def write(self) -> None:
        """Write what waits."""
        if not self.waiting:
            return
        rows = pa.Table.from_batches(self.waiting).drop_columns([PARTITION])
        if self.writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.writer = parquet_writer(self.path, rows.schema)
        self.writer.write_table(rows)
        self.rows += rows.num_rows
        self.waiting = []

    def close(self) -> None:
        """End the file."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


_Days = dict[tuple[str, date], _Day]
"""By table and day."""


@dataclass(frozen=True, slots=True)
class FileWriter:
    """What a task runs: writes the rows of its entries into ``folder``, and says so.

    A file counts where it is told of. Whoever writes a task's rows a second time writes other files.
    """

    folder: Path

    def write(self, entries: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        """Write the rows of all entries; return what there is to say, as `WRITTEN`."""
        days: _Days = {}
        ended: list[tuple[str, _Day]] = []
        try:
            self._write(read_entries(entries), days, ended)
        finally:
            for day in days.values():
                day.close()
        ended += ((table, day) for (table, _), day in days.items())
        told = [(table, str(day.path), day.rows) for table, day in ended]
        columns = zip(*told, strict=True) if told else ((), (), ())
        types = (pa.string(), pa.string(), pa.int64())
        arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, ["table", "file", "rows"])

    def _write(self, parts: Iterable[TableRows], days: _Days, ended: list[tuple[str, _Day]]) -> None:
        rows, size = 0, 0
        for table, batch in parts:
            for day, part in _by_day(batch):
                key = table, day
                if key not in days:
                    days[key] = _Day(self.folder / table / f"{PARTITION}={day}" / f"{uuid.uuid4().hex}.parquet")
                days[key].waiting.append(part)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= ROWS_TOGETHER or size >= BYTES_TOGETHER:
                _write_out(days, ended)
                rows, size = 0, 0
        _write_out(days, ended)


def _write_out(days: _Days, ended: list[tuple[str, _Day]]) -> None:
    """Write what waits. Where there are more days than may be open each file ends here, and later rows get another."""
    many = len(days) > MOST_OPEN
    for each in days.values():
        each.write()
        if many:
            each.close()
    if many:
        ended += ((table, day) for (table, _), day in days.items())
        days.clear()


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
    dates = batch.column(PARTITION)
    days = pc.unique(dates)
    for day in days:
        yield day.as_py(), batch if len(days) == 1 else batch.filter(pc.equal(dates, day))
