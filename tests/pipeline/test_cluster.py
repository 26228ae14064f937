"""The same commands on one machine or many: a standalone cluster, and a Spark Connect server on it."""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.cluster import SPARK_HOME, Cluster
from tests.pipeline.journals import JOURNAL, connect, entries, rows, write_dead_letter, write_events
from tests.pipeline.stores import start_store
from tests.support.nursery import Nursery
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer, default_binary, started_server
from workers.runtime.options import USAGE_EXIT

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--spark-memory", "512m")
STORED = "s3://bucket/lake"
pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.matrix]


@pytest.fixture(scope="module")
async def cluster(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Start a cluster that all tests here share: starting one takes as long as using it."""
    folder = tmp_path_factory.mktemp("cluster")
    processes = Processes(folder, nursery)
    try:
        cluster = Cluster(processes, folder, await start_store(processes))
        await cluster.start()
        await cluster.start_connect()
        yield cluster
    finally:
        processes.end()


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """Start the packaged server, in the matrix too: Spark's machines are what differs here."""
    with started_server(default_binary()) as server:
        yield server


@pytest.fixture
def programs(processes: Processes, cluster: Cluster, redis: RedisServer) -> "Programs":
    """Start programs that use the cluster."""
    redis.reset()
    return Programs(processes, cluster, redis)


@dataclass(frozen=True)
class Programs:
    """Starts programs that use the cluster, and the server."""

    processes: Processes
    cluster: Cluster
    server: RedisServer

    def ingest(self, lake: str, *options: str, **env: str) -> Running:
        words = ("reaper", "pipeline", "ingest", "--lake", lake, *self._source)
        return self.processes.python("-m", *words, *options, env={**self.cluster.settings, **env}, name="ingest")

    def submit(self, lake: str) -> Running:
        program = ROOT / "reaper" / "__main__.py"
        words = ("--master", self.cluster.master, "--driver-memory", "512m", str(program), "pipeline", "ingest")
        submit = str(SPARK_HOME / "bin" / "spark-submit")
        return self.processes.start(
            submit, *words, "--lake", lake, *self._source, env=self.cluster.settings, name="submitted"
        )

    def analyse(self, lake: str, **where: str) -> Running:
        program = str(Path(__file__).with_name("cluster_program.py"))
        words = (program, lake, json.dumps(where))
        return self.processes.python(*words, env=self.cluster.settings, name="analysis")

    @property
    def _source(self) -> tuple[str, ...]:
        return ("--redis-url", self.server.url, "--available-now", "-o", "json")


def write_trouble(server: RedisServer, job: str) -> None:
    """Add what is told of a job that was recovered once."""
    common = {"group": "billing", "entry": "1-0", "consumer": "host~0123456789ab", "delivery": 1}
    with connect(server) as client:
        for event, more in (("recovered", {"idle_ms": 50, "visibility_ms": 40}), ("acked", {"delivery": 2})):
            fields: dict[Any, Any] = {"event": event, "job": job, **common, **more}
            client.xadd(JOURNAL, fields)


async def test_a_python_without_pyarrow_is_named_once(programs: Programs, tmp_path: Path) -> None:
    python = str(python_without_pyarrow(tmp_path))
    lake, where = str(tmp_path / "none"), ("--spark-master", programs.cluster.master)
    lacking = programs.ingest(lake, *where, *SMALL, PYSPARK_PYTHON=python)
    assert await lacking.wait() == USAGE_EXIT
    assert len([line for line in lacking.output.splitlines() if "has no pyarrow: install" in line]) == 1
    assert "retrying" not in lacking.output


async def test_one_lake_is_filled_by_a_cluster_then_by_spark_submit_then_through_spark_connect(
    programs: Programs, tmp_path: Path
) -> None:
    server, cluster, lake = programs.server, programs.cluster, str(tmp_path / "lake")
    write_events(server, 500)
    write_dead_letter(server, "job-2")
    told = await result(
        programs.ingest(lake, "--spark-master", cluster.master, "--max-entries-per-trigger", "300", *SMALL)
    )
    assert (told["events"], told["dead_letters"], told["malformed"], told["batches"]) == (500, 1, 0, 2)

    write_events(server, 50, start=500)
    told = await result(programs.submit(lake))
    assert (told["events"], told["batches"]) == (50, 1)

    write_events(server, 200, start=550)
    told = await result(programs.ingest(lake, "--spark-remote", cluster.remote, "--max-entries-per-trigger", "150"))
    assert (told["events"], told["dead_letters"], told["malformed"], told["batches"]) == (200, 0, 0, 2)
    assert rows(Path(lake)) == entries(server)


@pytest.mark.parametrize("is_stored", [False, True], ids=["folder", "object-store"])
async def test_a_lake_is_analysed_by_a_cluster_and_through_spark_connect(
    programs: Programs, tmp_path: Path, is_stored: bool
) -> None:
    lake, state = (STORED, ("--lake-state", str(tmp_path / "state"))) if is_stored else (str(tmp_path / "lake"), ())
    write_events(programs.server, 100)
    write_trouble(programs.server, "job-1")
    told = await result(programs.ingest(lake, "--spark-master", programs.cluster.master, *state, *SMALL))
    assert (told["events"], told["dead_letters"]) == (102, 0)

    everything = {"events": 102, "jobs": 100, "troubled": 1}
    assert await result(programs.analyse(lake, master=programs.cluster.master)) == everything
    assert await result(programs.analyse(lake, remote=programs.cluster.remote)) == everything


def python_without_pyarrow(folder: Path) -> Path:
    """Return a Python that has all that this one has, but for pyarrow."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'pyarrow':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={folder}:$PYTHONPATH exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return program


async def result(running: Running) -> dict[str, Any]:
    """Wait for the end of a program and return the JSON it has printed last."""
    assert await running.wait() == 0, running.output
    found: dict[str, Any] = json.loads([line for line in running.output.splitlines() if line.startswith("{")][-1])
    return found
