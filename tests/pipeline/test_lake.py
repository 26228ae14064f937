"""A lake holds each entry once, whole batches only, and is read by others as it lies."""

import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable, Transaction
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from reaper.pipeline.lake import delta
from reaper.pipeline.lake.batches import BatchWriter
from reaper.pipeline.lake.delta import LakeTable, MissingFileError, ReplacedError
from reaper.pipeline.lake.files import FileWriter
from reaper.pipeline.lake.layout import TABLES, Layout, Totals
from reaper.pipeline.lake.parse import Entry, parse
from reaper.pipeline.lake.schema import DEAD_LETTERS, EVENTS, MALFORMED
from reaper.pipeline.lake.store import flush
from reaper.pipeline.lake.tables import (
    LakeBusyError,
    NoLakeError,
    create_tables,
    existing_lake,
    install_fence,
    lake_at,
    only_writer,
    read_dead_letters,
    read_events,
    read_malformed,
    with_state,
)
from tests.pipeline.journals import ask_duckdb
from tests.pipeline.lakes import DAY, add, jobs_in, open_table, plan, written
from workers.protocol.errors import ConfigurationError

DAY_MS = 86_400_000
START_MS = 1_700_000_000_000
FENCE = 1


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An empty lake."""
    return empty_lake(tmp_path / "lake")


def empty_lake(folder: Path) -> Layout:
    made = lake_at(folder)
    create_tables(made)
    assert install_fence(made) == FENCE
    for number in range(2):
        plan(made, number)
    return made


def batch(layout: Layout, first: int, number: int, *, letters: int = 0, broken: int = 0) -> list[dict[str, Any]]:
    """Write entries as two tasks do, each an hour after the one before it; return their reports."""
    found: list[Entry] = []
    for at, job in enumerate(range(first, first + number + letters + broken)):
        fields = {b"what": b"ever"}
        if at < number:
            fields = {b"event": b"acked", b"job": b"job-%d" % job, b"run_ms": b"7"}
        elif at < number + letters:
            fields = {b"reaper.dead.stream": b"s", b"reaper.dead.group": b"g", b"k": b"v"}
        found.append((b"%d-0" % (START_MS + job * DAY_MS // 24), fields))
    half = len(found) // 2
    tasks = [FileWriter(layout.root).write(parse("{s}:journal", part)) for part in (found[:half], found[half:])]
    return [row for task in tasks for row in task.to_pylist()]


def writer(layout: Layout, fence: int = FENCE) -> BatchWriter:
    return BatchWriter(layout, layout.name(), fence)


def test_spark_duckdb_and_polars_read_the_same_from_a_lake_as_it_lies(spark: SparkSession, layout: Layout) -> None:
    writer(layout).publish(batch(layout, 0, 60, letters=3, broken=2), 0)
    writer(layout).publish(batch(layout, 100, 40), 1)
    events = read_events(spark, layout.root)
    assert (events.count(), read_dead_letters(spark, layout.root).count()) == (100, 3)
    assert read_malformed(spark, layout.root).count() == 2
    assert [events.schema.simpleString(), read_dead_letters(spark, layout.root).schema.simpleString()] == [
        EVENTS.simpleString(),
        DEAD_LETTERS.simpleString(),
    ]

    jobs_by_day = {str(day): count for day, count in events.groupBy("date").count().collect()}
    table = layout.table("events")
    found = ask_duckdb("SELECT date, count(DISTINCT job) FROM TABLE GROUP BY date", table)
    assert {str(day): count for day, count in found} == jobs_by_day
    lazy = pl.scan_delta(table)
    counted = lazy.group_by("date").agg(pl.col("job").n_unique()).collect()
    assert {str(day): count for day, count in counted.rows()} == jobs_by_day

    (kind, run_ms) = ask_duckdb('SELECT typeof("at"), sum(run_ms) FROM TABLE GROUP BY 1', table)[0]
    assert (kind, run_ms) == ("TIMESTAMP WITH TIME ZONE", 700)
    assert lazy.collect_schema()["at"] == pl.Datetime("us", "UTC")


def test_a_batch_written_twice_is_in_the_lake_once(spark: SparkSession, tmp_path: Path) -> None:
    layout = empty_lake(tmp_path / "a lake #1")  # a name that needs care
    for _ in range(2):
        writer(layout).publish(batch(layout, 0, 5, letters=1, broken=1), 0)
    counted = [reading(spark, layout.root).count() for reading in (read_events, read_dead_letters, read_malformed)]
    assert counted == [5, 1, 1]
    assert layout.totals() == Totals(0, 5, 1, 1)
    orphans = {str(path) for path in Path(layout.root).rglob("*.parquet")} - {
        f"{layout.table(table)}/{file.path}" for table in TABLES for file in open_table(layout, table).files()
    }
    assert len(orphans) == len(list(Path(layout.root).rglob("*.parquet"))) / 2
    for orphan in orphans:
        os.utime(orphan, (0, 0))
    for table in TABLES:
        open_table(layout, table).clean(thoroughly=True)
    assert not any(Path(orphan).exists() for orphan in orphans)


def test_a_replay_adds_what_an_attempt_that_was_killed_half_way_had_not_published(
    spark: SparkSession, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = LakeTable.publish

    def die(table: LakeTable, written: Any, **named: Any) -> None:
        if not table.address.endswith("events"):
            raise KeyboardInterrupt
        publish(table, written, **named)

    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "publish", die)
        with pytest.raises(KeyboardInterrupt):
            writer(layout).publish(batch(layout, 0, 5, letters=1), 0)
    assert (read_events(spark, layout.root).count(), read_dead_letters(spark, layout.root).count()) == (5, 0)
    writer(layout).publish(batch(layout, 0, 5, letters=1), 0)
    assert (read_events(spark, layout.root).count(), read_dead_letters(spark, layout.root).count()) == (5, 1)


def test_an_ingester_that_was_replaced_publishes_nothing(spark: SparkSession, layout: Layout) -> None:
    assert install_fence(layout) == FENCE + 1
    with pytest.raises(ReplacedError):
        writer(layout).publish(batch(layout, 0, 5), 0)
    assert read_events(spark, layout.root).count() == 0
    assert read_malformed(spark, layout.root).schema.simpleString() == MALFORMED.simpleString()


def test_an_ingester_whose_lake_was_removed_and_made_anew_publishes_nothing(
    spark: SparkSession, layout: Layout
) -> None:
    late, written = writer(layout), batch(layout, 0, 5)
    (layout.state / "name").unlink()
    layout.create()
    with pytest.raises(ReplacedError, match="replaced"):
        late.publish(written, 0)
    assert read_events(spark, layout.root).count() == 0


def test_an_ingester_that_is_replaced_at_this_moment_publishes_nothing(layout: Layout) -> None:
    table, files = open_table(layout), written(layout, "events", {DAY: ["job"]})
    install_fence(layout)  # after the handle was made by which the fence is looked at
    with pytest.raises(ReplacedError):
        table.publish(files, checkpoint=layout.name(), batch=0, fence=FENCE)
    assert jobs_in(layout) == {}


def test_of_two_who_take_over_at_once_one_gives_way(layout: Layout) -> None:
    late = open_table(layout)
    install_fence(layout)
    with pytest.raises(ReplacedError):
        late.install_fence(FENCE + 1)


def test_an_attempt_that_goes_on_beside_its_successor_adds_nothing(layout: Layout) -> None:
    late = open_table(layout)
    add(layout, 0, {DAY: ["job"]}, fence=FENCE)
    late.publish(written(layout, "events", {DAY: ["job"]}), checkpoint=layout.name(), batch=0, fence=FENCE)
    assert jobs_in(layout) == {"job": 1}


def test_a_commit_is_on_the_disk_before_it_is_taken_for_safe(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []

    def note(path: Path) -> None:
        flush(path)
        flushed.append(path.name)

    table = open_table(layout)
    add(layout, 0, {DAY: ["beside"]}, fence=FENCE)
    monkeypatch.setattr(delta, "flush", note)
    table._commit([], Transaction("another", 0))
    logs = sorted(path.name for path in Path(layout.table("events"), "_delta_log").glob("*.json"))
    assert {*logs[-2:], "_delta_log"} == set(flushed)


def test_batches_are_numbered_by_checkpoint(layout: Layout) -> None:
    add(layout, 3, {DAY: ["job"]}, fence=FENCE)
    assert (open_table(layout).batch_of(layout.name()), open_table(layout).batch_of("another")) == (3, None)


def test_a_column_that_is_new_is_added_and_null_in_what_was_there(layout: Layout) -> None:
    before = StructType([field for field in EVENTS.fields if field.name != "extra"])
    address = str(Path(layout.root) / "narrow")
    LakeTable.create(address, before)
    LakeTable.create(address, EVENTS)
    LakeTable.create(address, EVENTS)
    assert [field.name for field in DeltaTable(address).schema().fields] == [*before.names, "extra"]


def test_a_file_that_the_ingester_does_not_see_is_not_published(layout: Layout) -> None:
    """A task on a machine that does not share the lake's folder writes into one of its own."""
    files = written(layout, "events", {DAY: ["job"]})
    (Path(layout.table("events")) / files[0]["path"]).unlink()
    with pytest.raises(MissingFileError, match="the lake under the same path"):
        open_table(layout).publish(files, checkpoint=layout.name(), batch=0, fence=FENCE)
    assert jobs_in(layout) == {}


def test_totals_add_up_and_count_a_batch_once(layout: Layout) -> None:
    for number in (0, 1, 1, 2):
        layout.add_to_totals(number, events=2, dead_letters=1, malformed=0)
    assert layout.totals() == Totals(2, 6, 3, 0)


def test_a_lake_has_one_writer_at_a_time(tmp_path: Path) -> None:
    layout = lake_at(tmp_path)
    with only_writer(layout), pytest.raises(LakeBusyError, match="is in use"), only_writer(layout):
        pass
    with only_writer(layout):
        pass


def test_where_a_lake_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert lake_at("lake") == lake_at(f"file://{tmp_path}/lake") == Layout.of(tmp_path / "lake")
    assert lake_at(f"file://{tmp_path}/a%20lake").root == str(tmp_path / "a lake")
    assert lake_at("s3a://bucket/lake/", "state") == Layout("s3://bucket/lake", tmp_path / "state")
    assert with_state(lake_at("s3://bucket/lake", "state")).state == tmp_path / "state"
    with pytest.raises(ConfigurationError, match="Set --lake-state to a folder"):
        with_state(lake_at("s3://bucket/lake"))
    with pytest.raises(ConfigurationError, match="lake_state is for lakes in an object store"):
        lake_at("lake", "state")
    (tmp_path / "loop").symlink_to("loop")
    for nowhere in (str(tmp_path / "loop"), f"file://{tmp_path}/loop/lake", "~no-such-user-here/lake"):
        with pytest.raises(ConfigurationError, match=r"^cannot use lake .*: "):
            lake_at(nowhere)
    for elsewhere in ("hdfs://host/lake", "file://host/lake", "s3://"):
        with pytest.raises(ConfigurationError, match="is neither a folder"):
            lake_at(elsewhere)
    with pytest.raises(ConfigurationError, match="with % or"):
        lake_at(tmp_path / "100%")
    with pytest.raises(NoLakeError, match="there is no lake at"):
        existing_lake(tmp_path / "lake")
