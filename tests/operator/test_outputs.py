"""Outputs that are full, closed, or read by nobody: no traceback, no loop without an end, an exit code that tells."""

import errno
import os
import subprocess
import sys
from functools import partial
from typing import Any

import anyio.to_thread
import pytest

from tests.operator.every import PAIR
from tests.support.processes import ROOT
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

FULL, UNREAD = ">/dev/full", "unread"


async def _run(url: str, output: str, *words: str, program: str = "reaper", **env: str) -> tuple[int, str]:
    """Run a command with an output that fails; returns its exit code, and what it says on standard error."""
    reading, writing = os.pipe()
    os.close(reading)
    redirected, stdout = ("", writing) if output == UNREAD else (output, subprocess.PIPE)
    command = ["/bin/sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", program, *words]
    variables = {**os.environ, "REAPER_REDIS_URL": url, **env}
    options: dict[str, Any] = {"stdout": stdout, "stderr": subprocess.PIPE, "text": True, "check": False}
    run = partial(subprocess.run, command, cwd=ROOT, env=variables, **options)
    try:
        done = await anyio.to_thread.run_sync(run)
    finally:
        os.close(writing)
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [("acl", *PAIR), ("status", "-o", "json", *PAIR)], ids=" ".join)
async def test_a_full_disk_is_one_sentence(server: RedisServer, words: tuple[str, ...]) -> None:
    code, said = await _run(server.url, FULL, *words)
    assert code != 0
    assert os.strerror(errno.ENOSPC) in said


async def test_a_terminal_that_lacks_a_character_is_shown_its_escape(server: RedisServer) -> None:
    said = await _run(server.url, "", "status", *PAIR, PYTHONIOENCODING="ascii:strict")
    assert said == (1, "")  # degraded: there is no replica
