"""Compaction and retention change how a lake lies, never what it holds for its readers."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from reaper.pipeline.lake import delta, maintenance
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.maintenance import COMPACT_EVERY, Compacted, Upkeep, compact, retain
from reaper.pipeline.lake.tables import LakeBusyError, create_tables, lake_at, only_writer, read_events
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


def lies_in(layout: Layout) -> list[int]:
    """Return how many files each day has."""
    files = [file.date for file in open_table(layout).files()]
    return [files.count(found) for found in sorted(set(files))]


def test_compaction_joins_each_day_and_loses_and_repeats_nothing(layout: Layout) -> None:
    before = jobs_in(layout)
    events, letters, malformed = compact(layout, LARGE)
    assert (events.files_before, events.files_after) == (BATCHES * DAYS, DAYS)
    assert (letters.files_before, letters.files_after) == (BATCHES, 1)
    assert (malformed.files_before, malformed.files_after) == (0, 0)
    assert lies_in(layout) == [1] * DAYS
    assert jobs_in(layout) == before
    assert sum(file.rows for file in open_table(layout).files()) == before.total()
    add(layout, BATCHES - 1, {day(0): ["again"]})  # a replay that comes late
    assert jobs_in(layout) == before
    assert compact(layout, LARGE)[0] == Compacted("events", DAYS, DAYS)


def test_who_reads_while_a_table_is_compacted_reads_to_the_end(spark: SparkSession, layout: Layout) -> None:
    reading = read_events(spark, layout.root)
    compact(layout, LARGE)
    retain(layout, timedelta(days=1), NOON)
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


def test_two_compactions_at_once_would_double_every_row(layout: Layout) -> None:
    """So says deltalake 1.6.6. Once it does not, the lock is needed for less."""
    late = open_table(layout)
    open_table(layout).compact(LARGE)
    late.compact(LARGE)
    assert set(jobs_in(layout).values()) == {2}


def compact_in_a_process(layout: Layout) -> "subprocess.Popen[str]":
    words = ("-m", "reaper", "pipeline", "compact", "--lake", layout.root)
    return subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_so_only_one_process_writes_a_lake(layout: Layout) -> None:
    before = jobs_in(layout)
    with only_writer(layout):
        refused = compact_in_a_process(layout)
        assert "is in use: another process ingests" in refused.communicate()[1]
        assert refused.returncode == USAGE_EXIT
    racing = [compact_in_a_process(layout) for _ in range(3)]
    for process in racing:
        process.communicate()
    ended = [process.returncode for process in racing]
    assert 0 in ended
    assert set(ended) <= {0, USAGE_EXIT}
    assert jobs_in(layout) == before
    assert lies_in(layout) == [1] * DAYS


@pytest.mark.parametrize("rewrite", [partial(compact, target_bytes=LARGE), partial(retain, keep=timedelta(days=1))])
def test_a_state_that_is_not_the_one_of_the_lake_keeps_nobody_out(
    layout: Layout, tmp_path: Path, rewrite: Callable[[Layout], object]
) -> None:
    for other in (Layout(layout.root, tmp_path / "none"), Layout(layout.root, tmp_path / "other")):
        with pytest.raises(LakeBusyError, match="is not the state of the lake"):
            rewrite(other)
        other.create()
        with pytest.raises(LakeBusyError, match="is not the state of the lake"):
            rewrite(other)


def test_retention_drops_whole_days_and_nothing_else(layout: Layout) -> None:
    before = jobs_in(layout)
    events, letters, malformed = retain(layout, timedelta(days=1), NOON)
    assert (events.days_dropped, events.files_dropped) == ((day(0),), BATCHES)
    assert (letters.days_dropped, malformed.days_dropped) == ((day(0),), ())
    assert {job for job in before if not job.endswith("-0")} == set(jobs_in(layout))
    assert retain(layout, timedelta(days=1), NOON)[0].files_dropped == 0
    assert retain(layout, timedelta(hours=12), NOON)[0].days_dropped == (day(1),)  # no part of it is younger


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


def test_what_is_joined_often_is_joined_to_a_part_of_the_size_and_fully_now_and_then(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets: list[int] = []
    monkeypatch.setattr(maintenance, "compact", lambda _, target: targets.append(target))
    upkeep = Upkeep(layout, 80, None)
    for batch in range(0, 2 * maintenance.COMPACT_FULLY_EVERY, COMPACT_EVERY):
        upkeep.look(batch)
    assert set(targets) == {10, 80}
    assert targets.count(80) == 1


def test_it_keeps_what_it_was_told_to_keep(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "retain", _at(NOON, maintenance.retain))
    Upkeep(layout, LARGE, timedelta(days=1)).look(COMPACT_EVERY)
    assert {file.date for file in open_table(layout).files()} == {day(1), day(2)}


def _at(now: datetime, keep: Callable[..., object]) -> Callable[..., object]:
    return lambda layout, how_much: keep(layout, how_much, now)


def test_what_fails_is_said_and_left_for_later(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(*_: object) -> None:
        raise DeltaError("in between")

    monkeypatch.setattr(maintenance, "compact", busy)
    Upkeep(layout, LARGE, None).look(COMPACT_EVERY)
    assert f"maintenance of the lake {layout.root} failed: in between" in caplog.text
