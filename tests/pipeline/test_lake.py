"""A lake holds each entry once, whole batches only, and is read by others as it lies."""

from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import DataFrame, SparkSession

from reaper.pipeline.lake.batches import BatchWriter, ReplacedError
from reaper.pipeline.lake.events import RAW
from reaper.pipeline.lake.layout import COUNTS_KEPT, Layout
from reaper.pipeline.lake.schema import DEAD_LETTERS, EVENTS, MALFORMED
from reaper.pipeline.lake.tables import (
    LakeBusyError,
    NoLakeError,
    existing_lake,
    lake_at,
    only_ingester,
    read_dead_letters,
    read_events,
    read_malformed,
)
from tests.pipeline.journals import ask_duckdb
from workers.protocol.errors import ConfigurationError

DAY_MS = 86_400_000
START_MS = 1_700_000_000_000
FENCE = "ours"

Raw = tuple[str, str, str | None, str | None, str | None, dict[str, str] | None]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An empty lake in a folder whose name needs care."""
    made = Layout(tmp_path / "a lake")
    made.create()
    made.install_fence(FENCE)
    return made


def batch(spark: SparkSession, first: int, number: int, *, letters: int = 0, broken: int = 0) -> DataFrame:
    """Return entries, each an hour after the one before it."""
    total = range(first, first + number + letters + broken)
    rows: list[Raw] = []
    for at, job in enumerate(total):
        entry_id = f"{START_MS + job * DAY_MS // 24}-0"
        if at < number:
            rows.append(("{s}:journal", entry_id, "acked", f"job-{job}", '{"v":1,"run_ms":7}', None))
        elif at < number + letters:
            rows.append(("{s}:dead:g", entry_id, None, None, None, {"reaper.dead.stream": "s", "k": "v"}))
        else:
            rows.append(("{s}:journal", entry_id, None, None, None, {"what": "ever"}))
    return spark.createDataFrame(rows, RAW)


def writer(layout: Layout, fence: str = FENCE) -> BatchWriter:
    return BatchWriter(str(layout.root), fence, 2)


def test_spark_duckdb_and_polars_read_the_same_from_a_lake_as_it_lies(spark: SparkSession, layout: Layout) -> None:
    writer(layout)(batch(spark, 0, 60, letters=3, broken=2), 0)
    writer(layout)(batch(spark, 100, 40), 1)
    events = read_events(spark, layout.root)
    assert (events.count(), read_dead_letters(spark, layout.root).count()) == (100, 3)
    assert read_malformed(spark, layout.root).count() == 2
    assert [events.schema.simpleString(), read_dead_letters(spark, layout.root).schema.simpleString()] == [
        EVENTS.simpleString(),
        DEAD_LETTERS.simpleString(),
    ]

    jobs_by_day = {str(day): count for day, count in events.groupBy("date").count().collect()}
    table = layout.root / "events"
    found = ask_duckdb("SELECT date, count(DISTINCT job) FROM TABLE GROUP BY date", table)
    assert {str(day): count for day, count in found} == jobs_by_day
    lazy = pl.scan_parquet(table / "**" / "*.parquet", hive_partitioning=True)
    counted = lazy.group_by("date").agg(pl.col("job").n_unique()).collect()
    assert {str(day): count for day, count in counted.rows()} == jobs_by_day

    (kind, run_ms) = ask_duckdb('SELECT typeof("at"), sum(run_ms) FROM TABLE GROUP BY 1', table)[0]
    assert (kind, run_ms) == ("TIMESTAMP WITH TIME ZONE", 700)
    assert lazy.collect_schema()["at"] == pl.Datetime("us", "UTC")
    assert ask_duckdb("SELECT DISTINCT compression FROM parquet_metadata(TABLE)", table) == [("ZSTD",)]


def test_a_batch_written_twice_is_in_the_lake_once(spark: SparkSession, layout: Layout) -> None:
    entries = batch(spark, 0, 5, letters=1, broken=1)
    for _ in range(2):
        writer(layout)(entries, 0)
    counted = [reading(spark, layout.root).count() for reading in (read_events, read_dead_letters, read_malformed)]
    counts = layout.read_counts(0)
    assert counted == [5, 1, 1]
    assert counts
    assert (counts.total_events, counts.total_dead_letters, counts.total_malformed) == (5, 1, 1)
    assert list(layout.staging.iterdir()) == []


def test_a_replay_adds_what_an_attempt_that_was_killed_half_way_had_not_published(
    spark: SparkSession, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = batch(spark, 0, 5, letters=1)
    publish = Layout.publish

    def die(self: Layout, table: str, number: int, staged: Path) -> None:
        if table != "events":
            raise KeyboardInterrupt
        publish(self, table, number, staged)

    with monkeypatch.context() as patched:
        patched.setattr(Layout, "publish", die)
        with pytest.raises(KeyboardInterrupt):
            writer(layout)(entries, 0)
    assert (read_events(spark, layout.root).count(), read_dead_letters(spark, layout.root).count()) == (5, 0)
    writer(layout)(entries, 0)
    assert (read_events(spark, layout.root).count(), read_dead_letters(spark, layout.root).count()) == (5, 1)


def test_an_ingester_that_was_replaced_publishes_nothing(spark: SparkSession, layout: Layout) -> None:
    with pytest.raises(ReplacedError):
        writer(layout, fence="another")(batch(spark, 0, 5), 0)
    assert read_events(spark, layout.root).count() == 0
    assert read_malformed(spark, layout.root).schema.simpleString() == MALFORMED.simpleString()


def test_while_a_batch_is_written_nobody_sees_any_of_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create()
    staged = layout.staging / "attempt" / "events" / "date=2026-01-01"
    staged.mkdir(parents=True)
    (staged / "part-0.parquet").write_bytes(b"half a file")
    assert list(layout.table("events").glob("**/*.parquet")) == []
    layout.publish("events", 0, staged.parent)
    assert [path.name for path in layout.table("events").glob("batch=0/date=*/*.parquet")] == ["part-0.parquet"]


def test_counts_of_batches_add_up_and_do_not_grow_without_end(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create()
    for number in range(COUNTS_KEPT + 10):
        layout.note_counts(number, 2, 1, 0)
    last = layout.read_counts(COUNTS_KEPT + 9)
    assert last
    assert (last.total_events, last.total_dead_letters) == (2 * (COUNTS_KEPT + 10), COUNTS_KEPT + 10)
    assert len(list(layout.counts.iterdir())) == COUNTS_KEPT


def test_a_lake_has_one_ingester_at_a_time(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with (
        only_ingester(layout),
        pytest.raises(LakeBusyError, match="another ingester is at work"),
        only_ingester(layout),
    ):
        pass
    with only_ingester(layout):
        pass


def test_a_lake_is_a_folder_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert lake_at("lake").root == lake_at(f"file://{tmp_path}/lake").root == tmp_path / "lake"
    assert lake_at(f"file://{tmp_path}/a%20lake").root == tmp_path / "a lake"
    for elsewhere in ("s3a://bucket/lake", "hdfs://host/lake", "file://host/lake"):
        with pytest.raises(ConfigurationError, match="is no folder"):
            lake_at(elsewhere)
    with pytest.raises(NoLakeError, match="there is no lake at"):
        existing_lake(tmp_path / "lake")
