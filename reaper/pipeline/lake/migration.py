"""Makes Delta tables of a lake whose tables were plain folders of batches, in place.

Nothing is copied: files are linked into the new table's folder, which then takes the old one's place. A kill at any
moment leaves a lake that can be migrated again.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from reaper.pipeline.lake.delta import LakeTable, is_address
from reaper.pipeline.lake.layout import Layout, remove
from reaper.pipeline.lake.schema import TABLES
from reaper.pipeline.lake.tables import MIGRATED, NoLakeError, create_tables, only_ingester
from workers.protocol.errors import ConfigurationError

OLD_FILES = ("fence", "tables.lock", "maintenance.lock")
OLD_FOLDER = "generations"


@dataclass(frozen=True, slots=True)
class Migrated:
    """What became of one table."""

    table: str
    files: int
    newest_batch: int | None
    """None where it held none, or was migrated before."""


def migrate(layout: Layout) -> list[Migrated]:
    """Make Delta tables of what is there. Raises LakeBusyError while somebody ingests, ConfigurationError."""
    if is_address(layout.root):
        raise ConfigurationError(f"only a lake that is a folder can have been made earlier: {layout.root} is none.")
    if not any(os.path.lexists(layout.table(name)) for name in TABLES):
        raise NoLakeError(f"there is no lake at {layout.root}: `reaper pipeline ingest` makes one.")
    with only_ingester(layout):
        layout.create()
        _finish(layout)
        done = [_migrate_table(layout, name) for name in TABLES]
        create_tables(layout)
        for left in OLD_FILES:
            (layout.state / left).unlink(missing_ok=True)
        remove(layout.state / OLD_FOLDER)
        return done


def _migrate_table(layout: Layout, name: str) -> Migrated:
    link = Path(layout.table(name))
    if not link.is_symlink():
        return Migrated(name, 0, None)
    draft = _draft(layout, name)
    remove(draft)
    table = LakeTable.create(str(draft), TABLES[name])
    newest, files = None, []
    for batch in sorted(link.glob("batch=*")):
        number = int(batch.name.removeprefix("batch="))
        newest = number if newest is None else max(newest, number)
        files += [_link(file, draft, number) for file in sorted(batch.glob("date=*/*.parquet"))]
    counted = layout.newest_counts().batch  # all of it was published, though a table may have had nothing of it
    if (known := max(counted, -1 if newest is None else newest)) >= 0:
        table.adopt(files, checkpoint=layout.name(), batch=known)
    _put(draft, link)
    return Migrated(name, len(files), newest)


def _put(draft: Path, place: Path) -> None:
    place.unlink()
    draft.rename(place)


def _finish(layout: Layout) -> None:
    """Put the table into its place that a kill has left between the two steps of `_put`."""
    for name in TABLES:
        draft, place = _draft(layout, name), Path(layout.table(name))
        if draft.exists() and not os.path.lexists(place):
            draft.rename(place)
        remove(draft)


def _draft(layout: Layout, name: str) -> Path:
    return layout.staging / f"{MIGRATED}{name}"


def _link(file: Path, table: Path, batch: int) -> Path:
    target = table / file.parent.name / f"batch-{batch}-{file.name}"
    target.parent.mkdir(exist_ok=True)
    os.link(file, target)
    return target
