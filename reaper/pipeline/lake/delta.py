"""One Delta table of a lake, partitioned by day. Spark's tasks write its files, and deltalake commits them.

It runs in the process of the query, which needs deltalake, pyarrow and pyspark.

A commit names the batch and the ingester, both as *application transactions*. Two commits that name the same one
conflict if neither has seen the other. So a batch is added once, however often it is tried, and an ingester that was
replaced cannot commit.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import wraps
from pathlib import Path
from time import time
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from reaper.pipeline.lake.files import PARTITION, partition_values
from reaper.pipeline.lake.store import filesystem, flush, is_address

FENCE = "ingester"
"""Application transaction whose version is the number of the ingester that may commit."""
FILES_KEPT_HOURS = 1
"""How long a file stays after it left the table, for readers that have begun."""
_CONFIGURATION = {
    "delta.deletedFileRetentionDuration": f"interval {FILES_KEPT_HOURS} hours",
    "delta.logRetentionDuration": f"interval {FILES_KEPT_HOURS} hours",
}
_TRIES = 5
"""Attempts at a commit while compaction commits, too."""
P = ParamSpec("P")
R = TypeVar("R")


class ReplacedError(Exception):
    """Another ingester has taken over the lake."""


class MissingFileError(OSError):
    """A file that a task has written is not in the lake."""


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
    """A file of a table."""

    path: str
    """Relative to the table."""
    date: date
    bytes: int
    rows: int


class LakeTable:
    """A handle on the table at ``address``, as it was when the handle was made."""

    @_panics_are_errors
    def __init__(self, address: str) -> None:
        self.address = address
        self._delta = DeltaTable(address)

    @staticmethod
    @_panics_are_errors
    def is_at(address: str) -> bool:
        """Tell whether there is a table at ``address``."""
        return DeltaTable.is_deltatable(address)

    @classmethod
    @_panics_are_errors
    def create(cls, address: str, schema: StructType) -> "LakeTable":
        """Make an empty table, or add missing columns to an existing one."""
        wanted = arrow_schema(schema)
        if not cls.is_at(address):
            DeltaTable.create(address, wanted, mode="ignore", partition_by=[PARTITION], configuration=_CONFIGURATION)
        table = cls(address)
        known = {field.name for field in table._delta.schema().fields}
        if missing := [field for field in wanted if field.name not in known]:
            table._delta.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
            table._delta.update_incremental()
        return table

    @_panics_are_errors
    def files(self) -> list[LakeFile]:
        """Return the files of the table."""
        told = pa.table(self._delta.get_add_actions(flatten=True))
        names = ("path", f"partition.{PARTITION}", "size_bytes", "num_records")
        return [LakeFile(*facts) for facts in zip(*(told.column(name).to_pylist() for name in names), strict=True)]

    def batch_of(self, checkpoint: str) -> int | None:
        """Return the newest batch of ``checkpoint`` that is in the table, or None."""
        return self._delta.transaction_version(checkpoint)

    def fence(self) -> int:
        """Return the number of the ingester that may commit, 0 before the first one."""
        return self._delta.transaction_version(FENCE) or 0

    # --- ingestion ------------------------------------------------------------------------------------------------

    def install_fence(self, fence: int) -> None:
        """Let ingester ``fence`` commit, and no other. Raises ReplacedError if another one came first."""
        try:
            self._commit([], Transaction(FENCE, fence))
        except CommitFailedError as error:
            raise ReplacedError("another ingester has taken over this lake at this moment") from error

    def publish(self, written: Iterable[Mapping[str, Any]], *, checkpoint: str, batch: int, fence: int) -> None:
        """Add files (rows of `reaper.pipeline.lake.files.WRITTEN`) as ``batch`` of ``checkpoint``, all or none of them.

        Returns at once if the table has the batch, because an earlier attempt ended before Spark noted it.
        Raises ReplacedError, MissingFileError, DeltaError.
        """
        if self._is_done(checkpoint, batch, fence):
            return
        files = list(written)
        self._check_presence(files)
        added = [_action(file["path"], file["bytes"], file["rows"]) for file in files]
        try:
            self._commit(added, Transaction(checkpoint, batch), Transaction(FENCE, fence))
        except CommitFailedError:
            self._delta.update_incremental()
            if not self._is_done(checkpoint, batch, fence):
                raise

    def _is_done(self, checkpoint: str, batch: int, fence: int) -> bool:
        if self.fence() != fence:
            raise ReplacedError("another ingester has taken over this lake")
        newest = self.batch_of(checkpoint)
        return newest is not None and newest >= batch

    def _check_presence(self, files: Sequence[Mapping[str, Any]]) -> None:
        """Check that the files of the tasks exist here, because the machines may not share the folder of the lake."""
        found = filesystem(self.address).get_file_info([file["path"] for file in files])
        for file, info in zip(files, found, strict=True):
            if info.size != file["bytes"]:
                raise MissingFileError(
                    f"{self.address}/{file['path']} was written by a task, but does not exist here. Give every machine "
                    "of Spark the lake under the same path"
                )

    @_panics_are_errors
    def _commit(self, actions: Sequence[AddAction], *transactions: Transaction) -> None:
        before = self._delta.version()
        properties = CommitProperties(app_transactions=list(transactions), max_commit_retries=_TRIES)
        self._delta.create_write_transaction(
            list(actions), "append", self._delta.schema(), partition_by=[PARTITION], commit_properties=properties
        )
        self._delta.update_incremental()
        self._flush_log(before)

    def _flush_log(self, since: int) -> None:
        """Put the commits after version ``since`` on the disk."""
        if is_address(self.address):
            return
        log = Path(self.address, "_delta_log")
        for version in range(since + 1, self._delta.version() + 1):
            flush(log / f"{version:020}.json")
        flush(log)

    # --- maintenance ----------------------------------------------------------------------------------------------

    @_panics_are_errors
    def compact(self, target_bytes: int) -> None:
        """Join the small files of each day up to about ``target_bytes``. Raises DeltaError.

        Hold the lock of the lake's state, because two compactions at once double every row.
        """
        before, version = {file.path for file in self.files()}, self._delta.version()
        self._delta.optimize.compact(
            target_size=target_bytes, writer_properties=WriterProperties(compression="ZSTD"), max_concurrent_tasks=1
        )
        self._delta.update_incremental()
        if not is_address(self.address):
            for file in self.files():
                if file.path not in before:
                    flush(Path(self.address, file.path))
            self._flush_log(version)

    @_panics_are_errors
    def drop_before(self, oldest: date) -> None:
        """Drop the days before ``oldest``. Raises DeltaError. Hold the lock of the lake's state."""
        version = self._delta.version()
        if any(file.date < oldest for file in self.files()):
            self._delta.delete(f"{PARTITION} < DATE '{oldest}'")
            self._delta.update_incremental()
            self._flush_log(version)

    @_panics_are_errors
    def clean(self, *, thoroughly: bool = False) -> None:
        """Remove files and log entries that no reader needs any more.

        ``thoroughly`` also removes files without a commit, which a killed task left. Use it only between batches,
        because the files of a batch have no commit at first.
        """
        self._delta.update_incremental()
        self._delta.vacuum(dry_run=False, full=thoroughly)
        self._delta.create_checkpoint()
        self._delta.cleanup_metadata()


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a table's schema as Delta takes it."""
    return to_arrow_schema(schema, timezone="UTC")


def _action(path: str, size: int, rows: int) -> AddAction:
    return AddAction(path, size, partition_values(path), int(time() * 1000), True, json.dumps({"numRecords": rows}))
