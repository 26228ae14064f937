"""A process that a handler forks is no second worker: it ends where it would come back to us."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.support.loops import loop_environment, on_a_loop
from tests.support.patience import PATIENCE_S, scaled
from tests.support.processes import Processes
from tests.support.servers import RedisServer
from tests.workers.forking_program import ENDING
from tests.workers.scene import add

PROGRAM = """
import os, sys, anyio
from tests.workers.scene import make_job
from workers.loop.handlers import invoker
from workers.loop.execution import execute

def leave(how):
    if how == "raises":
        raise ValueError("in the child")
    if how == "exits":
        sys.exit(7)
    if how == "exits in words":
        sys.exit("no")

def fork(how):
    child = os.fork()
    if not child:
        print("forked", flush=True)
        return leave(how)
    print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

def plain(job):
    fork(job.fields[b"how"].decode())

async def asynchronous(job):
    fork(job.fields[b"how"].decode())

async def main():
    for how in sys.argv[2:]:
        invoke = invoker(globals()[sys.argv[1]], 2)
        verdict = await execute(invoke, make_job(b"how", how.encode()))
        print(verdict.outcome.value, flush=True)

anyio.run(main)
"""
CODES = {"returns": 0, "raises": 1, "exits": 7, "exits in words": 1}
"""How a child leaves the handler, and the exit code that it ends with."""


@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
def test_a_fork_of_a_handler_ends_without_a_verdict(kind: str) -> None:
    """One process runs a job for each way to leave. A child that went on would run the others, and be seen."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, *CODES],
        capture_output=True,
        text=True,
        timeout=scaled(PATIENCE_S),
        check=False,
    )
    expected = [line for code in CODES.values() for line in ("forked", f"child: {code}", "ack")]
    assert ended.stdout.splitlines() == expected
    assert ended.returncode == 0
    assert "ValueError: in the child" in ended.stderr


# ---- a worker whose jobs start processes

FORKING = "tests.workers.forking_program"
KINDS = pytest.mark.parametrize(("target", "loop"), on_a_loop([f"{FORKING}:worker", f"{FORKING}:in_thread"]))


@KINDS
@pytest.mark.anyio
@pytest.mark.processes
async def test_a_job_that_terminates_its_children_does_not_stop_the_worker(
    server: RedisServer, client: Redis, processes: Processes, tmp_path: Path, target: str, loop: str
) -> None:
    worker = processes.worker(target, "--redis-url", server.url, env=loop_environment(loop, tmp_path))
    await worker.prints("worker started")
    await add(client, {"n": 1})
    for end in ENDING:
        await worker.prints(f"{end.__name__}: {-signal.SIGTERM}$")
    await add(client, {"n": 2})
    await worker.prints(f"(?s)({ENDING[-1].__name__}.*){{2}}")

    assert "stops:" not in worker.output
    worker.terminate()
    assert await worker.wait() == 0
    assert " read=2 acked=2" in worker.output
