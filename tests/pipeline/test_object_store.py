"""A lake in an object store holds what a lake in a folder holds, and has one ingester, too."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import anyio.to_thread
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from reaper.pipeline.lake.delta import ReplacedError
from reaper.pipeline.lake.ingest import install_fence
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.maintenance import compact, retain
from reaper.pipeline.lake.mirror import mirrored
from reaper.pipeline.lake.tables import NoLakeError, create_tables, existing_lake, lake_at, read_dead_letters
from tests.pipeline.lakes import DAY, add, open_table, staged_files
from tests.support.ports import free_port
from tests.support.processes import Processes

pytestmark = [pytest.mark.anyio, pytest.mark.processes]
LARGE = 10**9
NEXT_DAY = DAY + timedelta(days=1)


@pytest.fixture
async def lake(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Where a lake would be, in a bucket of a server of the test's own."""
    port = free_port()
    store = processes.python("-m", "moto.server", "-H", "127.0.0.1", "-p", str(port), name="store")
    await store.prints("Running on")
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    await anyio.to_thread.run_sync(_make_bucket, port)
    return lake_at("s3://bucket/some/lake", tmp_path / "state")


def _make_bucket(port: int) -> None:
    with closing(HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("PUT", "/bucket")
        assert connection.getresponse().status == HTTPStatus.OK


def read(layout: Layout, table: str = "events") -> list[str]:
    """Return the jobs of all rows, by copies of the files."""
    files = [file.path for file in open_table(layout, table).files()]
    folder = mirrored(layout.table(table), files)
    return sorted(job for file in files for job in pq.read_table(folder / file)["job"].to_pylist())


async def test_a_lake_in_an_object_store_is_written_tidied_and_read(lake: Layout, spark: SparkSession) -> None:
    await anyio.to_thread.run_sync(_write_and_read, lake, spark)


def _write_and_read(lake: Layout, spark: SparkSession) -> None:
    with pytest.raises(NoLakeError):
        existing_lake(lake.root)
    create_tables(lake)
    fence = install_fence(lake)
    for batch in range(3):
        add(lake, batch, {DAY: [f"old-{batch}"], NEXT_DAY: [f"new-{batch}"]}, fence=fence)
        add(lake, batch, {DAY: ["repeated"]}, fence=fence)
    add(lake, 3, {NEXT_DAY: ["dead"]}, "dead_letters", fence=fence)
    everything = [f"new-{n}" for n in range(3)] + [f"old-{n}" for n in range(3)]
    assert read(lake) == everything

    events, *_ = compact(lake, LARGE)
    assert (events.files_before, events.files_after) == (6, 2)
    assert read(lake) == everything
    retain(lake, timedelta(days=1), datetime(NEXT_DAY.year, NEXT_DAY.month, NEXT_DAY.day + 1, 12, tzinfo=UTC))
    assert read(lake) == everything[:3]
    assert [row.job for row in read_dead_letters(spark, lake.root).collect()] == ["dead"]

    held = open_table(lake)
    install_fence(lake)
    with pytest.raises(ReplacedError):
        held.publish(staged_files(lake, "events", {DAY: ["late"]}), checkpoint=lake.name(), batch=4, fence=fence)
    assert read(lake) == everything[:3]
