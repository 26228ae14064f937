"""One table of a lake: a Delta table, partitioned by day, whose files Spark has written and deltalake commits.

Runs where the query runs, so beside the standard library it needs deltalake, pyarrow, pyspark, and modules of this
package that keep the same rule.

A commit says which batch of which checkpoint it holds and in which ingester's name, both as *application
transactions*. Two commits that name the same one conflict where neither had seen the other. So a batch comes in once,
however often it is tried, and what an ingester had in its hands when another one took over fails by itself.
"""

import json
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import wraps
from pathlib import Path
from time import time
from typing import ParamSpec, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import dataset
from pyarrow.fs import FileSystem, LocalFileSystem, S3FileSystem, SubTreeFileSystem, copy_files
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from reaper.pipeline.lake.files import PARTITION, ROWS_TOGETHER, parquet_writer
from reaper.pipeline.lake.layout import flush

FENCE = "ingester"
"""Application transaction whose version is the number of the ingester that may commit."""
UPKEEP = "upkeep"
"""The same of whoever rewrites files: of two who had seen the same ones, the later one fails. (deltalake's own
compaction lets both pass, as of 1.6.6, and every row is there twice.)"""
FILES_KEPT_HOURS = 1
"""How long a file stays that no longer counts: for those who are reading it."""
_CONFIGURATION = {
    "delta.deletedFileRetentionDuration": f"interval {FILES_KEPT_HOURS} hours",
    "delta.logRetentionDuration": f"interval {FILES_KEPT_HOURS} hours",
}
_TRIES = 5
"""Attempts at a commit of ours while compaction commits, too."""


ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Variables that say where an object store is; the first that is set counts, for deltalake as well."""


P = ParamSpec("P")
R = TypeVar("R")


class JoinError(Exception):
    """Files are not what their table says of them."""


class ReplacedError(Exception):
    """Another ingester has taken over the lake."""


def _panics_are_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Make a DeltaError of a panic of deltalake, which is not an Exception and so would pass every handler.

    Spark pickles these methods for its other processes. A decorator that holds a generator cannot be pickled.
    """

    @wraps(method)
    def guarded(*args: P.args, **named: P.kwargs) -> R:
        try:
            return method(*args, **named)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            raise DeltaError(f"deltalake gave up: {error}") from error

    return guarded


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file that counts."""

    path: str
    """Below the table's folder."""
    date: date
    bytes: int
    rows: int
    modified_ms: int


class LakeTable:
    """A handle on the table at ``address``, as it was when the handle was made."""

    @_panics_are_errors
    def __init__(self, address: str) -> None:
        self.address = address
        self._delta = DeltaTable(address)

    @staticmethod
    @_panics_are_errors
    def is_at(address: str) -> bool:
        """Tell whether there is such a table."""
        return DeltaTable.is_deltatable(address)

    @classmethod
    @_panics_are_errors
    def create(cls, address: str, schema: StructType) -> "LakeTable":
        """Make an empty table, or open the one there is, with the columns that it lacks."""
        wanted = arrow_schema(schema)
        if not cls.is_at(address):
            DeltaTable.create(address, wanted, mode="ignore", partition_by=[PARTITION], configuration=_CONFIGURATION)
        table = cls(address)
        table._add_columns(wanted)
        return table

    def _add_columns(self, wanted: pa.Schema) -> None:
        known = {field.name for field in self._delta.schema().fields}
        if missing := [field for field in wanted if field.name not in known]:
            self._delta.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
            self._delta.update_incremental()

    # --- what is in it ----------------------------------------------------------------------------------------

    @_panics_are_errors
    def files(self) -> list[LakeFile]:
        """Return the files that count."""
        told = pa.table(self._delta.get_add_actions(flatten=True))
        names = ("path", f"partition.{PARTITION}", "size_bytes", "num_records", "modification_time")
        return [LakeFile(*facts) for facts in zip(*(told.column(name).to_pylist() for name in names), strict=True)]

    def batch_of(self, checkpoint: str) -> int | None:
        """Return the newest batch of ``checkpoint`` that is in the table, or None."""
        return self._delta.transaction_version(checkpoint)

    def fence(self) -> int:
        """Return the number of the ingester that may commit, 0 before the first one."""
        return self._delta.transaction_version(FENCE) or 0

    # --- what ingestion does ------------------------------------------------------------------------------------

    def install_fence(self, fence: int) -> None:
        """Let ingester ``fence`` commit, and no other. Raises ReplacedError where another one came first."""
        try:
            self._commit([], Transaction(FENCE, fence))
        except CommitFailedError as error:
            raise ReplacedError("another ingester has taken over this lake at this moment") from error

    def publish(self, staged: Iterable[Path], *, checkpoint: str, batch: int, fence: int) -> None:
        """Add the staged files as ``batch`` of ``checkpoint``, whole or not at all. Raises ReplacedError.

        A batch that is there already was published by an attempt that ended before Spark noted it: it is the same.
        """
        self._check_fence(fence)
        if self._holds(checkpoint, batch):
            return
        added = [self._place(file) for file in staged]
        if not added:
            return
        try:
            self._commit(added, Transaction(checkpoint, batch), Transaction(FENCE, fence))
        except CommitFailedError:
            self._delta.update_incremental()
            self._check_fence(fence)
            if not self._holds(checkpoint, batch):
                raise

    def _holds(self, checkpoint: str, batch: int) -> bool:
        newest = self.batch_of(checkpoint)
        return newest is not None and newest >= batch

    def _check_fence(self, fence: int) -> None:
        if self.fence() != fence:
            raise ReplacedError("another ingester has taken over this lake")

    def adopt(self, files: Iterable[Path], *, checkpoint: str, batch: int) -> None:
        """Count ``files``, which lie in the table's folder already, as all batches up to ``batch``."""
        self._commit([_add(Path(self.address), file) for file in files], Transaction(checkpoint, batch))

    def _place(self, file: Path) -> AddAction:
        """Bring a file from its day's folder to where the table has its own; it counts for nobody yet."""
        day = file.parent.name
        name = f"{day}/{uuid.uuid4().hex}.parquet"
        rows, size = pq.read_metadata(file).num_rows, file.stat().st_size
        if is_address(self.address):
            copy_files(str(file), name, LocalFileSystem(), filesystem(self.address))
        else:
            target = Path(self.address, name)
            target.parent.mkdir(exist_ok=True)
            os.utime(file)  # from now on a clean-up may find it, and spares what is young
            flush(file)
            file.rename(target)
            flush(target.parent)
        return _action(name, size, rows, day)

    @_panics_are_errors
    def _commit(self, actions: Sequence[AddAction | RemoveAction], *transactions: Transaction) -> None:
        before = self._delta.version()
        properties = CommitProperties(app_transactions=list(transactions), max_commit_retries=_TRIES)
        self._delta.create_write_transaction(
            list(actions), "append", self._delta.schema(), partition_by=[PARTITION], commit_properties=properties
        )
        self._delta.update_incremental()
        if not is_address(self.address):
            self._flush_log(before)

    def _flush_log(self, since: int) -> None:
        """Put our commit on the disk, and what others have committed beside it."""
        log = Path(self.address, "_delta_log")
        for version in range(since + 1, self._delta.version() + 1):
            flush(log / f"{version:020}.json")
        flush(log)

    # --- what maintenance does ------------------------------------------------------------------------------------

    def join(self, files: Sequence[LakeFile]) -> None:
        """Put one file of the same rows into the place of ``files`` of one day.

        Raises CommitFailedError where somebody else has rewritten files since they were chosen, and JoinError.
        """
        # A commit fails by itself of what others have committed since the handle's last look. But each commit of ours
        # ends with such a look, which takes in what came in between.
        if not {file.path for file in files} <= {file.path for file in self.files()}:
            raise CommitFailedError("somebody else has rewritten these files")
        day = f"{PARTITION}={files[0].date}"
        name = f"{day}/{uuid.uuid4().hex}.parquet"
        size, rows = self._rewrite([file.path for file in files], name)
        if rows != sum(file.rows for file in files):
            raise JoinError(f"{len(files)} files of {self.address} have other rows than their table says: left alone")
        gone = [RemoveAction(file.path, False, _now_ms(), file.bytes, _values(day)) for file in files]
        self._commit([*gone, _action(name, size, rows, day, data_change=False)], self._as_upkeep())

    def _rewrite(self, files: Sequence[str], name: str) -> tuple[int, int]:
        """Write the rows of ``files``, one file after the other, into ``name``. Returns its bytes and rows."""
        store = filesystem(self.address)
        whole = pa.schema(self._delta.schema().to_arrow())
        schema = whole.remove(whole.get_field_index(PARTITION))
        rows, waiting = 0, 0
        held: list[pa.RecordBatch] = []
        with parquet_writer(name, schema, store) as writer:
            for batch in dataset.dataset(list(files), schema, "parquet", store).to_batches():
                held.append(batch)
                rows, waiting = rows + batch.num_rows, waiting + batch.num_rows
                if waiting >= ROWS_TOGETHER:
                    writer.write_table(pa.Table.from_batches(held, schema))
                    held, waiting = [], 0
            writer.write_table(pa.Table.from_batches(held, schema))
        if not is_address(self.address):
            flush(Path(self.address, name))
        return store.get_file_info(name).size, rows

    def drop_before(self, oldest: date) -> list[LakeFile]:
        """Drop the days before ``oldest``; return the files that counted. Raises CommitFailedError as `join` does."""
        dropped = [file for file in self.files() if file.date < oldest]
        if dropped:
            gone = [
                RemoveAction(file.path, True, _now_ms(), file.bytes, _values(f"{PARTITION}={file.date}"))
                for file in dropped
            ]
            self._commit(gone, self._as_upkeep())
        return dropped

    def _as_upkeep(self) -> Transaction:
        return Transaction(UPKEEP, 1 + (self._delta.transaction_version(UPKEEP) or 0))

    @_panics_are_errors
    def clean(self, *, thoroughly: bool = False) -> int:
        """Remove files and log entries that nobody needs any more; return how many files.

        ``thoroughly`` looks for files, too, that were never counted: a kill has left them.
        """
        self._delta.update_incremental()
        removed = self._delta.vacuum(dry_run=False, full=thoroughly)
        self._delta.create_checkpoint()
        self._delta.cleanup_metadata()
        return len(removed)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a table's schema as Delta takes it."""
    return to_arrow_schema(schema, timezone="UTC")


def is_address(where: str) -> bool:
    """Tell whether ``where`` is an address rather than a folder."""
    return "://" in where


def filesystem(address: str) -> FileSystem:
    """Return what reads and writes files below ``address``, by the variables that deltalake reads, too."""
    if not is_address(address):
        return SubTreeFileSystem(address, LocalFileSystem())
    bucket = urlsplit(address)
    endpoint = urlsplit(next((os.environ[name] for name in ENDPOINTS if name in os.environ), ""))
    store = S3FileSystem(
        endpoint_override=endpoint.netloc or None,
        scheme=endpoint.scheme or None,
        region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
    )
    return SubTreeFileSystem(bucket.netloc + bucket.path, store)


def _add(table: Path, file: Path) -> AddAction:
    metadata = pq.read_metadata(file)
    return _action(str(file.relative_to(table)), file.stat().st_size, metadata.num_rows, file.parent.name)


def _action(path: str, size: int, rows: int, day: str, *, data_change: bool = True) -> AddAction:
    return AddAction(path, size, _values(day), _now_ms(), data_change, json.dumps({"numRecords": rows}))


def _values(day: str) -> dict[str, str | None]:
    return {PARTITION: day.removeprefix(f"{PARTITION}=")}


def _now_ms() -> int:
    return int(time() * 1000)
