"""Opens a lake and reads its tables."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from reaper.pipeline.lake.layout import Layout, spark_path
from reaper.pipeline.lake.schema import TABLES
from workers.protocol.errors import ConfigurationError


class NoLakeError(ConfigurationError):
    """There is no lake where one should be."""


class LakeBusyError(ConfigurationError):
    """Somebody else does with this lake what only one may do."""


def lake_at(path: str | Path) -> Layout:
    """Return the layout of the lake in the folder ``path`` (or ``file:///path``), whether it is there or not.

    Raises ConfigurationError for other addresses: batches appear and tables are rewritten by renames, which object
    stores do not have.
    """
    text = str(path)
    if not re.match(r"^\w+:/", text):
        return Layout(Path(text).expanduser().resolve())
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigurationError(
            f"lake {text!r} is no folder: give the path of one that every process of Spark sees, on a shared file "
            "system where there are several machines."
        )
    return Layout(Path(unquote(parts.path)).resolve())


def existing_lake(path: str | Path) -> Layout:
    """Return the layout of the lake at ``path``. Raises NoLakeError where there is none."""
    layout = lake_at(path)
    if not layout.exists():
        raise NoLakeError(f"there is no lake at {layout.root}: `reaper pipeline ingest` makes one.")
    return layout


@contextmanager
def only_ingester(layout: Layout) -> Iterator[None]:
    """Be the one ingester of the lake during the block. Raises LakeBusyError."""
    with ExitStack() as held:
        try:
            held.enter_context(layout.sole_ingester())
        except BlockingIOError as error:
            raise LakeBusyError(f"another ingester is at work on the lake {layout.root}: a lake has one.") from error
        yield


@contextmanager
def only_maintainer(layout: Layout) -> Iterator[None]:
    """Be the one who rewrites tables of the lake during the block. Raises LakeBusyError."""
    with ExitStack() as held:
        try:
            held.enter_context(layout.sole_maintainer())
        except BlockingIOError as error:
            raise LakeBusyError(f"another compact or retain is at work on {layout.root}: wait for its end.") from error
        yield


def read_events(spark: SparkSession, path: str | Path) -> DataFrame:
    """Return the lifecycle events of the lake at ``path``. Raises NoLakeError."""
    return _read(spark, path, "events")


def read_dead_letters(spark: SparkSession, path: str | Path) -> DataFrame:
    """Return the dead letters of the lake at ``path``. Raises NoLakeError."""
    return _read(spark, path, "dead_letters")


def read_malformed(spark: SparkSession, path: str | Path) -> DataFrame:
    """Return the entries of the lake at ``path`` that nobody could read. Raises NoLakeError."""
    return _read(spark, path, "malformed")


def _read(spark: SparkSession, path: str | Path, table: str) -> DataFrame:
    layout = existing_lake(path)
    # The folder behind the link stays until the maintenance after the next: a long report reads one state of the table.
    folder = layout.current(table)
    schema = TABLES[table]
    return spark.read.schema(schema).parquet(spark_path(folder)).select(schema.names)
