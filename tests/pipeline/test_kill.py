"""Kill -9 of the ingester, with its JVM, at random moments: the lake has every entry once all the same."""

import os
import random
from functools import partial
from pathlib import Path

import anyio
import pytest

from reaper.pipeline.lake.layout import Layout
from tests.conftest import StartServer
from tests.pipeline.journals import entries, rows, write_events
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.matrix]

ROUNDS = int(os.environ.get("STREAM_REAPER_KILL_ROUNDS", "3"))
QUICK_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
SEED = 4
IN_FLIGHT = 2_000


def start(processes: Processes, server: RedisServer, lake: Path, *flags: str) -> Running:
    """Start an ingester that makes many small batches."""
    limits = (
        "--trigger",
        "0.05",
        "--max-entries-per-trigger",
        "150",
        "--spark-memory",
        "512m",
        "--spark-master",
        "local[2]",
    )
    words = ("reaper", "pipeline", "ingest", "--lake", str(lake), "--redis-url", server.url)
    return processes.python("-m", *words, *limits, *flags, env=QUICK_JAVA, name="ingester")


async def test_a_lake_has_each_entry_once_however_often_its_ingester_is_killed(
    processes: Processes, start_server: StartServer, tmp_path: Path
) -> None:
    server, layout = start_server(), Layout.of(tmp_path / "lake")
    moments = random.Random(SEED)
    written = killed_at_work = 0
    while killed_at_work < ROUNDS:  # on a busy machine, one may have done all of its work before it is killed
        write_events(server, IN_FLIGHT, start=written)
        written += IN_FLIGHT
        batches = started_batches(layout) + moments.randint(1, 4)
        ingester = start(processes, server, Path(layout.root))
        await wait_until(partial(has_started, layout, batches), "it is at work")
        await anyio.sleep(moments.uniform(0, 0.6))  # the moment within a batch
        ingester.kill()
        killed_at_work += len(rows(layout.root)) < written

    last = start(processes, server, Path(layout.root))
    await wait_until(lambda: len(rows(layout.root)) >= written, "everything is ingested")
    last.terminate()
    assert await last.wait() == 0, last.output
    assert rows(layout.root) == entries(server)
    assert len(entries(server)) == written >= ROUNDS * IN_FLIGHT


def has_started(layout: Layout, batches: int) -> bool:
    return started_batches(layout) >= batches


def started_batches(layout: Layout) -> int:
    """Return how many batches Spark has begun, ended or not."""
    return sum(1 for _ in (layout.checkpoint / "offsets").glob("[0-9]*"))
