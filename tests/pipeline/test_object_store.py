"""A lake in an object store holds what a lake in a folder holds, and has one ingester, too."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio.to_thread
import polars as pl
import pytest
from pyspark.sql import SparkSession

from reaper.pipeline.lake.delta import ReplacedError
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.maintenance import Upkeep
from reaper.pipeline.lake.schema import EVENTS
from reaper.pipeline.lake.tables import (
    NoLakeError,
    create_tables,
    existing_lake,
    install_fence,
    lake_at,
    read_dead_letters,
    read_events,
)
from tests.pipeline.lakes import DAY, add, open_table, written
from tests.pipeline.stores import start_store
from tests.support.processes import Processes

pytestmark = [pytest.mark.anyio, pytest.mark.processes]
LARGE = 10**9
NEXT_DAY = DAY + timedelta(days=1)


@pytest.fixture
async def lake(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """The address of a lake in a bucket of a server of the test."""
    for name, value in (await start_store(processes)).items():
        monkeypatch.setenv(name, value)
    return lake_at("s3://bucket/some/lake", tmp_path / "state")


def read(layout: Layout, table: str = "events") -> list[str]:
    """Return the jobs of all rows, as another program than Spark reads the table."""
    options = {"aws_endpoint_url": os.environ["AWS_ENDPOINT_URL"], "aws_allow_http": "true"}
    found = pl.scan_delta(layout.table(table), storage_options=options).select("job").collect()
    return sorted(found.to_series().to_list())


@pytest.fixture
def tasks_know_the_store(lake: Layout, spark: SparkSession) -> Iterator[None]:
    """Give the variables that `lake` has set to Spark's tasks, because Java started before."""
    assert lake.root.startswith("s3://")
    given = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    environment = spark.sparkContext.environment
    environment.update(given)
    yield
    for name in given:
        del environment[name]


@pytest.mark.usefixtures("tasks_know_the_store")
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

    open_table(lake).compact(LARGE)
    assert len(open_table(lake).files()) == 2
    assert read(lake) == everything
    noon = datetime(NEXT_DAY.year, NEXT_DAY.month, NEXT_DAY.day, 12, tzinfo=UTC)
    for days in (0, 1):
        Upkeep(lake, LARGE, timedelta(days=1)).look(3, noon + timedelta(days=days))
    assert read(lake) == everything[:3]
    assert [row.job for row in read_dead_letters(spark, lake.root).collect()] == ["dead"]
    read_again = read_events(spark, lake.root)
    assert read_again.schema == EVENTS
    assert sorted((row.job, row.date, row.run_ms) for row in read_again.collect()) == [
        (job, NEXT_DAY, None) for job in everything[:3]
    ]

    held = open_table(lake)
    install_fence(lake)
    with pytest.raises(ReplacedError):
        held.publish(written(lake, "events", {DAY: ["late"]}), checkpoint=lake.name(), batch=4, fence=fence)
    assert read(lake) == everything[:3]
