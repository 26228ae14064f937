"""The files and folders of a lake. It runs in Spark's Python, too.

::

    <lake>/events/date=<YYYY-MM-DD>/*.parquet      a Delta table; the same for dead_letters and malformed
    <lake>/events/_delta_log/                      names the table's files
    <state>/checkpoint                             of Spark: offsets and commits of the query
    <state>/…                                      the lock of the one ingester, totals

The state is a folder, ``_ingest`` in a lake that is a folder itself.
"""

import fcntl
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from reaper.pipeline.lake.store import flush, replace_text

TABLES = ("events", "dead_letters", "malformed")


@dataclass(frozen=True, slots=True)
class Totals:
    """The rows of all batches up to ``batch``."""

    batch: int = -1
    events: int = 0
    dead_letters: int = 0
    malformed: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of a lake."""

    root: str
    """Folder of the tables, or the address of one."""
    state: Path
    """Folder of ingestion. Readers of tables do not need it."""

    @classmethod
    def of(cls, folder: Path) -> "Layout":
        """Return the layout of a lake that is a folder."""
        return cls(str(folder), folder / "_ingest")

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint of the one query that writes this lake."""
        return self.state / "checkpoint"

    @property
    def source(self) -> Path:
        """File with the address of Redis and the patterns that are ingested."""
        return self.state / "source.json"

    def table(self, name: str) -> str:
        """Return the address of a table."""
        return f"{self.root}/{name}"

    def create(self) -> None:
        """Make the state. Harmless if it exists."""
        self.state.mkdir(parents=True, exist_ok=True)
        if not self.has_name():
            replace_text(self._name, uuid.uuid4().hex)

    @property
    def _name(self) -> Path:
        return self.state / "name"

    def has_name(self) -> bool:
        """Tell whether there is a state."""
        return self._name.exists()

    def name(self) -> str:
        """Return the name of the state. Batches are numbered by its checkpoint only. Raises OSError."""
        return self._name.read_text()

    # --- totals, written on Spark's side

    def add_to_totals(self, batch: int, **rows: int) -> None:
        """Count the rows of a batch. A second count of a batch has no effect."""
        before = self.totals()
        if batch > before.batch:
            sums = {name: getattr(before, name) + rows.get(name, 0) for name in TABLES}
            replace_text(self.state / "totals.json", json.dumps(asdict(Totals(batch, **sums))))

    def totals(self) -> Totals:
        """Return the rows that were ingested so far."""
        try:
            return Totals(**json.loads((self.state / "totals.json").read_text()))
        except FileNotFoundError:
            return Totals()

    # --- the one writer ---------------------------------------------------------------------------------------

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the one process that may write. A kill releases it. Raises BlockingIOError."""
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "ingester.lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    # --- Spark's checkpoint -------------------------------------------------------------------------------------

    def planned_batch(self) -> int | None:
        """Return the newest batch whose range Spark has written down, or None."""
        return _newest(self.checkpoint / "offsets")

    def flush_plan(self, batch: int) -> None:
        """Put the range of ``batch`` on the disk, because its rows must not outlive it. Raises OSError."""
        plans = self.checkpoint / "offsets"
        beside = (plans / f".{batch}.crc", self.checkpoint / "metadata")
        files = (plans / str(batch), *(file for file in beside if file.exists()))
        for path in (*files, plans, self.checkpoint, self.state):
            flush(path)

    def committed_batch(self) -> int | None:
        """Return the newest batch that will never be replayed, or None."""
        return _newest(self.checkpoint / "commits")

    def committed_offset(self) -> str | None:
        """Return the source's end of the newest committed batch, or None."""
        batch = self.committed_batch()
        if batch is None:
            return None
        return (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]


def _newest(folder: Path) -> int | None:
    return max((int(path.name) for path in folder.glob("*") if re.fullmatch(r"\d+", path.name)), default=None)
