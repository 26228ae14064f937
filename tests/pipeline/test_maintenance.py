"""Compaction and retention change how a lake lies, never what it holds for its readers."""

import shutil
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reaper.pipeline.lake import maintenance
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.maintenance import CompactionError, compact, oldest_day_kept, plan_compaction, retain
from reaper.pipeline.lake.tables import LakeBusyError, only_maintainer, read_events
from tests.pipeline.journals import ask_duckdb
from tests.pipeline.test_lake import FENCE, batch, writer

LARGE = 10**9


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """What `layout` is a copy of."""
    made = Layout(tmp_path_factory.mktemp("filled"))
    made.create()
    made.install_fence(FENCE)
    for number in range(4):
        writer(made)(batch(spark, number * 20, 20, letters=1), number)
    commit(made, 2)
    return made


@pytest.fixture
def layout(filled: Layout, tmp_path: Path) -> Layout:
    """A lake with four batches, the last of which may still be replayed."""
    return Layout(shutil.copytree(filled.root, tmp_path / "lake", symlinks=True))


def commit(layout: Layout, number: int) -> None:
    """Note that a batch will not be replayed, where Spark does."""
    commits = layout.checkpoint / "commits"
    commits.mkdir(parents=True, exist_ok=True)
    (commits / str(number)).write_text("v1\n{}")


def jobs(layout: Layout) -> Counter[str]:
    """Return the jobs of all events, as a reader sees them that knows nothing of us."""
    return Counter(job for (job,) in ask_duckdb("SELECT job FROM TABLE", layout.table("events")))


def numbers(layout: Layout) -> list[int]:
    return list(layout.batches("events"))


@pytest.mark.parametrize(
    ("sizes", "planned"),
    [
        ({}, []),
        ({4: 1}, []),
        ({0: 1, 1: 1, 2: 1}, [[0, 1, 2]]),
        ({0: 6, 1: 6, 2: 3, 5: 1, 7: 9}, [[1, 2, 5]]),
        ({0: 10, 1: 50, 2: 1, 3: 2, 4: 9}, [[2, 3]]),
    ],
)
def test_neighbours_are_joined_until_they_would_be_too_large(sizes: dict[int, int], planned: list[list[int]]) -> None:
    assert plan_compaction(sizes, 10) == planned


def test_compaction_joins_what_is_never_replayed_and_loses_and_repeats_nothing(
    spark: SparkSession, layout: Layout
) -> None:
    before = jobs(layout)
    events, letters, _ = compact(spark, layout, LARGE)
    assert (events.batches_before, events.batches_after, events.rows_rewritten) == (3, 1, 60)
    assert (letters.batches_before, letters.batches_after) == (3, 1)
    assert numbers(layout) == [2, 3]
    assert jobs(layout) == before
    assert len(list((layout.table("events") / "batch=2").glob("*/*.parquet"))) == 4  # days
    writer(layout)(batch(spark, 60, 20, letters=1), 3)  # the replay that was due
    assert jobs(layout) == before

    commit(layout, 3)
    compact(spark, layout, LARGE)
    assert numbers(layout) == [3]
    assert jobs(layout) == before
    assert len(list(layout.generations.glob("events.*"))) == 2  # this one, and the one before for who still reads it


def test_who_reads_while_a_table_is_compacted_reads_to_the_end(spark: SparkSession, layout: Layout) -> None:
    reading = read_events(spark, layout.root)
    compact(spark, layout, LARGE)
    assert reading.count() == read_events(spark, layout.root).count() == 80


def test_a_compaction_that_is_killed_before_the_last_step_has_changed_nothing(
    spark: SparkSession, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = jobs(layout)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Layout, "point", die)
        with pytest.raises(KeyboardInterrupt):
            compact(spark, layout, LARGE)
    assert (numbers(layout), jobs(layout)) == ([0, 1, 2, 3], before)
    compact(spark, layout, LARGE)
    assert (numbers(layout), jobs(layout)) == ([2, 3], before)
    assert list(layout.staging.iterdir()) == []


def test_a_compaction_that_would_lose_rows_changes_nothing(
    spark: SparkSession, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([60, 59])
    monkeypatch.setattr(maintenance, "_count", lambda _: next(counts))
    with pytest.raises(CompactionError, match="wrote 59 rows of 60"):
        compact(spark, layout, LARGE)
    assert numbers(layout) == [0, 1, 2, 3]


def test_retention_drops_whole_days_and_nothing_else(layout: Layout) -> None:
    now = datetime(2023, 11, 17, 12, tzinfo=UTC)
    before = jobs(layout)
    assert days(layout) == [14, 15, 16, 17, 18]
    events, letters, malformed = retain(layout, timedelta(days=1), now)
    assert [day.day for day in events.days_dropped] == [14, 15]
    assert ([day.day for day in letters.days_dropped], malformed.days_dropped) == ([15], ())
    assert days(layout) == [16, 17, 18]
    assert jobs(layout) < before
    assert retain(layout, timedelta(days=1), now)[0].files_dropped == 0


def days(layout: Layout) -> list[int]:
    return sorted({int(path.name[-2:]) for path in layout.table("events").glob("*/date=*")})


def test_a_day_is_kept_while_a_part_of_it_is_young_enough() -> None:
    noon = datetime(2026, 5, 10, 12, tzinfo=UTC)
    assert oldest_day_kept(noon, timedelta(days=1)) == date(2026, 5, 9)
    assert oldest_day_kept(noon, timedelta(hours=12)) == date(2026, 5, 10)


def test_only_one_may_rewrite_a_lake(layout: Layout) -> None:
    with only_maintainer(layout), pytest.raises(LakeBusyError, match="is at work"):
        retain(layout, timedelta(days=1))
