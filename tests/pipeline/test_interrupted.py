"""Ctrl-C while Spark starts or works: without a word, at once, and neither Java nor a folder stays behind."""

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from tests.conftest import StartServer
from tests.pipeline.journals import rows, write_events
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.runtime.options import INTERRUPTED_EXIT

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.matrix]

STARTING = "starting Spark …\n"


def _ingest(processes: Processes, server: RedisServer, lake: Path, *flags: str) -> Running:
    words = ("pipeline", "ingest", "--lake", str(lake), "--redis-url", server.url, "--spark-memory", "512m")
    return processes.python("-m", "reaper", *words, "--spark-master", "local[2]", *flags)


def _descendants(pid: int) -> set[int]:
    rows = subprocess.run(
        ["/bin/ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    parents = {int(child): int(parent) for child, parent in map(str.split, rows)}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


async def _below(running: Running) -> set[int]:
    return await anyio.to_thread.run_sync(_descendants, running.pid)


def _are_gone(pids: set[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def _ends_with_java(running: Running, code: int) -> None:
    java = await _below(running)
    assert java
    running.interrupt()
    assert await running.wait() == code
    await wait_until(partial(_are_gone, java), "Java has ended, too")


async def test_while_java_starts(processes: Processes, start_server: StartServer, tmp_path: Path) -> None:
    server, lake = start_server(), tmp_path / "lake"
    write_events(server, 100)
    running = _ingest(processes, server, lake)
    await wait_until(partial(_below, running), "Java is starting")
    await _ends_with_java(running, 0)
    assert running.output == STARTING
    loaded = _ingest(processes, server, lake, "--available-now")
    assert await loaded.wait() == 0
    report = processes.python(
        "-m", "reaper", "pipeline", "report", "--lake", str(lake), "--output", str(tmp_path / "r.html")
    )
    await wait_until(partial(_below, report), "Java is starting")
    await _ends_with_java(report, INTERRUPTED_EXIT)
    assert report.output == STARTING


async def test_while_it_works(processes: Processes, start_server: StartServer, tmp_path: Path) -> None:
    server, lake = start_server(), tmp_path / "lake"
    write_events(server, 100)
    running = _ingest(processes, server, lake, "--trigger", "0.1")
    await wait_until(partial(rows, lake), "the first batch is in the lake")
    await _ends_with_java(running, 0)
    assert running.output.splitlines()[-1].startswith("100 events, ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_a_comparison_puts_its_folders_and_processes_away(
    processes: Processes, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    words = ("compare", "--scenario", "one-crash", "--mode", "embedded/stream", "--output", str(tmp_path / "c.html"))
    running = processes.python("-m", "reaper", *words, env={"TMPDIR": str(folder)})
    await wait_until(lambda: list(folder.glob("reaper-drill-*/*")), "a drill is played")
    below = await _below(running)
    assert below
    os.kill(running.pid, number)
    assert await running.wait() == INTERRUPTED_EXIT
    assert list(folder.iterdir()) == []
    await wait_until(partial(_are_gone, below), "all that it has started has ended")
    assert running.output == "drill 1 of 1: one-crash, embedded/stream\n"
