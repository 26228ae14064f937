"""Compaction and retention change how a lake lies, never what it holds for its readers."""

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from reaper.pipeline.lake import delta, maintenance
from reaper.pipeline.lake.layout import TABLES, Layout
from reaper.pipeline.lake.maintenance import COMPACT_EVERY, EARLY_PART, Upkeep
from reaper.pipeline.lake.tables import create_tables, lake_at, only_writer, read_events
from tests.pipeline.lakes import DAY, add, jobs_in, open_table
from workers.runtime.options import USAGE_EXIT

LARGE = 10**9
BATCHES, DAYS = 4, 3
NOON = datetime(2023, 11, 16, 12, tzinfo=UTC)


def day(number: int) -> date:
    return DAY + timedelta(days=number)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A lake with four batches, each with rows of three days."""
    made = lake_at(tmp_path / "lake")
    create_tables(made)
    for batch in range(BATCHES):
        add(made, batch, {day(n): [f"job-{batch}-{n}"] for n in range(DAYS)})
        add(made, batch, {day(0): [f"dead-{batch}"]}, "dead_letters")
    return made


def tidy(layout: Layout, target_bytes: int = LARGE, keep: timedelta | None = None) -> None:
    """Do what an ingester does once a day."""
    upkeep = Upkeep(layout, target_bytes, keep)
    upkeep.look(BATCHES - 1, NOON - timedelta(days=1))
    upkeep.look(BATCHES - 1, NOON)


def lies_in(layout: Layout) -> list[int]:
    """Return how many files each day has."""
    files = [file.date for file in open_table(layout).files()]
    return [files.count(found) for found in sorted(set(files))]


def test_compaction_joins_each_day_and_loses_and_repeats_nothing(layout: Layout) -> None:
    before = jobs_in(layout)
    assert lies_in(layout) == [BATCHES] * DAYS
    tidy(layout)
    assert lies_in(layout) == [1] * DAYS
    assert len(open_table(layout, "dead_letters").files()) == 1
    assert jobs_in(layout) == before
    assert sum(file.rows for file in open_table(layout).files()) == before.total()
    add(layout, BATCHES - 1, {day(0): ["again"]})  # a replay that comes late
    assert jobs_in(layout) == before


def test_who_reads_while_a_table_is_compacted_reads_to_the_end(spark: SparkSession, layout: Layout) -> None:
    reading = read_events(spark, layout.root)
    tidy(layout, keep=timedelta(days=1))
    assert reading.count() == BATCHES * DAYS
    assert read_events(spark, layout.root).count() == BATCHES * (DAYS - 1)


def test_a_batch_that_comes_while_a_table_is_compacted_is_in_it(layout: Layout) -> None:
    late = open_table(layout)
    before = jobs_in(layout)
    add(layout, BATCHES, {day(0): ["beside"]})
    late.compact(LARGE)
    assert jobs_in(layout) == before + type(before)(["beside"])
    assert lies_in(layout) == [2, 1, 1]


def test_what_is_compacted_is_on_the_disk(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(delta, "flush", lambda path: flushed.append(Path(path).name))
    open_table(layout).compact(LARGE)
    assert {Path(file.path).name for file in open_table(layout).files()} <= set(flushed)
    assert "_delta_log" in flushed


def test_so_only_one_process_writes_a_lake(layout: Layout) -> None:
    words = ("-m", "reaper", "pipeline", "ingest", "--lake", layout.root, "--redis-url", "redis://127.0.0.1:1/0")
    with only_writer(layout):
        rejected = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert "is in use: another process ingests" in rejected.stderr
    assert rejected.returncode == USAGE_EXIT


def test_retention_drops_whole_days_and_nothing_else(layout: Layout) -> None:
    before = jobs_in(layout)
    tidy(layout, keep=timedelta(days=1))
    assert {job for job in before if not job.endswith("-0")} == set(jobs_in(layout))
    assert open_table(layout, "dead_letters").files() == []
    Upkeep(layout, LARGE, timedelta(hours=36)).look(BATCHES, NOON + timedelta(days=1))
    assert {file.date for file in open_table(layout).files()} == {day(2)}  # no part of day 1 is younger


# --- by itself --------------------------------------------------------------------------------------------------


def test_an_ingester_of_many_small_batches_keeps_its_lake_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    often, rounds = 6, 3
    monkeypatch.setattr(maintenance, "COMPACT_EVERY", often)
    layout = lake_at(tmp_path)
    create_tables(layout)
    most = 0
    for batch in range(rounds * often):
        add(layout, batch, {day(0): [f"job-{batch}"]})
        Upkeep(layout, LARGE, None).look(batch)
        most = max(most, len(open_table(layout).files()))
    assert most == often  # the joined one, and those since
    assert set(jobs_in(layout).values()) == {1}
    assert jobs_in(layout).total() == rounds * often


def test_files_are_joined_to_a_part_of_the_size_during_a_day_and_fully_once_a_day(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets: list[int] = []
    monkeypatch.setattr(delta.LakeTable, "compact", lambda _, target: targets.append(target))
    upkeep = Upkeep(layout, 80, None)
    for hour in range(24):
        upkeep.look(hour * COMPACT_EVERY, NOON + timedelta(hours=hour))
    assert targets == [each for each in [80 // EARLY_PART] * 11 + [80] + [80 // EARLY_PART] * 11 for _ in TABLES]


def test_one_run_a_day_is_enough(layout: Layout) -> None:
    for number in range(DAYS):
        Upkeep(layout, LARGE, timedelta(days=1)).look(number, NOON + timedelta(days=number - 1))
    assert lies_in(layout) == [1]


def test_what_fails_is_said_and_left_for_later(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(*_: object) -> None:
        raise DeltaError("in between")

    monkeypatch.setattr(delta.LakeTable, "compact", busy)
    tidy(layout)
    assert f'maintenance of the lake failed: lake={layout.root} cause="in between"' in caplog.messages
