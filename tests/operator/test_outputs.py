"""Outputs that are full, closed, or read by nobody: no traceback, no loop without an end, an exit code that tells."""

import errno
import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, TextIO

import anyio.to_thread
import pytest

from tests.operator.dead import give_up
from tests.operator.every import PAIR
from tests.scripts.scene import Scene
from tests.support.processes import ROOT
from tests.support.servers import RedisServer
from workers.runtime import logs
from workers.runtime.printing import UNREAD_EXIT

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

CLOSED, FULL, UNREAD = ">&-", ">/dev/full", "unread"
SAID = {
    CLOSED: (2, f"error: standard output cannot be written to: {os.strerror(errno.EBADF)}.\n"),
    FULL: (2, f"error: standard output cannot be written to: {os.strerror(errno.ENOSPC)}.\n"),
    UNREAD: (UNREAD_EXIT, ""),
}
outputs = pytest.mark.parametrize("output", SAID)


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


@outputs
@pytest.mark.parametrize("machine", [(), ("--json",)], ids=["people", "machines"])
async def test_who_looks_again_and_again_ends(server: RedisServer, output: str, machine: tuple[str, ...]) -> None:
    assert await _run(server.url, output, "status", "--watch", "0.1", *machine, *PAIR) == SAID[output]


@outputs
@pytest.mark.parametrize("words", [("acl", *PAIR), ("--help",), ("status", "--help"), ("--version",)], ids=" ".join)
async def test_what_is_printed_once_fails_in_the_same_way(output: str, words: tuple[str, ...]) -> None:
    assert await _run("redis://127.0.0.1:1", output, *words) == SAID[output]


@outputs
@pytest.mark.parametrize("machine", [(), ("--json",)], ids=["people", "machines"])
async def test_what_acts_does_all_of_it_and_then_says_that_nobody_could_be_told(
    scene: Scene, server: RedisServer, output: str, machine: tuple[str, ...]
) -> None:
    ids = [await give_up(scene) for _ in range(3)]
    said = await _run(server.url, output, "dead-letters", "redrive", *ids, *machine, *PAIR)
    assert (said, await scene.client.xlen(scene.keys.dead)) == (SAID[output], 0)


@pytest.mark.parametrize("place", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize(
    ("words", "code"),
    [(("nonsense",), 2), (("acl",), 2), (("acl", *PAIR), 0), (("pipeline", "trim", "--lake", "none"), 2)],
)
async def test_nobody_to_tell_of_errors_changes_nothing(place: str, words: tuple[str, ...], code: int) -> None:
    """Not the exit code either: Python's own would be 120."""
    assert await _run("redis://127.0.0.1:1", place, *words) == (code, "")


async def test_a_terminal_that_lacks_a_character_is_shown_its_escape(server: RedisServer) -> None:
    said = await _run(server.url, "", "status", *PAIR, PYTHONIOENCODING="ascii:strict")
    assert said == (1, "")  # degraded: there is no leader


# --- logs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, TextIO]]:
    """A pipe that is full: the end that nobody reads, and the other one."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    while True:
        try:
            os.write(writing, b"." * 4096)
        except BlockingIOError:
            break
    os.set_blocking(writing, True)
    with os.fdopen(writing, "w", buffering=1) as place:
        monkeypatch.setattr(logs, "READER_PATIENCE_S", 0.01)
        yield reading, place
    os.close(reading)


def _emit(handler: logging.Handler, text: str) -> None:
    handler.emit(logging.LogRecord("shop", logging.INFO, __file__, 1, text, None, None))


@pytest.mark.parametrize("log_format", logs.LOG_FORMATS)
def test_a_reader_that_hangs_does_not_stop_who_logs_and_is_told_what_was_lost(
    hanging: tuple[int, TextIO], log_format: str
) -> None:
    reading, place = hanging
    handler = logs.handler_for(log_format)
    handler.setStream(place)
    _emit(handler, "first")
    _emit(handler, "second")
    assert set(os.read(reading, 100_000)) == {ord(".")}
    _emit(handler, "third")
    lines = os.read(reading, 100_000).decode().splitlines()
    assert len(lines) == 3
    assert lines[0] == ""
    assert "2 log lines were lost" in lines[1]
    assert "third" in lines[2]
