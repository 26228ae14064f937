"""A lake whose tables and checkpoint are of different moments is rejected: its batches would be lost, or come twice."""

import logging
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from reaper.pipeline.lake import layout as places
from reaper.pipeline.lake.batches import BatchWriter
from reaper.pipeline.lake.delta import LakeTable
from reaper.pipeline.lake.history import check_history
from reaper.pipeline.lake.layout import TABLES, Layout
from reaper.pipeline.lake.store import flush
from reaper.pipeline.lake.tables import create_tables, lake_at
from tests.pipeline.lakes import DAY, add, plan, written
from workers.protocol.errors import ConfigurationError

LAST = 12


def bring(layout: Layout, batch: int) -> None:
    """Ingest one row by a batch."""
    plan(layout, batch)
    BatchWriter(layout, layout.name(), 0).publish(written(layout, "events", {DAY: [f"job-{batch}"]}), batch)
    (layout.checkpoint / "commits").mkdir(exist_ok=True)
    (layout.checkpoint / "commits" / str(batch)).touch()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A lake of some batches."""
    made = lake_at(tmp_path / "lake")
    check_history(made)
    create_tables(made)
    check_history(made)
    for batch in range(LAST + 1):
        bring(made, batch)
    check_history(made)
    return made


def test_a_batch_that_is_replayed_is_of_the_same_moment(layout: Layout) -> None:
    plan(layout, LAST + 1)
    check_history(layout)
    add(layout, LAST + 1, {DAY: ["job"]})  # and killed before it was counted
    check_history(layout)


def drop_all(layout: Layout) -> None:
    for table in TABLES:
        LakeTable(layout.table(table)).drop_before(datetime.now(UTC).date())


def test_old_days_may_be_dropped(layout: Layout) -> None:
    drop_all(layout)
    assert not LakeTable(layout.table("events")).files()
    check_history(layout)


def of_before(layout: Layout) -> None:
    (layout.checkpoint / "offsets" / str(LAST)).unlink()


def gone(layout: Layout) -> None:
    shutil.rmtree(layout.checkpoint)


def gone_and_nothing_left(layout: Layout) -> None:
    gone(layout)
    drop_all(layout)


def state_gone(layout: Layout) -> None:
    shutil.rmtree(layout.state)


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (of_before, f"has batch {LAST}, but its checkpoint .* ends with batch {LAST - 1}"),
        (gone, "its checkpoint .* is missing"),
        (gone_and_nothing_left, "its checkpoint .* is missing"),
        (state_gone, "its checkpoint .* is missing"),
    ],
)
@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_checkpoint_that_knows_less_than_the_tables_is_rejected(
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


@pytest.mark.parametrize(("harm", "ends"), [(table_of_before, "3"), (table_made_anew, "none"), (table_gone, "none")])
@pytest.mark.parametrize("table", ["events", "dead_letters"])
def test_tables_that_have_less_than_was_ingested_are_rejected_unless_loss_is_accepted(
    layout: Layout, caplog: pytest.LogCaptureFixture, harm: Callable[[Layout, str], None], ends: str, table: str
) -> None:
    harm(layout, table)
    found = f"table {table} of the lake .* ends with batch {ends}, and .* takes batch {LAST} for ingested"
    with pytest.raises(ConfigurationError, match=found):
        check_history(layout)
    with caplog.at_level(logging.WARNING):
        check_history(layout, fail_on_data_loss=False)
    assert "data loss" in caplog.text


def test_which_entries_a_batch_holds_is_on_the_disk_before_its_rows_count(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are flushed. Were they to outlive their range, the number would come again for more entries."""
    seen: list[str] = []

    def note(path: Path) -> None:
        flush(path)
        seen.append(str(path.relative_to(layout.state)))

    monkeypatch.setattr(places, "flush", note)
    monkeypatch.setattr(LakeTable, "publish", lambda *_, **__: seen.append("published"))
    plan(layout, LAST + 1)
    (layout.checkpoint / "metadata").write_text("{}")
    BatchWriter(layout, layout.name(), 0).publish([], LAST + 1)
    before = seen[: seen.index("published")]
    assert before == [f"checkpoint/offsets/{LAST + 1}", "checkpoint/metadata", "checkpoint/offsets", "checkpoint", "."]


def test_a_batch_whose_range_is_not_written_down_any_more_is_not_published(layout: Layout) -> None:
    shutil.rmtree(layout.checkpoint)
    with pytest.raises(FileNotFoundError):
        BatchWriter(layout, layout.name(), 0).publish([], LAST + 1)
