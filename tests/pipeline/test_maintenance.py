"""Compaction and retention change how a lake lies, never what it holds for its readers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

from reaper.pipeline.lake import maintenance
from reaper.pipeline.lake.delta import JoinError, LakeFile, LakeTable
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.maintenance import JOIN_EVERY, Upkeep, compact, oldest_day_kept, plan_compaction, retain
from reaper.pipeline.lake.tables import LakeBusyError, create_tables, lake_at, read_events
from tests.pipeline.lakes import DAY, add, jobs_in, open_table

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


@pytest.mark.parametrize(
    ("sizes", "planned"),
    [
        ({}, []),
        ({0: [9]}, []),
        ({0: [1, 1, 1], 1: [1], 2: [5, 5]}, [[1, 1, 1], [5, 5]]),
        ({0: [6, 6, 3, 1, 9]}, [[6, 3, 1]]),
        ({0: [10, 50, 1, 2, 9]}, [[1, 2]]),
    ],
)
def test_neighbours_of_a_day_are_joined_until_they_would_be_too_large(
    sizes: dict[int, list[int]], planned: list[list[int]]
) -> None:
    files = [LakeFile("f", day(n), size, 1, age) for n, of_day in sizes.items() for age, size in enumerate(of_day)]
    assert [[file.bytes for file in group] for group in plan_compaction(reversed(files), 10)] == planned


def test_compaction_joins_each_day_and_loses_and_repeats_nothing(layout: Layout) -> None:
    before = jobs_in(layout)
    events, letters, malformed = compact(layout, LARGE)
    assert (events.files_before, events.files_after, events.files_joined) == (BATCHES * DAYS, DAYS, BATCHES * DAYS)
    assert (letters.files_before, letters.files_after) == (BATCHES, 1)
    assert (malformed.files_before, malformed.files_after, malformed.files_joined) == (0, 0, 0)
    assert lies_in(layout) == [1] * DAYS
    assert jobs_in(layout) == before
    assert sum(file.rows for file in open_table(layout).files()) == before.total()
    add(layout, BATCHES - 1, {day(0): ["again"]})  # a replay that comes late
    assert jobs_in(layout) == before
    assert compact(layout, LARGE)[0].files_joined == 0


def test_who_reads_while_a_table_is_compacted_reads_to_the_end(spark: SparkSession, layout: Layout) -> None:
    reading = read_events(spark, layout.root)
    compact(layout, LARGE)
    retain(layout, timedelta(days=1), NOON)
    assert reading.count() == BATCHES * DAYS
    assert read_events(spark, layout.root).count() == BATCHES * (DAYS - 1)


def test_a_batch_that_comes_while_a_table_is_compacted_is_in_it(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = LakeTable.join

    def beside(table: LakeTable, files: Sequence[LakeFile]) -> None:
        if table.address == layout.table("events") and files[0].date == day(0):
            add(layout, BATCHES, {day(0): ["beside"]})
        join(table, files)

    monkeypatch.setattr(LakeTable, "join", beside)
    before = jobs_in(layout)
    compact(layout, LARGE)
    assert jobs_in(layout) == before + type(before)(["beside"])
    assert lies_in(layout) == [2, 1, 1]


def _join(table: LakeTable) -> None:
    table.join([file for file in table.files() if file.date == day(0)])


def _join_last(table: LakeTable) -> None:
    table.join([file for file in table.files() if file.date == day(DAYS - 1)])


def _drop(table: LakeTable) -> None:
    table.drop_before(day(1))


def _drop_all(table: LakeTable) -> None:
    table.drop_before(day(DAYS))


@pytest.mark.parametrize("first", [_join, _drop])
@pytest.mark.parametrize("second", [_join, _drop])
def test_of_two_who_rewrite_at_once_the_later_one_changes_nothing(
    layout: Layout, first: Callable[[LakeTable], None], second: Callable[[LakeTable], None]
) -> None:
    late = open_table(layout)
    first(open_table(layout))
    after = jobs_in(layout)
    with pytest.raises(CommitFailedError):
        second(late)
    assert jobs_in(layout) == after
    assert set(after.values()) == {1}


@pytest.mark.parametrize("meanwhile", [_join_last, _drop_all])
def test_what_another_rewrites_between_two_groups_is_not_joined_as_it_was(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[LakeTable], None]
) -> None:
    """At that moment: after a commit of ours, and before our look at what there is now."""
    commit, after = LakeTable._commit, None

    def commit_and_look_late(table: LakeTable, *what: Any) -> None:
        nonlocal after
        commit(table, *what)
        if after is None:
            after = jobs_in(layout)
            meanwhile(open_table(layout))
            after = jobs_in(layout)
            table._delta.update_incremental()

    monkeypatch.setattr(LakeTable, "_commit", commit_and_look_late)
    with pytest.raises(LakeBusyError, match="somebody else has rewritten these files"):
        compact(layout, LARGE)
    assert jobs_in(layout) == after
    assert set(after.values()) <= {1}


def test_files_that_are_not_what_their_table_says_are_left_alone(layout: Layout) -> None:
    table = open_table(layout)
    first, *others = (file for file in table.files() if file.date == day(0))
    with pytest.raises(JoinError, match="other rows than their table says"):
        table.join([replace(first, rows=2), *others])
    assert lies_in(layout) == [BATCHES] * DAYS


@pytest.mark.parametrize(("method", "what"), [("join", "was not compacted"), ("drop_before", "were not dropped")])
def test_a_commit_that_another_came_before_is_a_sentence(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, method: str, what: str
) -> None:
    def lose(*_: object) -> None:
        raise CommitFailedError("a concurrent transaction deleted data this operation read")

    monkeypatch.setattr(LakeTable, method, lose)
    with pytest.raises(LakeBusyError, match=f"{what}: a concurrent transaction"):
        compact(layout, LARGE) if method == "join" else retain(layout, timedelta(days=1), NOON)


def test_retention_drops_whole_days_and_nothing_else(layout: Layout) -> None:
    before = jobs_in(layout)
    events, letters, malformed = retain(layout, timedelta(days=1), NOON)
    assert (events.days_dropped, events.files_dropped) == ((day(0),), BATCHES)
    assert (letters.days_dropped, malformed.days_dropped) == ((day(0),), ())
    assert {job for job in before if not job.endswith("-0")} == set(jobs_in(layout))
    assert retain(layout, timedelta(days=1), NOON)[0].files_dropped == 0


def test_a_day_is_kept_while_a_part_of_it_is_young_enough() -> None:
    noon = datetime(2026, 5, 10, 12, tzinfo=UTC)
    assert oldest_day_kept(noon, timedelta(days=1)) == date(2026, 5, 9)
    assert oldest_day_kept(noon, timedelta(hours=12)) == date(2026, 5, 10)


# --- by itself --------------------------------------------------------------------------------------------------


def test_an_ingester_of_many_small_batches_keeps_its_lake_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    often, rounds = 6, 3
    monkeypatch.setattr(maintenance, "JOIN_EVERY", often)
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
    for batch in range(0, 2 * maintenance.JOIN_LARGE_EVERY, JOIN_EVERY):
        upkeep.look(batch)
    assert set(targets) == {10, 80}
    assert targets.count(80) == 1


def test_it_keeps_what_it_was_told_to_keep(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "retain", _at(NOON, maintenance.retain))
    Upkeep(layout, LARGE, timedelta(days=1)).look(JOIN_EVERY)
    assert {file.date for file in open_table(layout).files()} == {day(1), day(2)}


def _at(now: datetime, keep: Callable[..., object]) -> Callable[..., object]:
    return lambda layout, how_much: keep(layout, how_much, now)


def test_what_fails_is_said_and_left_for_later(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(*_: object) -> None:
        raise LakeBusyError("events of today was not compacted: in between")

    monkeypatch.setattr(maintenance, "compact", busy)
    Upkeep(layout, LARGE, None).look(JOIN_EVERY)
    assert "is tidied up later: events of today was not compacted" in caplog.text
