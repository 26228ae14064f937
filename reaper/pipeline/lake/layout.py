"""Where things lie in a lake, and the two locks on it. Only the standard library: it runs on Spark's side, too.

::

    <lake>/events/batch=<N>/date=<YYYY-MM-DD>/*.parquet     the same for dead_letters and malformed
    <lake>/_ingest/checkpoint                               Spark's: offsets and commits of the query
    <lake>/_ingest/…                                        locks, staging, generations, counts of batches

A table is a symbolic link to its newest *generation*. Ingestion adds batches to that folder, each by one rename; what
rewrites a table (compaction, retention) builds the next generation of hard links and new files, and points the link
at it, by one rename again. So whoever lists a table sees whole batches, and each entry once.
"""

import fcntl
import json
import os
import re
import shutil
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
    """Paths of the lake in folder ``root``."""

    root: Path

    @property
    def ingest(self) -> Path:
        """The folder that belongs to ingestion; readers of tables never look into it."""
        return self.root / "_ingest"

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint of the one query that writes this lake."""
        return self.ingest / "checkpoint"

    @property
    def generations(self) -> Path:
        """Folders that the tables' links point to."""
        return self.ingest / "generations"

    @property
    def staging(self) -> Path:
        """Folder for what is being written."""
        return self.ingest / "staging"

    @property
    def counts(self) -> Path:
        """Folder with one file of `BatchCounts` a batch."""
        return self.ingest / "counts"

    @property
    def source(self) -> Path:
        """File that says what is ingested: address of Redis, and patterns."""
        return self.ingest / "source.json"

    def table(self, name: str) -> Path:
        """Return the folder of a table, a symbolic link."""
        return self.root / name

    def exists(self) -> bool:
        """Tell whether there is a lake."""
        return all(self.table(name).is_dir() for name in TABLES)

    def create(self) -> None:
        """Make an empty lake; harmless where there is one."""
        self.generations.mkdir(parents=True, exist_ok=True)
        self.counts.mkdir(exist_ok=True)
        for name in TABLES:
            if not self.table(name).is_dir():
                first = self.generations / f"{name}.1"
                first.mkdir(exist_ok=True)
                self.point(name, first)

    def current(self, table: str) -> Path:
        """Return the generation that ``table`` points to."""
        return self.generations / self.table(table).readlink().name

    def point(self, table: str, generation: Path) -> None:
        """Make ``generation`` the contents of ``table``, in one step."""
        link = self.generations / f"{table}.link"
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(generation, self.root))
        link.replace(self.table(table))

    def batches(self, table: str) -> dict[int, Path]:
        """Return the folders of the batches that are in ``table``, in order."""
        found = {int(path.name.removeprefix("batch=")): path for path in self.table(table).glob("batch=*")}
        return dict(sorted(found.items()))

    # --- batches: written on Spark's side -----------------------------------------------------------------

    def publish(self, table: str, batch: int, staged: Path) -> None:
        """Add the staged folder to ``table`` as ``batch``, whole or not at all.

        A batch that is there already was published by an attempt that ended before Spark noted it: it is the same.
        """
        target = self.table(table) / f"batch={batch}"
        if staged.is_dir() and not target.exists() and any(staged.glob("date=*")):
            _flush(staged)
            staged.rename(target)
            _flush_folder(target.parent)

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

    def _counts_of(self, batch: int) -> Path:
        return self.counts / f"{batch}.json"

    # --- locks --------------------------------------------------------------------------------------------

    @contextmanager
    def changing_tables(self) -> Iterator[None]:
        """Hold the lock of whoever adds a batch or points a link elsewhere; waits for it (such moments are short)."""
        with self._locked("tables.lock", fcntl.LOCK_EX):
            yield

    @contextmanager
    def sole_ingester(self) -> Iterator[None]:
        """Hold the lock of the one ingester. The system takes it back at a kill. Raises BlockingIOError."""
        with self._locked("ingester.lock", fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield

    @contextmanager
    def sole_maintainer(self) -> Iterator[None]:
        """Hold the lock of the one who rewrites tables. Raises BlockingIOError."""
        with self._locked("maintenance.lock", fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield

    @contextmanager
    def _locked(self, name: str, how: int) -> Iterator[None]:
        self.ingest.mkdir(parents=True, exist_ok=True)
        with (self.ingest / name).open("w") as handle:
            fcntl.flock(handle, how)
            yield

    # --- the fence: an ingester that was replaced publishes nothing ---------------------------------------------

    def install_fence(self, token: str) -> None:
        """Make ``token`` the only one whose batches are published."""
        with self.changing_tables():
            replace_text(self.ingest / "fence", token)

    def fence(self) -> str:
        """Return the token in force."""
        return (self.ingest / "fence").read_text()

    # --- what Spark has noted ----------------------------------------------------------------------------------

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
    """Make ``path`` hold ``text``, in one step."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    draft.replace(path)


def spark_path(path: Path) -> str:
    """Return a path as Spark reads it: an address whose characters stand for themselves (``%20`` is no blank)."""
    return f"file://{path}"


def remove(folder: Path) -> None:
    """Remove a folder and what is in it. Harmless where there is none."""
    shutil.rmtree(folder, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Put files on the disk before they get their place: the journal may be trimmed behind them."""
    for path in folder.rglob("*"):
        _flush_folder(path)


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
