"""Everything that Spark ships to other processes: pickled here, loaded and run where stream-reaper is not installed."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from reaper.pipeline.lake.batches import BatchWriter
from reaper.pipeline.lake.source import LAKE, JournalSource
from reaper.pipeline.lake.tables import create_tables, install_fence, lake_at
from reaper.pipeline.spark.shipping import ship_by_value
from tests.conftest import StartServer
from tests.pipeline.journals import JOURNAL, write_events, write_raw
from tests.pipeline.journals import rows as rows_in
from tests.pipeline.lakes import DAY, plan, written

_ELSEWHERE = """
import pickle, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("reaper", "workers"):
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
shipped = pickle.load(sys.stdin.buffer)
"""


@pytest.fixture(autouse=True)
def by_value() -> None:
    """Pickle as the commands do."""
    ship_by_value()


def run_elsewhere(shipped: Any, program: str) -> str:
    """Run a program that knows ``shipped``; return its output."""
    pickled = cloudpickle.dumps(shipped)  # type: ignore[no-untyped-call]
    words = [sys.executable, "-c", _ELSEWHERE + program]
    run = subprocess.run(words, input=pickled, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()
    return str(run.stdout, "utf-8").strip()


def test_a_task_reads_and_writes(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    write_events(server, 5)
    write_raw(server, JOURNAL, {"event": ""})
    source = JournalSource({"url": server.url, "streamPattern": JOURNAL, LAKE: str(tmp_path)})
    reader = source.streamReader(StructType())
    start = reader.initialOffset()
    (share,) = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    reader.stop()
    program = """
reader, share = shipped
(written,) = reader.read(share)
print(written.column("rows").to_pylist())
"""
    assert run_elsewhere((source.streamReader(StructType()), share), program) == "[5, 1]"


def test_the_planner_plans(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    write_events(server, 5)
    source = JournalSource({"url": server.url, "streamPattern": JOURNAL, LAKE: str(tmp_path)})
    program = """
source = shipped
reader = source.streamReader(None)
start = reader.initialOffset()
end = reader.latestOffset(start, reader.getDefaultReadLimit())
print(sum(len(share.ranges) for share in reader.partitions(start, end)))
"""
    assert run_elsewhere(source, program) == "1"


def test_a_batch_is_published(tmp_path: Path) -> None:
    layout = lake_at(tmp_path / "lake")
    create_tables(layout)
    fence = install_fence(layout)
    plan(layout, 0)
    files = written(layout, "events", {DAY: ["a", "b"]})
    writer = BatchWriter(layout, layout.name(), fence)
    assert run_elsewhere((writer, files), "writer, files = shipped\nwriter.publish(files, 0)") == ""
    assert len(rows_in(layout.root)) == 2
