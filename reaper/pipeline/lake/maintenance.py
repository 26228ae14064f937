"""Keeps a lake small and quick to read: joins small files, and drops old days. By hand, or while ingestion goes on.

Every step is one commit of the Delta table, so readers see each entry once at any moment, and a kill leaves nothing
but files that nobody counts. They go later (`reaper.pipeline.lake.delta.FILES_KEPT_HOURS`).
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from deltalake.exceptions import DeltaError
from pyarrow import ArrowException

from reaper.pipeline.lake.delta import JoinError, LakeFile, LakeTable
from reaper.pipeline.lake.layout import TABLES, Layout, replace_text
from reaper.pipeline.lake.tables import LakeBusyError
from reaper.pipeline.storage import reason_of_store
from workers.protocol.errors import StreamReaperError

logger = logging.getLogger(__name__)

JOIN_EVERY = 60
"""Batches between two looks at what the newest ones have left. A batch may leave a file for each table and part."""
JOIN_LARGE_EVERY = 24 * JOIN_EVERY
"""Batches between two looks that join up to the full size."""
EARLY_PART = 8
"""Part of the full size that the looks between them join up to: or each would write the same large file anew."""


class CompactionError(StreamReaperError):
    """Files are not what their table says; they were left as they are."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What compaction did to one table."""

    table: str
    files_before: int
    files_after: int
    files_joined: int


@dataclass(frozen=True, slots=True)
class Retained:
    """What retention did to one table."""

    table: str
    days_dropped: tuple[date, ...]
    files_dropped: int


def compact(layout: Layout, target_bytes: int, tell: Callable[[str], None] = lambda _: None) -> list[Compacted]:
    """Join the small files of each day up to about ``target_bytes`` each. Ingestion may go on meanwhile.

    Raises LakeBusyError where another compaction or retention comes in between, and CompactionError; what it has done
    stays.
    """
    done = []
    for name in TABLES:
        table = LakeTable(layout.table(name))
        before = table.files()
        joined = _join(name, table, before, target_bytes, tell)
        after = LakeTable(layout.table(name)).files()
        done.append(Compacted(name, len(before), len(after), joined))
    return done


def _join(name: str, table: LakeTable, files: list[LakeFile], target_bytes: int, tell: Callable[[str], None]) -> int:
    groups = plan_compaction(files, target_bytes)
    for number, group in enumerate(groups):
        tell(f"compacting {name}: {number} of {len(groups)} groups of files joined")
        try:
            table.join(group)
        except DeltaError as error:
            raise LakeBusyError(f"{name} of {group[0].date} was not compacted: {reason_of_store(error)}") from error
        except JoinError as error:
            raise CompactionError(str(error)) from error
    table.clean(thoroughly=True)
    return sum(len(group) for group in groups)


def plan_compaction(files: Iterable[LakeFile], target_bytes: int) -> list[list[LakeFile]]:
    """Return which files to join: of one day, in the order of their age, up to about ``target_bytes`` together.

    A file that stays by itself is in no group.
    """
    groups: list[list[LakeFile]] = []
    for file in sorted(files, key=lambda file: (file.date, file.modified_ms, file.path)):
        open_group = groups[-1] if groups else []
        fits = sum(other.bytes for other in open_group) + file.bytes <= target_bytes
        if open_group and fits and open_group[0].date == file.date:
            open_group.append(file)
        else:
            groups.append([file])
    return [group for group in groups if len(group) > 1]


def retain(layout: Layout, keep: timedelta, now: datetime | None = None) -> list[Retained]:
    """Drop the days that ended more than ``keep`` ago. Raises LakeBusyError."""
    oldest = oldest_day_kept(now or datetime.now(UTC), keep)
    done = []
    for name in TABLES:
        table = LakeTable(layout.table(name))
        try:
            dropped = table.drop_before(oldest)
        except DeltaError as error:
            raise LakeBusyError(f"days of {name} were not dropped: {reason_of_store(error)}") from error
        table.clean()
        done.append(Retained(name, tuple(sorted({file.date for file in dropped})), len(dropped)))
    return done


def oldest_day_kept(now: datetime, keep: timedelta) -> date:
    """Return the first day of which a part is younger than ``keep``."""
    return (now - keep).date()


# --- by itself ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Compaction and retention by an ingester, every so many batches. What fails is tried again with later batches."""

    layout: Layout
    target_bytes: int
    keep: timedelta | None
    """How much of the past the lake keeps; None: all of it."""

    def look(self, batch: int) -> None:
        """Do what is due after ``batch``."""
        if batch - self._done_at() < JOIN_EVERY:
            return
        target = self._target(batch)
        try:
            compact(self.layout, target)
            if self.keep is not None:
                retain(self.layout, self.keep)
        except (StreamReaperError, DeltaError, ArrowException, OSError) as error:
            logger.warning("the lake %s is tidied up later: %s", self.layout.root, reason_of_store(error))
        replace_text(self._noted, str(batch))

    def _target(self, batch: int) -> int:
        full = batch // JOIN_LARGE_EVERY > self._done_at() // JOIN_LARGE_EVERY
        return self.target_bytes if full else max(1, self.target_bytes // EARLY_PART)

    def _done_at(self) -> int:
        return int(self._noted.read_text()) if self._noted.exists() else 0

    @property
    def _noted(self) -> Path:
        return self.layout.state / "tidied"
