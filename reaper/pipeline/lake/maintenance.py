"""Keeps a lake small and quick to read: joins small files and drops old days, by hand or during ingestion.

Each step is one commit of the Delta table, so readers see each entry once at any moment. A caller holds the lock of the
lake's state (`reaper.pipeline.lake.tables.only_writer`).
"""

import logging
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from deltalake.exceptions import DeltaError
from pyarrow import ArrowException

from reaper.pipeline.lake.delta import LakeTable
from reaper.pipeline.lake.layout import TABLES, Layout
from reaper.pipeline.lake.store import replace_text
from reaper.pipeline.lake.tables import LakeBusyError
from reaper.pipeline.storage import reason_of_store

logger = logging.getLogger(__name__)

COMPACT_EVERY = 60
"""Batches between two compactions. A batch may leave a file for each table, day and task."""
COMPACT_FULLY_EVERY = 24 * COMPACT_EVERY
EARLY_PART = 8
"""The compactions between two full ones join up to this part of the full size: or each would rewrite the same file."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of compaction for one table."""

    table: str
    files_before: int
    files_after: int


@dataclass(frozen=True, slots=True)
class Retained:
    """The result of retention for one table."""

    table: str
    days_dropped: tuple[date, ...]
    files_dropped: int


def compact(layout: Layout, target_bytes: int, *, thoroughly: bool = False) -> list[Compacted]:
    """Join the small files of each day up to about ``target_bytes`` each. Raises DeltaError, LakeBusyError.

    ``thoroughly``: see `LakeTable.clean`.
    """
    _check_state(layout)
    done = []
    for name in TABLES:
        table = LakeTable(layout.table(name))
        before = len(table.files())
        table.compact(target_bytes)
        done.append(Compacted(name, before, len(table.files())))
        table.clean(thoroughly=thoroughly)
    return done


def retain(layout: Layout, keep: timedelta, now: datetime | None = None) -> list[Retained]:
    """Drop the days that ended more than ``keep`` ago. Raises DeltaError, LakeBusyError."""
    _check_state(layout)
    oldest = ((now or datetime.now(UTC)) - keep).date()
    done = []
    for name in TABLES:
        table = LakeTable(layout.table(name))
        dropped = table.drop_before(oldest)
        table.clean()
        done.append(Retained(name, tuple(sorted({file.date for file in dropped})), len(dropped)))
    return done


def _check_state(layout: Layout) -> None:
    """Raise LakeBusyError if the state is not the one of this lake: its lock would keep no other process out."""
    table = LakeTable(layout.table(TABLES[0]))
    if table.files() and (not layout.has_name() or table.batch_of(layout.name()) is None):
        raise LakeBusyError(
            f"{layout.state} is not the state of the lake {layout.root}: set --state to the folder of its ingester."
        )


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Compaction and retention by an ingester. If it fails, it is tried again with later batches."""

    layout: Layout
    target_bytes: int
    keep: timedelta | None
    """How much of the past the lake keeps; None keeps all of it."""

    def look(self, batch: int) -> None:
        """Do what is due after ``batch``."""
        noted = self.layout.state / "maintained"
        before = _number_in(noted)
        if batch - before < COMPACT_EVERY:
            return
        is_full = batch // COMPACT_FULLY_EVERY > before // COMPACT_FULLY_EVERY
        try:
            compact(self.layout, self.target_bytes if is_full else max(1, self.target_bytes // EARLY_PART))
            if self.keep is not None:
                retain(self.layout, self.keep)
        except (LakeBusyError, DeltaError, ArrowException, OSError) as error:
            logger.warning("maintenance of the lake %s failed: %s", self.layout.root, reason_of_store(error))
        replace_text(noted, str(batch))


def _number_in(file: Path) -> int:
    return int(file.read_text()) if file.exists() else 0
