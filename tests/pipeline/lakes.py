"""Lakes without Spark: rows that pyarrow has staged, and what a table holds."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from reaper.pipeline.lake.delta import LakeTable, arrow_schema
from reaper.pipeline.lake.files import PARTITION
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.schema import TABLES

DAY = date(2023, 11, 14)


def open_table(layout: Layout, table: str = "events") -> LakeTable:
    """Return a new handle."""
    return LakeTable(layout.table(table))


def staged_files(layout: Layout, table: str, jobs: dict[date, list[str]]) -> list[Path]:
    """Write a row for each job into its day's file, as a batch is staged. Returns the files."""
    return sorted(stage(layout, table, jobs).glob(f"{PARTITION}=*/*.parquet"))


def stage(layout: Layout, table: str, jobs: dict[date, list[str]]) -> Path:
    """Do the same, and return the folder."""
    whole = arrow_schema(TABLES[table])
    schema = whole.remove(whole.get_field_index(PARTITION))
    folder = layout.staging / f"attempt-{len(list(layout.staging.iterdir()))}" / table
    for day, names in jobs.items():
        at = datetime.combine(day, datetime.min.time(), UTC)
        ours = folder / f"{PARTITION}={day}"
        ours.mkdir(parents=True)
        rows = [
            {"id": f"{int(at.timestamp() * 1000) + n}-0", "stream": "s", "at": at + timedelta(milliseconds=n), "seq": 0}
            | ({"event": "acked", "job": name} if table == "events" else {"job": name})
            for n, name in enumerate(names)
        ]
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), ours / "part-0.parquet", compression="zstd")
    return folder


def plan(layout: Layout, batch: int) -> None:
    """Write down the range of a batch, as Spark does before it begins."""
    (layout.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (layout.checkpoint / "offsets" / str(batch)).write_text("v1\n{}\n{}")


def add(layout: Layout, batch: int, jobs: dict[date, list[str]], table: str = "events", fence: int = 0) -> None:
    """Publish a batch."""
    files = staged_files(layout, table, jobs)
    open_table(layout, table).publish(files, checkpoint=layout.name(), batch=batch, fence=fence)


def jobs_in(layout: Layout, table: str = "events") -> Counter[str]:
    """Return the jobs of all rows, read from the files that count."""
    files = open_table(layout, table).files()
    found = [pq.read_table(Path(layout.table(table), file.path), columns=["job"]) for file in files]
    return Counter(job for part in found for job in part.column("job").to_pylist())
