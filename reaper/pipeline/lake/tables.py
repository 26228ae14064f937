"""Opens a lake and reads its tables."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reaper.pipeline.lake.delta import ENDPOINTS, LakeTable, is_address
from reaper.pipeline.lake.layout import Layout, spark_path
from reaper.pipeline.lake.reading import read_store
from reaper.pipeline.lake.schema import TABLES
from reaper.pipeline.spark.shipping import ship_by_value
from workers.protocol.errors import ConfigurationError

OBJECT_STORES = ("s3", "s3a")
_MISREAD = "%\\"
MIGRATED = "migrated-"
"""Begin of the names of folders, in staging, that will be a table."""


class NoLakeError(ConfigurationError):
    """There is no lake where one should be."""


class LakeBusyError(ConfigurationError):
    """Somebody else does with this lake what only one may do."""


def lake_at(path: str | Path, state: str | Path = "") -> Layout:
    """Return the layout of the lake at ``path``, whether it is there or not.

    A folder (or ``file:///path``) keeps its state in itself. In an object store (``s3://bucket/lake``) the state is a
    folder of its own. Raises ConfigurationError for other addresses, and where it is not said where the state is.
    """
    text = str(path)
    if not re.match(r"^\w+:/", text):
        return _of_folder(Path(text), state)
    parts = urlsplit(text)
    if parts.scheme in OBJECT_STORES and parts.netloc:
        _check_endpoint()
        return Layout(f"s3://{parts.netloc}{parts.path.rstrip('/')}", _folder(state) if state else Path())
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigurationError(
            f"lake {text!r} is neither a folder that every process of Spark sees nor in an object store "
            "(s3://bucket/lake)."
        )
    return _of_folder(Path(unquote(parts.path)), state)


def _check_endpoint() -> None:
    """Refuse an address that deltalake would panic of. Raises ConfigurationError."""
    name = next((name for name in ENDPOINTS if name in os.environ), "")
    value = os.environ.get(name, "")
    if name and not re.fullmatch(r"(?i)https?://([\w.-]+|\[[0-9a-f:.]+\])(:\d{1,5})?(/[!-~]*)?", value):
        raise ConfigurationError(
            f"{name} is no address of an object store: it begins with http:// or https://, such as "
            "http://127.0.0.1:9000. For that of Amazon do not set it at all."
        )


def _of_folder(folder: Path, state: str | Path) -> Layout:
    layout = Layout.of(_resolved(folder, "lake"))
    if any(sign in layout.root for sign in _MISREAD):
        raise ConfigurationError(f"lake {layout.root!r}: deltalake finds no folder whose path has a % or a \\ in it.")
    if state and _folder(state) != layout.state:
        raise ConfigurationError(
            f"state is only for a lake in an object store: {layout.root} is a folder, and keeps its own in "
            f"{layout.state}."
        )
    return layout


def _folder(state: str | Path) -> Path:
    return _resolved(Path(state), "state")


def _resolved(folder: Path, setting: str) -> Path:
    """Return where it is. Raises ConfigurationError: links may lead in a circle, and ``~who`` may be nobody."""
    try:
        return folder.expanduser().resolve()
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{setting} {str(folder)!r} is no folder: {why}.") from error


def with_state(layout: Layout) -> Layout:
    """Return ``layout`` where it is known where its state is. Raises ConfigurationError."""
    if layout.state == Path():
        raise ConfigurationError(
            f"the lake {layout.root} is in an object store: give a folder for Spark's checkpoint and for what is being "
            "written as state (--state FOLDER). It belongs to the lake; every process of Spark has to see it."
        )
    return layout


def existing_lake(path: str | Path, state: str | Path = "") -> Layout:
    """Return the layout of the lake at ``path``. Raises NoLakeError where there is none."""
    layout = lake_at(path, state)
    check_generation(layout)
    if not all(LakeTable.is_at(layout.table(name)) for name in TABLES):
        raise NoLakeError(f"there is no lake at {layout.root}: `reaper pipeline ingest` makes one.")
    return layout


def check_generation(layout: Layout) -> None:
    """Refuse a lake whose tables are plain folders of an earlier version, all or some. Raises ConfigurationError."""
    if is_address(layout.root):
        return
    half_done = any(layout.staging.glob(f"{MIGRATED}*"))
    if half_done or any(Path(layout.table(name)).is_symlink() for name in TABLES):
        raise ConfigurationError(
            f"the lake {layout.root} was made by an earlier version, whose tables were plain folders: "
            f"`reaper pipeline migrate --lake {layout.root}` makes Delta tables of them, in place, and copies nothing."
        )


def create_tables(layout: Layout) -> None:
    """Make an empty lake, or add the columns that are new to one that is there. Raises ConfigurationError."""
    check_generation(layout)
    layout.create()
    for name, schema in TABLES.items():
        LakeTable.create(layout.table(name), schema)


@contextmanager
def only_ingester(layout: Layout) -> Iterator[None]:
    """Be the one ingester of the lake during the block. Raises LakeBusyError."""
    with ExitStack() as held:
        try:
            held.enter_context(layout.sole_ingester())
        except BlockingIOError as error:
            raise LakeBusyError(f"another ingester is at work on the lake {layout.root}: a lake has one.") from error
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


def _read(spark: SparkSession, path: str | Path, name: str) -> DataFrame:
    """Read the files that count now; Spark's own reader of Delta would need a jar that no package brings."""
    table, schema = LakeTable(existing_lake(path).table(name)), TABLES[name]
    files = table.files()
    if not files:
        return spark.range(0).select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in schema))
    if is_address(table.address):
        ship_by_value()
        return read_store(spark, table.address, files, schema)
    reader = spark.read.schema(schema).option("basePath", spark_path(table.address))
    return reader.parquet(*(spark_path(f"{table.address}/{file.path}") for file in files)).select(schema.names)
