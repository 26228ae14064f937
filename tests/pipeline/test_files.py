"""A task writes a file for each day, and reports them."""

import resource
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from reaper.pipeline.lake import files
from reaper.pipeline.lake.files import FileWriter
from reaper.pipeline.lake.parse import TableRows, parse

DAYS = (date(2023, 11, 14), date(2023, 11, 15))


def letters(*days: date) -> TableRows:
    """Return dead letters of these days."""
    noon = [int(datetime.combine(day, time(12), UTC).timestamp() * 1000) for day in days]
    fields = {b"reaper.dead.stream": b"s", b"reaper.dead.group": b"g"}
    (rows,) = parse("s", [(b"%d-%d" % (ms, place), fields) for place, ms in enumerate(noon)])
    return rows


def written(lake: Path, *parts: TableRows) -> dict[date, tuple[Path, int]]:
    """Write rows; return by day the file and the number of rows that are reported."""
    found = {}
    for row in FileWriter(str(lake)).write(iter(parts)).to_pylist():
        assert row["table"] == "dead_letters"
        file = lake / "dead_letters" / row["path"]
        assert file.stat().st_size == row["bytes"]
        found[date.fromisoformat(file.parent.name.removeprefix("date="))] = file, row["rows"]
    return found


def test_each_day_has_one_file_however_often_rows_are_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = DAYS
    monkeypatch.setattr(files, "ROWS_TOGETHER", 4)
    found = written(tmp_path, letters(first, second, first), letters(first), letters(second), letters(first, first))
    assert {day: rows for day, (_, rows) in found.items()} == {first: 5, second: 2}
    assert {file for file, _ in found.values()} == set(tmp_path.rglob("*.parquet"))
    file = pq.ParquetFile(found[first][0])
    assert (file.metadata.num_rows, file.metadata.num_row_groups) == (5, 2)
    assert [entry.partition("-")[2] for entry in file.read().column("id").to_pylist()] == ["0", "2", "0", "0", "1"]


def test_rows_that_are_large_are_written_out_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BYTES_TOGETHER", 1)
    file, rows = written(tmp_path, *[letters(DAYS[0])] * 3)[DAYS[0]]
    assert (rows, pq.read_metadata(file).num_row_groups) == (3, 3)


def test_a_stream_of_years_is_written_though_a_process_may_open_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROWS_TOGETHER", 300)
    days = [DAYS[0] + timedelta(days=n) for n in range(300)]
    _, most = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    newest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (newest + 2 * files.MOST_OPEN, most))
    try:
        told = FileWriter(str(tmp_path)).write([letters(*days), letters(*days), letters(DAYS[0])]).to_pylist()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    paths = {tmp_path / "dead_letters" / row["path"] for row in told}
    assert paths == set(tmp_path.rglob("*.parquet"))
    assert [len(told), sum(row["rows"] for row in told)] == [601, 601]
    assert sum(pq.read_metadata(path).num_rows for path in paths) == 601


def test_a_task_without_rows_writes_no_file(tmp_path: Path) -> None:
    assert written(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_fails_leaves_no_file_and_writes_others_when_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off() -> Iterator[TableRows]:
        yield letters(DAYS[0])
        raise ConnectionError

    monkeypatch.setattr(files, "ROWS_TOGETHER", 1)
    with pytest.raises(ConnectionError):
        FileWriter(str(tmp_path)).write(cut_off())
    assert list(tmp_path.rglob("*.parquet")) == []
    assert written(tmp_path, letters(DAYS[0]))[DAYS[0]][0] != written(tmp_path, letters(DAYS[0]))[DAYS[0]][0]
