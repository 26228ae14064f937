"""Lakes without Spark: rows that a task has written, and the rows of a table."""

import uuid
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from reaper.pipeline.lake.delta import LakeTable, arrow_schema
from reaper.pipeline.lake.files import FileWriter
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.schema import TABLES

DAY = date(2023, 11, 14)


def open_table(layout: Layout, table: str = "events") -> LakeTable:
    """Return a new handle."""
    return LakeTable(layout.table(table))


def written(layout: Layout, table: str, jobs: dict[date, list[str]]) -> list[dict[str, Any]]:
    """Write a row for each job into its day's file, as a task does. Returns its report."""
    rows = []
    for day, names in jobs.items():
        at = datetime.combine(day, datetime.min.time(), UTC)
        rows += [
            {
                "id": f"{int(at.timestamp() * 1000) + n}-0",
                "stream": "s",
                "at": at + timedelta(milliseconds=n),
                "seq": 0,
                "job": name,
                "date": day,
            }
            | ({"event": "acked"} if table == "events" else {})
            for n, name in enumerate(names)
        ]
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(TABLES[table]))
    reports: list[dict[str, Any]] = FileWriter(layout.root).write([(table, batch)]).to_pylist()
    return reports


def plan(layout: Layout, batch: int) -> None:
    """Write down the range of a batch, as Spark does before it begins."""
    (layout.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (layout.checkpoint / "offsets" / str(batch)).write_text("v1\n{}\n{}")


def add(layout: Layout, batch: int, jobs: dict[date, list[str]], table: str = "events", fence: int = 0) -> None:
    """Publish a batch."""
    files = written(layout, table, jobs)
    open_table(layout, table).publish(files, checkpoint=layout.name(), batch=batch, fence=fence)


def publish(layout: Layout, table: str, files: Iterable[Path], *, batch: int) -> None:
    """Publish files that Spark has written, below folders of their days."""
    reports = []
    for file in files:
        target = Path(layout.table(table), file.parent.name, f"{uuid.uuid4().hex}.parquet")
        target.parent.mkdir(exist_ok=True)
        size, rows = file.stat().st_size, pq.read_metadata(file).num_rows
        file.rename(target)
        reports.append({"path": f"{file.parent.name}/{target.name}", "bytes": size, "rows": rows})
    opened = open_table(layout, table)
    opened.publish(reports, checkpoint=layout.name(), batch=batch, fence=opened.fence())


def jobs_in(layout: Layout, table: str = "events") -> Counter[str]:
    """Return the jobs of all rows, read from the files that count."""
    files = open_table(layout, table).files()
    found = [pq.read_table(Path(layout.table(table), file.path), columns=["job"]) for file in files]
    return Counter(job for part in found for job in part.column("job").to_pylist())
