"""Writes the rows of a task into Parquet files of the lake, with one file for each table and day.

It runs in Spark's Python, and may import only the standard library, pyarrow and pyspark.
"""

import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reaper.pipeline.lake.parse import TableRows
from reaper.pipeline.lake.store import filesystem, flush, is_address

PARTITION = "date"
ROWS_TOGETHER = 250_000
"""Rows of a row group, which are held in memory while files are written."""
BYTES_TOGETHER = 128_000_000
"""The same for large rows."""
MOST_OPEN = 64
"""Days whose files stay open. A system allows a process some thousand files, and a stream may hold years."""
_DISTINCT = {
    "id", "at", "job", "entry", "enqueued_ms", "ready_ms", "delivered_ms", "begun_ms", "due_ms", "new_entry",
    "dead_letter",
}  # fmt: skip
"""Columns whose values rarely repeat, so a dictionary would only cost memory."""

WRITTEN = "table string, path string, rows bigint, bytes bigint"
"""Columns of the report of a task on its files. ``path`` is relative to the table."""


@dataclass(slots=True)
class _File:
    """The file of one table and day, and rows that wait to be written."""

    root: str
    """The table's."""
    path: str
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    writer: pq.ParquetWriter | None = None

    def write(self) -> None:
        """Write the rows that wait."""
        if not self.waiting:
            return
        rows = pa.Table.from_batches(self.waiting).drop_columns([PARTITION])
        if self.writer is None:
            repeated = [name for name in rows.schema.names if name not in _DISTINCT]
            if not is_address(self.root):
                Path(self.root, self.path).parent.mkdir(parents=True, exist_ok=True)
            self.writer = pq.ParquetWriter(
                self.path, rows.schema, filesystem=filesystem(self.root), compression="zstd", use_dictionary=repeated
            )
        self.writer.write_table(rows)
        self.rows += rows.num_rows
        self.waiting = []

    def close(self) -> int:
        """End the file, and put it on the disk. Returns its size in bytes."""
        if self.writer is not None:
            self.writer.close()
            if not is_address(self.root):
                for path in (file := Path(self.root, self.path), file.parent, file.parent.parent):
                    flush(path)
        return int(filesystem(self.root).get_file_info(self.path).size)

    def remove(self) -> None:
        """Remove an unfinished file."""
        with suppress(Exception):
            if self.writer is not None:
                self.writer.close()
        with suppress(OSError):
            filesystem(self.root).delete_file(self.path)


@dataclass(slots=True)
class FileWriter:
    """Writes files below ``root``. They become part of the lake when a commit names them.

    A task that is repeated writes other files.
    """

    root: str
    _open: dict[tuple[str, date], _File] = field(default_factory=dict)
    _closed: list[tuple[str, str, int, int]] = field(default_factory=list)

    def write(self, parts: Iterable[TableRows]) -> pa.RecordBatch:
        """Write all rows, and return the report as `WRITTEN`. If that fails, remove the files."""
        try:
            self._write(parts)
        except BaseException:
            for file in self._open.values():
                file.remove()
            raise
        kinds = [("table", pa.string()), ("path", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())]
        names = [name for name, _ in kinds]
        return pa.RecordBatch.from_pylist(
            [dict(zip(names, told, strict=True)) for told in self._closed], schema=pa.schema(kinds)
        )

    def _write(self, parts: Iterable[TableRows]) -> None:
        rows, size = 0, 0
        for table, batch in parts:
            dates = batch.column(PARTITION)
            days = pc.unique(dates)
            for day in days:
                part = batch if len(days) == 1 else batch.filter(pc.equal(dates, day))
                self._file(table, day.as_py()).waiting.append(part)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= ROWS_TOGETHER or size >= BYTES_TOGETHER:
                if len(self._open) > MOST_OPEN:
                    self._close()  # later rows of these days get another file
                for file in self._open.values():
                    file.write()
                rows, size = 0, 0
        self._close()

    def _file(self, table: str, day: date) -> _File:
        if (table, day) not in self._open:
            path = f"{PARTITION}={day}/{uuid.uuid4().hex}.parquet"
            self._open[table, day] = _File(f"{self.root}/{table}", path)
        return self._open[table, day]

    def _close(self) -> None:
        for (table, day), file in list(self._open.items()):
            file.write()
            size = file.close()
            self._closed.append((table, file.path, file.rows, size))
            del self._open[table, day]


def partition_values(path: str) -> dict[str, Any]:
    """Return the day that a file's path names, as Delta writes it down."""
    return {PARTITION: path.partition("/")[0].removeprefix(f"{PARTITION}=")}
