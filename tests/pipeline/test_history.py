"""A lake whose tables and checkpoint are of different moments is refused: its batches would be lost, or come twice."""

import logging
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reaper.pipeline.lake import layout as places
from reaper.pipeline.lake.batches import BatchWriter, Staged
from reaper.pipeline.lake.delta import LakeTable
from reaper.pipeline.lake.history import LakeAwayError, check_history, check_presence
from reaper.pipeline.lake.layout import TABLES, Layout
from reaper.pipeline.lake.maintenance import retain
from reaper.pipeline.lake.tables import create_tables, lake_at
from tests.pipeline.lakes import DAY, add, plan
from workers.protocol.errors import ConfigurationError

LAST = 12


def bring(layout: Layout, batch: int, table: str = "events") -> None:
    """Bring one row by a batch."""
    plan(layout, batch)
    add(layout, batch, {DAY: [f"job-{batch}"]}, table)
    layout.note_counts(batch, int(table == "events"), int(table == "dead_letters"), 0)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A lake of some batches; the one before the last brought a dead letter."""
    made = lake_at(tmp_path / "lake")
    check_history(made)
    create_tables(made)
    check_history(made)
    for batch in range(LAST - 1):
        bring(made, batch)
    bring(made, LAST - 1, "dead_letters")
    bring(made, LAST)
    check_history(made)
    return made


def test_a_batch_that_is_replayed_is_of_the_same_moment(layout: Layout) -> None:
    plan(layout, LAST + 1)
    check_history(layout)
    add(layout, LAST + 1, {DAY: ["job"]})  # and killed before it was counted
    check_history(layout)


def test_a_lake_that_is_away_is_told_as_that_and_none_is_begun_in_its_place(layout: Layout, tmp_path: Path) -> None:
    name = layout.name()
    check_presence(layout, name)
    lake = Path(layout.root)
    lake.rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(LakeAwayError, match=rf"^{re.escape(layout.root)} is not there any more, or empty: put"):
            check_presence(layout, name)
        lake.mkdir(exist_ok=True)  # where a file system was mounted
    assert list(lake.iterdir()) == []
    lake.rmdir()
    (tmp_path / "away").rename(lake)
    check_presence(layout, name)
    with pytest.raises(ConfigurationError, match="was removed and made anew while it was being filled"):
        check_presence(layout, "of another")


def test_old_days_may_be_dropped(layout: Layout) -> None:
    retain(layout, timedelta(days=1), datetime.now(UTC))
    assert not LakeTable(layout.table("events")).files()
    check_history(layout)


def of_before(layout: Layout) -> None:
    (layout.checkpoint / "offsets" / str(LAST)).unlink()


def gone(layout: Layout) -> None:
    shutil.rmtree(layout.checkpoint)


def gone_and_nothing_left(layout: Layout) -> None:
    gone(layout)
    retain(layout, timedelta(days=1), datetime.now(UTC))


def state_gone(layout: Layout) -> None:
    shutil.rmtree(layout.state)


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (of_before, f"has batch {LAST}, and its checkpoint .* knows none after batch {LAST - 1}"),
        (gone, "its checkpoint .* is gone"),
        (gone_and_nothing_left, "its checkpoint .* is gone"),
        (state_gone, "its checkpoint .* is gone"),
    ],
)
@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_checkpoint_that_knows_less_than_the_tables_is_refused(
    layout: Layout, harm: Callable[[Layout], None], found: str, fail_on_data_loss: bool
) -> None:
    """Its next batch would have the number of one that is there, and be taken for it."""
    harm(layout)
    with pytest.raises(ConfigurationError, match=found):
        check_history(layout, fail_on_data_loss=fail_on_data_loss)


def table_of_before(layout: Layout, table: str) -> None:
    shutil.rmtree(layout.table(table))
    create_tables(layout)
    add(layout, 3, {DAY: ["job"]}, table)


def table_made_anew(layout: Layout, table: str) -> None:
    shutil.rmtree(layout.table(table))
    create_tables(layout)


def table_gone(layout: Layout, table: str) -> None:
    shutil.rmtree(layout.table(table))


@pytest.mark.parametrize(
    ("harm", "ends"), [(table_of_before, "ends with 3"), (table_made_anew, "has none"), (table_gone, "has none")]
)
@pytest.mark.parametrize(("table", "batch"), [("events", LAST), ("dead_letters", LAST - 1)])
def test_tables_that_have_less_than_was_ingested_are_refused_unless_loss_is_accepted(
    layout: Layout,
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[Layout, str], None],
    ends: str,
    table: str,
    batch: int,
) -> None:
    harm(layout, table)
    found = f"table {table} of the lake .* lacks batch {batch}, .*: it {ends}"
    with pytest.raises(ConfigurationError, match=found):
        check_history(layout)
    with caplog.at_level(logging.WARNING):
        check_history(layout, fail_on_data_loss=False)
    assert "data loss" in caplog.text


def test_which_entries_a_batch_holds_is_on_the_disk_before_its_rows_count(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are flushed. Were they to outlive their range, the number would come again for more entries."""
    flush, seen = places.flush, []

    def note(path: Path) -> None:
        flush(path)
        seen.append(str(path.relative_to(layout.state)))

    monkeypatch.setattr(places, "flush", note)
    monkeypatch.setattr(LakeTable, "publish", lambda *_, **__: seen.append("published"))
    plan(layout, LAST + 1)
    (layout.checkpoint / "metadata").write_text("{}")
    staged = {table: Staged() for table in TABLES}
    BatchWriter(layout, layout.name(), 0, layout.staging / "batch")._publish(staged, LAST + 1)
    before = seen[: seen.index("published")]
    assert before == [f"checkpoint/offsets/{LAST + 1}", "checkpoint/metadata", "checkpoint/offsets", "checkpoint", "."]


def test_a_batch_whose_range_is_not_written_down_any_more_is_not_published(layout: Layout) -> None:
    shutil.rmtree(layout.checkpoint)
    staged = {table: Staged() for table in TABLES}
    with pytest.raises(FileNotFoundError):
        BatchWriter(layout, layout.name(), 0, layout.staging / "batch")._publish(staged, LAST + 1)
