"""The same commands on one machine or many: a standalone cluster, and a Spark Connect server on it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.pipeline.cluster import SPARK_HOME, Cluster
from tests.pipeline.journals import JOURNAL, connect, entries, rows, write_dead_letter, write_events
from tests.pipeline.stores import start_store
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from workers.protocol.events import encode_data
from workers.runtime.options import USAGE_EXIT

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.matrix]


def write_trouble(server: RedisServer, job: str) -> None:
    """Add what is told of a job that was recovered once."""
    common = {"group": "billing", "entry": "1-0", "consumer": "host.0123456789ab", "delivery": 1}
    with connect(server) as client:
        for event, more in (("recovered", {"idle_ms": 50, "visibility_ms": 40}), ("acked", {"delivery": 2})):
            data = encode_data({**common, **more})
            client.xadd(JOURNAL, {"event": event, "job": job, "data": data})


async def test_ingestion_and_analysis_run_unchanged_on_a_cluster_and_through_spark_connect(
    processes: Processes, start_server: StartServer, tmp_path: Path
) -> None:
    server, lake, stored = start_server(), tmp_path / "lake", "s3://bucket/lake"
    cluster = Cluster(processes, tmp_path, await start_store(processes))
    await cluster.start()
    submitted = cluster.settings(tmp_path)

    def ingest(*where: str, name: str, lake: str = str(lake)) -> Running:
        words = ("reaper", "pipeline", "ingest", "--lake", lake, "--redis-url", server.url, "--available-now")
        return processes.python("-m", *words, "--json", *where, env=submitted, name=name)

    def submit(name: str) -> Running:
        program = ROOT / "reaper" / "__main__.py"
        words = ("--master", cluster.master, "--driver-memory", "512m", str(program), "pipeline", "ingest")
        flags = ("--lake", str(lake), "--redis-url", server.url, "--available-now", "--json")
        return processes.start(str(SPARK_HOME / "bin" / "spark-submit"), *words, *flags, env=submitted, name=name)

    def analyse(lake: str, **where: str) -> Running:
        program = str(Path(__file__).with_name("cluster_program.py"))
        return processes.python(program, lake, json.dumps(where), env=submitted, name="analysis")

    def ingest_elsewhere(python: Path) -> Running:
        words = ("reaper", "pipeline", "ingest", "--lake", str(tmp_path / "none"), "--redis-url", server.url)
        env = {**submitted, "PYSPARK_PYTHON": str(python)}
        return processes.python("-m", *words, "--master", cluster.master, "--heap", "512m", env=env, name="bare")

    lacking = ingest_elsewhere(python_without_pyarrow(tmp_path))
    assert await lacking.wait() == USAGE_EXIT
    assert len([line for line in lacking.output.splitlines() if "has no pyarrow: install" in line]) == 1
    assert "starts again" not in lacking.output

    write_events(server, 500)
    write_trouble(server, "job-1")
    write_dead_letter(server, "job-2")
    first = ingest("--master", cluster.master, "--max-entries-per-trigger", "300", "--heap", "512m", name="classic")
    await cluster.start_connect()
    told = await result(first)
    assert (told["events"], told["dead_letters"], told["malformed"], told["batches"]) == (502, 1, 0, 2)

    write_events(server, 50, start=500)
    told = await result(submit("submitted"))
    assert (told["events"], told["batches"]) == (50, 1)
    on_cluster = analyse(str(lake), master=cluster.master)

    write_events(server, 200, start=550)
    told = await result(ingest("--remote", cluster.remote, "--max-entries-per-trigger", "150", name="remote"))
    assert (told["events"], told["dead_letters"], told["malformed"], told["batches"]) == (200, 0, 0, 2)
    assert rows(lake) == entries(server)
    assert (await result(on_cluster))["troubled"] == 1
    everything = {"events": 752, "jobs": 750, "troubled": 1}
    assert await result(analyse(str(lake), remote=cluster.remote)) == everything

    told = await result(
        ingest("--master", cluster.master, "--state", str(tmp_path / "state"), "--heap", "512m", name="s3", lake=stored)
    )
    assert (told["events"], told["dead_letters"]) == (752, 1)
    assert await result(analyse(stored, master=cluster.master)) == everything
    assert await result(analyse(stored, remote=cluster.remote)) == everything


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
