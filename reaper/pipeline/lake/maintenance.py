"""Keeps a lake small and quick to read. An ingester joins small files and drops old days.

Each step is one commit of the Delta table, so readers see each entry once at any moment. The caller is the one writer
of the lake (`reaper.pipeline.lake.tables.only_writer`).
"""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from deltalake.exceptions import DeltaError
from pyarrow import ArrowException

from reaper.pipeline.lake.delta import LakeTable
from reaper.pipeline.lake.layout import TABLES, Layout
from reaper.pipeline.lake.store import replace_text
from reaper.pipeline.storage import reason_of_store
from workers.protocol.log_fields import fields

logger = logging.getLogger(__name__)

COMPACT_EVERY = 60
"""Batches between two compactions. A batch may leave a file for each table, day and task."""
EARLY_PART = 8
"""Compactions within a day join files up to this part of the full size, so that they do not rewrite large ones."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Compaction and retention. If it fails, it is tried again with later batches."""

    layout: Layout
    target_bytes: int
    """Size that files are joined up to."""
    keep: timedelta | None
    """How much of the past the lake keeps, in whole days. None = all."""

    def look(self, batch: int, now: datetime | None = None) -> None:
        """Compact a little every 60 batches, and do all maintenance once a day (UTC). ``batch`` is the latest one."""
        now, noted = now or datetime.now(UTC), self.layout.state / "maintained"
        today = f"{now:%F}"
        before, day = noted.read_text().split() if noted.exists() else (batch, today)
        is_due = day != today or batch - int(before) >= COMPACT_EVERY
        try:
            if is_due:
                self._tidy(now, fully=day != today)
        except (DeltaError, ArrowException, OSError) as error:
            facts = fields(lake=self.layout.root, cause=reason_of_store(error))
            logger.warning("maintenance of the lake failed: %s", facts)
        if is_due or not noted.exists():
            replace_text(noted, f"{batch} {today}")

    def _tidy(self, now: datetime, *, fully: bool) -> None:
        for name in TABLES:
            table = LakeTable(self.layout.table(name))
            if fully and self.keep is not None:
                table.drop_before((now - self.keep).date())
            table.compact(self.target_bytes if fully else max(1, self.target_bytes // EARLY_PART))
            table.clean()
