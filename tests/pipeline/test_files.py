"""What a task writes: a file for each day, and what it says of them."""

import resource
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from reaper.pipeline.lake import files
from reaper.pipeline.lake.events import RAW
from reaper.pipeline.lake.files import FileWriter

DAYS = (date(2023, 11, 14), date(2023, 11, 15))


def letters(*days: date) -> pa.RecordBatch:
    """Return dead letters of these days."""
    noon = [int(datetime.combine(day, time(12), UTC).timestamp() * 1000) for day in days]
    entries = [
        {"stream": "s", "id": f"{ms}-{place}", "fields": {"reaper.dead.stream": "s", "reaper.dead.group": "g"}}
        for place, ms in enumerate(noon)
    ]
    return pa.RecordBatch.from_pylist(entries, schema=to_arrow_schema(RAW))


def told(folder: Path, *batches: pa.RecordBatch) -> dict[date, tuple[str, int]]:
    """Write batches; return by day the file and the number of rows that are told of."""
    written = FileWriter(folder).write(iter(batches)).to_pylist()
    assert {row["table"] for row in written} <= {"dead_letters"}
    by_day = [date.fromisoformat(Path(row["file"]).parent.name.removeprefix("date=")) for row in written]
    assert len(set(by_day)) == len(written)
    return {day: (row["file"], row["rows"]) for day, row in zip(by_day, written, strict=True)}


def test_each_day_has_one_file_however_often_rows_are_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = DAYS
    monkeypatch.setattr(files, "ROWS_TOGETHER", 4)
    written = told(tmp_path, letters(first, second, first), letters(first), letters(second), letters(first, first))
    assert {day: rows for day, (_, rows) in written.items()} == {first: 5, second: 2}
    assert {Path(file) for file, _ in written.values()} == set(tmp_path.rglob("*.parquet"))
    file = pq.ParquetFile(written[first][0])
    assert (file.metadata.num_rows, file.metadata.num_row_groups) == (5, 2)
    assert [entry.partition("-")[2] for entry in file.read().column("id").to_pylist()] == ["0", "2", "0", "0", "1"]


def test_rows_that_are_large_are_written_out_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BYTES_TOGETHER", 1)
    file, rows = told(tmp_path, *[letters(DAYS[0])] * 3)[DAYS[0]]
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
        written = FileWriter(tmp_path).write([letters(*days), letters(*days), letters(DAYS[0])]).to_pylist()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert {Path(row["file"]) for row in written} == set(tmp_path.rglob("*.parquet"))
    assert [len(written), sum(row["rows"] for row in written)] == [601, 601]
    assert sum(pq.read_metadata(row["file"]).num_rows for row in written) == 601


def test_a_task_without_rows_writes_no_file(tmp_path: Path) -> None:
    assert told(tmp_path) == told(tmp_path, letters()) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_is_tried_again_writes_other_files(tmp_path: Path) -> None:
    def cut_off() -> Iterator[pa.RecordBatch]:
        yield letters(DAYS[0])
        raise ConnectionError

    with pytest.raises(ConnectionError):
        FileWriter(tmp_path).write(cut_off())
    before = told(tmp_path, letters(DAYS[0]))
    after = told(tmp_path, letters(DAYS[0]))
    assert before[DAYS[0]][0] != after[DAYS[0]][0]
