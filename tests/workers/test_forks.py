"""A process that a handler forks is no second worker: it ends where it would come back to us."""

import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE_S, scaled

PROGRAM = """
import os, sys, anyio
from tests.workers.scene import make_job
from workers.loop.around import invoker_inside
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
    fork(sys.argv[2])

async def asynchronous(job):
    fork(sys.argv[2])

def around(job):
    try:
        yield
    finally:
        print("around", flush=True)

async def around_async(job):
    try:
        yield
    finally:
        print("around", flush=True)

async def main():
    arounds = [around, around_async] if sys.argv[3] == "inside" else []
    verdict = await execute(invoker_inside(arounds, globals()[sys.argv[1]], 2), make_job())
    print(verdict.outcome.value, flush=True)

anyio.run(main)
"""


@pytest.mark.parametrize("where", ["bare", "inside"])
@pytest.mark.parametrize(("how", "code"), [("returns", 0), ("raises", 1), ("exits", 7), ("exits in words", 1)])
@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
def test_what_a_handler_forks_ends_without_a_verdict(kind: str, how: str, code: int, where: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, how, where],
        capture_output=True,
        text=True,
        timeout=scaled(PATIENCE_S),
        check=False,
    )
    around = ["around", "around"] if where == "inside" else []
    assert ended.stdout.splitlines() == ["forked", f"child: {code}", *around, "ack"]
    assert ended.returncode == 0
    assert ("ValueError: in the child" in ended.stderr) == (how == "raises")
