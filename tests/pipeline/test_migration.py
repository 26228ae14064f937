"""A lake whose tables were plain folders becomes one of Delta tables, in place, whenever its migration is killed."""

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from reaper.pipeline.lake import migration
from reaper.pipeline.lake.history import check_history
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.migration import migrate
from reaper.pipeline.lake.schema import TABLES
from reaper.pipeline.lake.tables import LakeBusyError, create_tables, existing_lake, lake_at, only_ingester
from tests.pipeline.lakes import DAY, add, jobs_in, open_table, stage
from workers.protocol.errors import ConfigurationError

NEXT_DAY = DAY + timedelta(days=1)
JOBS = Counter({f"{kind}-{batch}": 1 for kind in ("old", "new") for batch in (2, 3)})


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A lake as the version before wrote it: links to generations, which hold batches; the first of three."""
    made = lake_at(tmp_path / "lake")
    made.create()
    (made.state / "name").unlink()  # which that version did not know
    (made.state / "fence").write_text("token")
    for table in TABLES:
        generation = made.state / "generations" / f"{table}.2"
        generation.mkdir(parents=True)
        Path(made.table(table)).symlink_to(f"_ingest/generations/{table}.2")
    for batch in (2, 3):
        staged = stage(made, "events", {DAY: [f"old-{batch}"], NEXT_DAY: [f"new-{batch}"]})
        staged.rename(made.state / "generations" / "events.2" / f"batch={batch}")
    for folder in ("offsets", "commits"):
        (made.checkpoint / folder).mkdir(parents=True)
        (made.checkpoint / folder / "3").write_text(f"v1\n{{}}\n{json.dumps({})}")
    return made


def test_nothing_is_lost_and_what_may_be_replayed_is_known(layout: Layout) -> None:
    events, letters, malformed = migrate(layout)
    assert (events.files, events.newest_batch) == (4, 3)
    assert (letters.files, letters.newest_batch, malformed.newest_batch) == (0, None, None)
    assert existing_lake(layout.root) == layout
    assert jobs_in(layout) == JOBS
    add(layout, 3, {DAY: ["old-3"]})
    add(layout, 3, {DAY: ["dead"]}, "dead_letters")  # of a batch that was killed between two tables
    assert (jobs_in(layout), jobs_in(layout, "dead_letters")) == (JOBS, {"dead": 1})
    assert not (layout.state / "generations").exists()
    assert [done.files for done in migrate(layout)] == [0, 0, 0]
    assert jobs_in(layout) == JOBS


def test_what_retention_had_taken_before_is_not_taken_for_lost(layout: Layout) -> None:
    """The dead letters of the newest batch were dropped with their day, and with them the batch's folder."""
    layout.note_counts(3, 2, 1, 0)
    migrate(layout)
    check_history(layout)
    assert [open_table(layout, table).batch_of(layout.name()) for table in TABLES] == [3, 3, 3]


def test_until_then_it_is_neither_read_nor_filled(layout: Layout) -> None:
    for use in (lambda: existing_lake(layout.root), lambda: create_tables(layout)):
        with pytest.raises(ConfigurationError, match=r"`reaper pipeline migrate --lake .*` makes Delta tables"):
            use()


@pytest.mark.parametrize("step", ["_link", "_put", "create_tables"])
@pytest.mark.parametrize("calls_before", [0, 1])
def test_a_migration_that_was_killed_is_taken_up_again(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, step: str, calls_before: int
) -> None:
    real, calls = getattr(migration, step), []

    def die(*given: object) -> object:
        calls.append(given)
        if len(calls) > calls_before:
            raise KeyboardInterrupt
        return real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(migration, step, die)
        if step == "create_tables" and calls_before:
            migrate(layout)
        with pytest.raises(KeyboardInterrupt):
            migrate(layout)
    migrate(layout)
    assert jobs_in(layout) == JOBS
    assert open_table(layout).batch_of(layout.name()) == 3


def test_a_kill_between_the_two_steps_of_putting_a_table_into_its_place_loses_nothing(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def die(path: Path, target: Path) -> Path:
        if path.name == "migrated-events":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            migrate(layout)
    assert not Path(layout.table("events")).exists()
    with pytest.raises(ConfigurationError, match="reaper pipeline migrate"):
        create_tables(layout)
    migrate(layout)
    assert jobs_in(layout) == JOBS


def test_not_while_somebody_ingests(layout: Layout) -> None:
    with only_ingester(layout), pytest.raises(LakeBusyError):
        migrate(layout)
