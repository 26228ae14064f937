"""The recipes of `docs/recipes.md`, run with the frameworks: a worker is killed, and each job is done once.

Those of Node are collected where ``node`` finds their packages: `make test-matrix` installs them beside Python's, where
there is ``npm``; elsewhere ``NODE_PATH`` names the folder.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.faults import scene
from tests.support.processes import ROOT, Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.matrix]

JOBS, HELD = 6, 2
NODE = shutil.which("node")
NODE_ENV = {"NODE_PATH": os.environ.get("NODE_PATH", str(Path(sys.prefix, "node", "node_modules")))}


def _node_has(package: str) -> bool:
    asked = [NODE or "", "-e", f"require.resolve({package!r})"]
    env = os.environ | NODE_ENV
    return NODE is not None and subprocess.run(asked, capture_output=True, env=env, check=False).returncode == 0


OF_NODE = {"ioredis": "ioredis", "node_redis": "redis", "redis_streams_broker": "redis-streams-broker"}
"""The package that each needs."""
FRAMEWORKS = [
    *("faststream", "taskiq", "walrus", "coredis", "redis_streams"),
    *(framework for framework, package in OF_NODE.items() if _node_has(package)),
]

READS_ITS_HISTORY = {"redis_streams"}
"""Whose deliveries Redis counts twice."""


def start(processes: Processes, server: RedisServer, framework: str, *words: str, hold: int = -1) -> Running:
    """Start a recipe's program: with the interpreter itself, as a user's program is."""
    interpreter, ending = (NODE or "", "js") if framework in OF_NODE else (sys.executable, "py")
    program = str(ROOT / "docs" / "examples" / f"{framework}_worker.{ending}")
    env = {"REDIS_URL": server.url, "HOLD": str(hold), **NODE_ENV}
    return processes.start(interpreter, program, *words, env=env, name=" ".join((framework, *words)))


def numbers(worker: Running, what: str) -> list[int]:
    """Return the jobs of which a worker says ``what``."""
    return [int(line.split()[1]) for line in worker.output.splitlines() if line.startswith(f"{what} ")]


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_what_a_killed_worker_held_is_run_by_the_next_one_and_nothing_twice(
    server: RedisServer, client: Redis, processes: Processes, framework: str
) -> None:
    if framework != "walrus":  # which makes the stream, and its group, by itself
        await scene.create_group(client)
    async with scene.running_reaper(server.url, foreign_workers=framework in READS_ITS_HISTORY) as reaper:
        await scene.leads(reaper)
        assert await start(processes, server, framework, "produce", str(JOBS)).wait() == 0
        first = start(processes, server, framework, "work", "first", hold=HELD)
        await first.prints(f"start {HELD}")
        first.kill()
        await scene.make_overdue(client, "first")
        second = start(processes, server, framework, "work", "second")
        await scene.nothing_left(client)
        await wait_until(lambda: len(numbers(first, "done") + numbers(second, "done")) >= JOBS, "all are done")
    assert (numbers(first, "done"), sorted(numbers(second, "done"))) == ([0, 1], [2, 3, 4, 5])
    (recovered,) = await scene.events(client, "recovered")
    assert recovered.data["consumer"] == "first"


async def test_a_stream_that_walrus_made_is_served_before_its_first_job(
    server: RedisServer, client: Redis, processes: Processes
) -> None:
    assert await start(processes, server, "walrus", "produce", "0").wait() == 0
    assert (await client.xinfo_stream(scene.STREAM))["last-generated-id"] == b"0-1"
    async with scene.running_reaper(server.url):
        report = await scene.scanned_by_term_after(client, 0)
    assert report.refusal == ""
