"""Keeps the lake small and quick to read: joins small batches, and drops old days.

Both build the next generation of a table beside the present one (hard links and new files), and then point the table at
it in one step, so readers see each entry once at any moment, and a kill leaves nothing but a folder to remove. The
generation before stays until the next time, for those who are still reading it.
"""

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from reaper.pipeline.lake.batches import WRITE_OPTIONS
from reaper.pipeline.lake.layout import TABLES, Layout, remove, spark_path
from reaper.pipeline.lake.schema import TABLES as SCHEMAS
from reaper.pipeline.lake.tables import only_maintainer
from workers.protocol.errors import StreamReaperError

_ORDER = {
    "events": ("stream", "at", "seq", "row"),
    "dead_letters": ("stream", "at", "seq"),
    "malformed": ("stream", "id"),
}


class CompactionError(StreamReaperError):
    """A compacted batch is not what it was made of; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What compaction did to one table."""

    table: str
    batches_before: int
    batches_after: int
    files_before: int
    files_after: int
    rows_rewritten: int


@dataclass(frozen=True, slots=True)
class Retained:
    """What retention did to one table."""

    table: str
    days_dropped: tuple[date, ...]
    files_dropped: int


# --- compact ------------------------------------------------------------------------------------------------


def compact(
    session: SparkSession, layout: Layout, target_bytes: int, tell: Callable[[str], None] = lambda _: None
) -> list[Compacted]:
    """Join neighbouring batches up to about ``target_bytes`` each. Ingestion may go on meanwhile.

    Batches that may still be replayed are left alone. Raises LakeBusyError, CompactionError.
    """
    with only_maintainer(layout):
        _sweep(layout)
        return [_compact_table(session, layout, table, target_bytes, tell) for table in TABLES]


def plan_compaction(sizes: Mapping[int, int], target_bytes: int) -> list[list[int]]:
    """Return which batches to join: neighbours, until the next one would make them larger than ``target_bytes``.

    ``sizes`` are bytes by batch number, in order. A batch that stays by itself is in no group.
    """
    groups: list[list[int]] = [[]]
    filled = 0
    for number, size in sizes.items():
        if groups[-1] and filled + size > target_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(number)
        filled += size
    return [group for group in groups if len(group) > 1]


def _compact_table(
    session: SparkSession, layout: Layout, table: str, target_bytes: int, tell: Callable[[str], None]
) -> Compacted:
    before = _safe_batches(layout, table)
    sizes = {number: sum(file.stat().st_size for file in _files(path)) for number, path in before.items()}
    groups = plan_compaction(sizes, target_bytes)
    files_before = sum(1 for path in before.values() for _ in _files(path))
    staging = layout.staging / f"compact-{uuid.uuid4().hex}"
    rows = 0
    try:
        for done, group in enumerate(groups):
            tell(f"compacting {table}: {done} of {len(groups)} groups of batches joined, {rows:,} rows")
            rows += _join(session, table, [before[number] for number in group], staging / f"batch={group[-1]}")
        if groups:
            joined = {number for group in groups for number in group}
            new = {f"batch={group[-1]}": staging / f"batch={group[-1]}" for group in groups}
            _next_generation(layout, table, lambda batch, _: _number(batch) not in joined, new)
    finally:
        remove(staging)
    after = {number: path for number, path in layout.batches(table).items() if number in before}
    files_after = sum(1 for path in after.values() for _ in _files(path))
    return Compacted(table, len(before), len(after), files_before, files_after, rows)


def _safe_batches(layout: Layout, table: str) -> dict[int, Path]:
    """Return the batches that will never be replayed."""
    committed = layout.committed_batch()
    if committed is None:
        return {}
    return {number: path for number, path in layout.batches(table).items() if number <= committed}


def _join(session: SparkSession, table: str, batches: Sequence[Path], target: Path) -> int:
    """Write the rows of ``batches`` as one, sorted, a file for each date. Returns their number."""
    expected = _count(batches)
    # Above the batches' folders lies the number of the batch, which is no column of ours.
    reader = session.read.schema(SCHEMAS[table]).option("basePath", spark_path(batches[0].parent))
    rows = reader.parquet(*(spark_path(path) for path in batches)).select(SCHEMAS[table].names)
    ordered = rows.repartition("date").sortWithinPartitions("date", *_ORDER[table])
    ordered.write.mode("overwrite").options(**WRITE_OPTIONS).partitionBy("date").parquet(spark_path(target))
    written = _count([target])
    if written != expected:
        raise CompactionError(f"compaction of {table} wrote {written:,} rows of {expected:,}: the lake is as it was.")
    return written


def _count(folders: Iterable[Path]) -> int:
    """Count rows by the files' own footers: another way than the one that writes them."""
    return sum(pq.read_metadata(file).num_rows for folder in folders for file in _files(folder))


# --- retain -------------------------------------------------------------------------------------------------


def retain(layout: Layout, keep: timedelta, now: datetime | None = None) -> list[Retained]:
    """Drop the days that ended more than ``keep`` ago. Raises LakeBusyError."""
    oldest = oldest_day_kept(now or datetime.now(UTC), keep)
    with only_maintainer(layout):
        _sweep(layout)
        return [_retain_table(layout, table, oldest) for table in TABLES]


def oldest_day_kept(now: datetime, keep: timedelta) -> date:
    """Return the first day of which a part is younger than ``keep``."""
    return (now - keep).date()


def _retain_table(layout: Layout, table: str, oldest: date) -> Retained:
    old = [path for path in layout.table(table).glob("batch=*/date=*") if _day(path.name) < oldest]
    if old:
        _next_generation(layout, table, lambda _, day: day >= oldest, {})
    days = tuple(sorted({_day(path.name) for path in old}))
    return Retained(table, days, sum(1 for path in old for _ in _files(path)))


# --- generations --------------------------------------------------------------------------------------------


def _next_generation(layout: Layout, table: str, keeps: Callable[[str, date], bool], new: Mapping[str, Path]) -> None:
    """Replace a table by what ``keeps`` (folder of a batch, day) says of it, and the folders ``new``."""
    with layout.changing_tables():
        present = layout.current(table)
        following = layout.generations / f"{table}.{_number(present.name) + 1}"
        remove(following)
        following.mkdir()
        for day in sorted(present.glob("batch=*/date=*")):
            if keeps(day.parent.name, _day(day.name)):
                _link(day, following / day.parent.name / day.name)
        for name, folder in new.items():
            folder.rename(following / name)
        layout.point(table, following)


def _link(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for file in source.iterdir():
        os.link(file, target / file.name)


def _sweep(layout: Layout) -> None:
    """Remove generations before the present one, and what a killed maintenance has left."""
    for table in TABLES:
        present = layout.current(table)
        for folder in layout.generations.glob(f"{table}.*"):
            if folder.is_dir() and not folder.is_symlink() and folder != present:
                remove(folder)
    for folder in layout.staging.glob("compact-*"):
        remove(folder)


def _files(folder: Path) -> Iterable[Path]:
    return folder.glob("**/*.parquet")


def _number(name: str) -> int:
    """Return N of ``batch=N`` and of ``events.N``."""
    return int(name.replace("=", ".").rpartition(".")[2])


def _day(name: str) -> date:
    return date.fromisoformat(name.removeprefix("date="))
