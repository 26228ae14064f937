"""The recipes of `docs/recipes.md`, run with the frameworks: a worker is killed, and each job is done once.

A recipe is collected if its library is installed. `make test-matrix` installs those of PyPI, and those of npm where
``npm`` is, and builds the programs in Go where ``go`` and the modules are. Symfony's is Debian's package
`php-symfony-redis-messenger`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.faults import scene
from tests.support.processes import ROOT, Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.matrix]

JOBS, HELD = 6, 2
EXAMPLES = ROOT / "docs" / "examples"
NODE, PHP = shutil.which("node") or "", shutil.which("php") or ""
ENV = {"NODE_PATH": os.environ.get("NODE_PATH", str(Path(sys.prefix, "node", "node_modules")))}


def _runs(*argv: str) -> bool:
    env = os.environ | ENV
    return bool(argv[0]) and subprocess.run(argv, capture_output=True, env=env, check=False).returncode == 0


def _commands() -> dict[str, list[str]]:
    """Return what starts each recipe whose library is installed."""
    of_python = ("faststream", "taskiq", "walrus", "coredis", "redis_streams")
    of_node = {"ioredis": "ioredis", "node_redis": "redis", "redis_streams_broker": "redis-streams-broker"}
    commands = {framework: [sys.executable, str(EXAMPLES / f"{framework}_worker.py")] for framework in of_python}
    for framework, package in of_node.items():
        if _runs(NODE, "-e", f"require.resolve({package!r})"):
            commands[framework] = [NODE, str(EXAMPLES / f"{framework}_worker.js")]
    if _runs(PHP, "-r", "require 'Symfony/Component/Messenger/Bridge/Redis/autoload.php';"):
        commands[SYMFONY] = [PHP, str(EXAMPLES / f"{SYMFONY}_worker.php")]
    built = {framework: Path(sys.prefix, "go", framework) for framework in ("go_redis", "watermill")}
    return commands | {framework: [str(program)] for framework, program in built.items() if program.exists()}


SYMFONY = "symfony_messenger"
COMMANDS = _commands()
READS_ITS_HISTORY = {"redis_streams"}
"""Whose deliveries Redis counts twice."""
AHEAD = {"watermill": 3}
"""How many entries a process holds, if it is more than the one that it runs."""


def start(
    processes: Processes, server: RedisServer, framework: str, *words: str, hold: int = -1, env: Mapping[str, str] = ENV
) -> Running:
    """Start a recipe's program: with the interpreter itself, as a user's program is."""
    settings = {"REDIS_URL": server.url, "HOLD": str(hold), **env}
    return processes.start(*COMMANDS[framework], *words, env=settings, name=" ".join((framework, *words)))


async def holds(client: Redis, number: int) -> bool:
    """Return whether so many entries are pending."""
    return len(await client.xpending_range(scene.STREAM, scene.GROUP, "-", "+", 100)) == number


def numbers(worker: Running, what: str) -> list[int]:
    """Return the jobs of which a worker says ``what``."""
    return [int(line.split()[1]) for line in worker.output.splitlines() if line.startswith(f"{what} ")]


@pytest.mark.parametrize("framework", COMMANDS)
async def test_what_a_killed_worker_held_is_run_by_the_next_one_and_nothing_twice(
    server: RedisServer, client: Redis, processes: Processes, framework: str
) -> None:
    if framework != "walrus":  # which makes the stream, and its group, by itself
        await scene.create_group(client)
    async with scene.running_reaper(server.url, max_deliveries=6 if framework in READS_ITS_HISTORY else 3) as reaper:
        await scene.holds(reaper)
        assert await start(processes, server, framework, "produce", str(JOBS)).wait() == 0
        first = start(processes, server, framework, "work", "first", hold=HELD)
        await first.prints(f"start {HELD}")
        await wait_until(lambda: holds(client, AHEAD.get(framework, 1)), "the worker has read ahead")
        first.kill()
        await scene.make_overdue(client, "first")
        second = start(processes, server, framework, "work", "second")
        await scene.nothing_left(client)
        await wait_until(lambda: len(numbers(first, "done") + numbers(second, "done")) >= JOBS, "all are done")
    assert (numbers(first, "done"), sorted(numbers(second, "done"))) == ([0, 1], [2, 3, 4, 5])
    recovered = await scene.events(client, "recovered")
    assert {event.data["consumer"] for event in recovered} == {"first"}
    assert len(recovered) == AHEAD.get(framework, 1)


async def test_a_stream_that_walrus_made_is_served_before_its_first_job(
    server: RedisServer, client: Redis, processes: Processes
) -> None:
    assert await start(processes, server, "walrus", "produce", "0").wait() == 0
    assert (await client.xinfo_stream(scene.STREAM))["last-generated-id"] == b"0-1"
    async with scene.running_reaper(server.url):
        report = await scene.scanned_by_term_after(client, 0)
    assert report.disabled == ""


if SYMFONY in COMMANDS:

    async def test_a_symfony_consumer_that_acknowledges_late_exits_and_its_job_was_run_twice(
        server: RedisServer, client: Redis, processes: Processes, tmp_path: Path
    ) -> None:
        released = tmp_path / "released"
        php, program = COMMANDS[SYMFONY]
        # A stand-in for PHP's own sleep(), in which the program holds its job: it returns once the file is there.
        stand_in = "function sleep($_) { while (!file_exists(getenv('RELEASED_BY'))) usleep(9999); putenv('HOLD=-1'); }"
        words = ["-d", "disable_functions=sleep", "-r", f"{stand_in} require '{program}';", "--", "work", "late"]
        env = {"REDIS_URL": server.url, "HOLD": "0", "RELEASED_BY": str(released)}
        await scene.create_group(client)
        async with scene.running_reaper(server.url) as reaper:
            await scene.holds(reaper)
            assert await start(processes, server, SYMFONY, "produce", "1").wait() == 0
            late = processes.start(php, *words, env=env)
            await late.prints("start 0")
            await scene.make_overdue(client, "late")
            second = start(processes, server, SYMFONY, "work", "second")
            await second.prints("done 0")
            await scene.nothing_left(client)
            released.touch()
            assert await late.wait() != 0
        assert numbers(late, "done") == [0]
        assert "Could not acknowledge redis message" in late.output
