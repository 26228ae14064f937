"""Where things lie in a lake. Only the standard library: it runs on Spark's side, too.

::

    <lake>/events/date=<YYYY-MM-DD>/*.parquet      a Delta table, the same for dead_letters and malformed
    <lake>/events/_delta_log/                      which of its files count
    <state>/checkpoint                             Spark's: offsets and commits of the query
    <state>/…                                      the ingester's lock, staging, counts of batches

The state is a folder that every process of Spark sees, ``_ingest`` in a lake that is a folder itself.
"""

import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

TABLES = ("events", "dead_letters", "malformed")
COUNTS_KEPT = 100
"""How many batches' counts are kept; the last one holds the totals."""


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What one batch brought, and all batches up to it."""

    batch: int
    events: int
    dead_letters: int
    malformed: int
    total_events: int
    total_dead_letters: int
    total_malformed: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of a lake."""

    root: str
    """Folder of the tables, or the address of one."""
    state: Path
    """Folder that belongs to ingestion; readers of tables never look into it."""

    @classmethod
    def of(cls, folder: Path) -> "Layout":
        """Return the layout of a lake that is a folder."""
        return cls(str(folder), folder / "_ingest")

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint of the one query that writes this lake."""
        return self.state / "checkpoint"

    @property
    def staging(self) -> Path:
        """Folder for what is being written."""
        return self.state / "staging"

    @property
    def counts(self) -> Path:
        """Folder with one file of `BatchCounts` a batch."""
        return self.state / "counts"

    @property
    def source(self) -> Path:
        """File that says what is ingested: address of Redis, and patterns."""
        return self.state / "source.json"

    def table(self, name: str) -> str:
        """Return where a table lies."""
        return f"{self.root}/{name}"

    def create(self) -> None:
        """Make the folders of the state; harmless where they are."""
        self.counts.mkdir(parents=True, exist_ok=True)
        self.staging.mkdir(exist_ok=True)
        if not self.has_name():
            replace_text(self._name, uuid.uuid4().hex)

    @property
    def _name(self) -> Path:
        return self.state / "name"

    def has_name(self) -> bool:
        """Tell whether there is a state."""
        return self._name.exists()

    def name(self) -> str:
        """Return what the state calls itself: batches are numbered by its checkpoint, and by no other."""
        return self._name.read_text()

    # --- counts: written on Spark's side ------------------------------------------------------------------

    def note_counts(self, batch: int, events: int, dead_letters: int, malformed: int) -> None:
        """Write down what ``batch`` brought, and the new totals. Noting a batch again changes nothing."""
        before = self.read_counts(batch - 1) or BatchCounts(batch - 1, 0, 0, 0, 0, 0, 0)
        counts = BatchCounts(
            batch,
            events,
            dead_letters,
            malformed,
            before.total_events + events,
            before.total_dead_letters + dead_letters,
            before.total_malformed + malformed,
        )
        replace_text(self._counts_of(batch), json.dumps(asdict(counts)))
        self._counts_of(batch - COUNTS_KEPT).unlink(missing_ok=True)

    def read_counts(self, batch: int) -> BatchCounts | None:
        """Return the counts of ``batch``, or None where they are not known (any more)."""
        try:
            return BatchCounts(**json.loads(self._counts_of(batch).read_text()))
        except FileNotFoundError:
            return None

    def counted_batches(self) -> list[int]:
        """Return the batches whose counts are known, `COUNTS_KEPT` at most, oldest first."""
        return sorted(int(path.stem) for path in self.counts.glob("[0-9]*.json"))

    def newest_counts(self) -> BatchCounts:
        """Return the counts of the newest batch; of a batch before all others where there is none."""
        batches = self.counted_batches()
        return (batches and self.read_counts(batches[-1])) or BatchCounts(-1, 0, 0, 0, 0, 0, 0)

    def _counts_of(self, batch: int) -> Path:
        return self.counts / f"{batch}.json"

    # --- the one ingester -----------------------------------------------------------------------------------

    @contextmanager
    def sole_ingester(self) -> Iterator[None]:
        """Hold the lock of the one ingester. The system takes it back at a kill. Raises BlockingIOError."""
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "ingester.lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    # --- what Spark has noted ----------------------------------------------------------------------------------

    def planned_batch(self) -> int | None:
        """Return the newest batch whose range Spark has written down, or None where there is none."""
        return max((int(path.name) for path in _numbered(self.checkpoint / "offsets")), default=None)

    def flush_plan(self, batch: int) -> None:
        """Put on the disk which entries ``batch`` holds: its rows must not outlive that. Raises OSError."""
        plans = self.checkpoint / "offsets"
        beside = (plans / f".{batch}.crc", self.checkpoint / "metadata")
        files = (plans / str(batch), *(file for file in beside if file.exists()))
        for path in (*files, plans, self.checkpoint, self.state):
            flush(path)

    def committed_batch(self) -> int | None:
        """Return the newest batch that will never be replayed, or None where there is none."""
        return max((int(path.name) for path in _numbered(self.checkpoint / "commits")), default=None)

    def committed_offset(self) -> str | None:
        """Return what the source had given as its end of the newest committed batch, or None."""
        batch = self.committed_batch()
        if batch is None:
            return None
        return (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]


def _numbered(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("*") if re.fullmatch(r"\d+", path.name))


def replace_text(path: Path, text: str) -> None:
    """Make ``path`` hold ``text``, in one step, also where power fails."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    flush(draft)
    draft.replace(path)


def flush(path: Path) -> None:
    """Put a file or a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def spark_path(path: str | Path) -> str:
    """Return a path as Spark reads it: an address whose characters stand for themselves (``%20`` is no blank)."""
    return f"file://{path}"


def remove(folder: Path) -> None:
    """Remove a folder and what is in it. Harmless where there is none."""
    shutil.rmtree(folder, ignore_errors=True)
