"""Opens a lake and reads its tables."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reaper.pipeline.lake.delta import LakeTable, ReplacedError
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.reading import read_store
from reaper.pipeline.lake.schema import TABLES
from reaper.pipeline.lake.store import is_address, spark_path
from workers.protocol.errors import ConfigurationError


class NoLakeError(ConfigurationError):
    """The lake does not exist."""


class LakeBusyError(ConfigurationError):
    """Another process writes to the lake."""


def lake_at(path: str | Path, state: str | Path = "") -> Layout:
    """Return the layout of the lake at ``path``, whether it exists or not.

    A folder (or ``file:///path``) keeps its state in itself. In an object store (``s3://bucket/lake``) the state is a
    folder of its own. Raises ConfigurationError for other addresses.
    """
    text = str(path)
    if not re.match(r"^\w+:/", text):
        return _of_folder(Path(text), state)
    parts = urlsplit(text)
    if parts.scheme in ("s3", "s3a") and parts.netloc:
        address = f"s3://{parts.netloc}{parts.path.rstrip('/')}"
        return Layout(address, _resolved(Path(state), "state") if state else Path())
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigurationError(
            f"lake {text!r} is neither a folder nor in an object store. Write a folder that every process of Spark "
            "sees, or s3://bucket/lake."
        )
    return _of_folder(Path(unquote(parts.path)), state)


def _of_folder(folder: Path, state: str | Path) -> Layout:
    layout = Layout.of(_resolved(folder, "lake"))
    if any(sign in layout.root for sign in "%\\"):
        raise ConfigurationError(f"lake {layout.root!r}: deltalake supports no path with % or \\. Choose another one.")
    if state and _resolved(Path(state), "state") != layout.state:
        raise ConfigurationError(
            f"lake_state is for lakes in an object store, but {layout.root} is a folder, with its state in "
            f"{layout.state}. Remove it."
        )
    return layout


def _resolved(folder: Path, setting: str) -> Path:
    """Return the folder's path. Raises ConfigurationError for circular links and unknown users (``~name``)."""
    try:
        return folder.expanduser().resolve()
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"cannot use {setting} {str(folder)!r}: {why}.") from error


def with_state(layout: Layout) -> Layout:
    """Return ``layout`` if the folder of its state is given. Raises ConfigurationError."""
    if layout.state == Path():
        raise ConfigurationError(
            f"the lake {layout.root} is in an object store, and has no folder for its state. Set --lake-state to "
            "a folder that belongs to this lake. It holds Spark's checkpoint."
        )
    return layout


def existing_lake(path: str | Path, state: str | Path = "") -> Layout:
    """Return the layout of the lake at ``path``. Raises NoLakeError if it does not exist."""
    layout = lake_at(path, state)
    if not all(LakeTable.is_at(layout.table(name)) for name in TABLES):
        raise NoLakeError(f"there is no lake at {layout.root}. `reaper pipeline ingest` creates one.")
    return layout


def create_tables(layout: Layout) -> None:
    """Make an empty lake, or add the columns that are new to one that exists."""
    layout.create()
    for name, schema in TABLES.items():
        LakeTable.create(layout.table(name), schema)


@contextmanager
def only_writer(layout: Layout) -> Iterator[None]:
    """Hold the lock of the one ingester during the block. Raises LakeBusyError."""
    with ExitStack() as held:
        try:
            held.enter_context(layout.lock())
        except BlockingIOError as error:
            raise LakeBusyError(
                f"the lake {layout.root} is in use: another process ingests into it. A lake has one ingester."
            ) from error
        yield


def install_fence(layout: Layout) -> int:
    """Take over the lake from earlier ingesters. Return our number. Raises LakeBusyError."""
    tables = [LakeTable(layout.table(name)) for name in TABLES]
    fence = 1 + max(table.fence() for table in tables)
    try:
        for table in tables:
            table.install_fence(fence)
    except ReplacedError as error:
        raise LakeBusyError(f"{error} ({layout.root}). A lake has one ingester.") from error
    return fence


def read_events(spark: SparkSession, path: str | Path) -> DataFrame:
    """Return the lifecycle events of the lake at ``path``. Raises NoLakeError."""
    return _read(spark, path, "events")


def read_dead_letters(spark: SparkSession, path: str | Path) -> DataFrame:
    """Return the dead letters of the lake at ``path``. Raises NoLakeError."""
    return _read(spark, path, "dead_letters")


def read_malformed(spark: SparkSession, path: str | Path) -> DataFrame:
    """Return the malformed entries of the lake at ``path``. Raises NoLakeError."""
    return _read(spark, path, "malformed")


def _read(spark: SparkSession, path: str | Path, name: str) -> DataFrame:
    """Read the files of a table by name, because Spark's own reader of Delta would need another jar."""
    table, schema = LakeTable(existing_lake(path).table(name)), TABLES[name]
    files = table.files()
    if not files:
        return spark.range(0).select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in schema))
    if is_address(table.address):
        return read_store(spark, table.address, files, schema)
    reader = spark.read.schema(schema).option("basePath", spark_path(table.address))
    return reader.parquet(*(spark_path(f"{table.address}/{file.path}") for file in files)).select(schema.names)
