"""``reaper top``: what it shows, and where it refuses to run."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace

import anyio.to_thread
import pytest
from rich.console import Console

from reaper.cli import top
from reaper.cli.top import screen
from reaper.operations.judgement import Problem, Trouble
from reaper.operations.state import Count, GroupState, Snapshot, SourceState
from tests.operator.conftest import Command, run_command
from tests.operator.heartbeats import a_replica, a_report, elect
from tests.scripts.scene import Scene
from tests.support.processes import ROOT
from tests.support.servers import RedisServer, free_port
from workers.protocol.errors import ConfigurationError

pytestmark = pytest.mark.anyio

GROUP = GroupState(
    stream="orders",
    group="billing",
    mode="reaper",
    main=SourceState(exists=True, ready=Count(7), oldest_ready_ms=4_000, pending=3, oldest_pending_ms=90_000),
    dead_letters=2,
    recovered=10,
)
SNAPSHOT = Snapshot(
    now_ms=100_000,
    namespace="reaper",
    server="Redis 7.0.15",
    holder="alice-1-abc.0a@10000",
    lease_left_ms=7_000,
    replicas=(a_replica("alice", a_report(), at_ms=99_000),),
    groups=(GROUP,),
)


def _shown(snapshot: Snapshot, *problems: Problem, before: Snapshot | None = None, failure: str = "") -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(screen(snapshot, problems, before, failure=failure))
    return console.export_text()


def test_leader_and_groups_are_on_one_screen() -> None:
    lines = _shown(SNAPSHOT).splitlines()
    assert lines[0].startswith("reaper  Redis 7.0.15  leader alice-1-abc  term 7  lease 7.0 s  0 followers")
    row = next(line.split() for line in lines if "orders/billing" in line)
    assert row == ["orders/billing", "reaper", "7", "4.0", "s", "3", "1.5", "min", "0", "0/0", "2", "10"]


@pytest.mark.parametrize("columns", [80, 100])
def test_in_a_narrow_terminal_no_figure_is_cut(columns: int) -> None:
    pair = "a-stream-with-a-long-name/and-a-group-of-forty"
    stream, _, group = pair.partition("/")
    busy = replace(GROUP, stream=stream, group=group, dead_letters=12_345, recovered=123_456, paused=True)
    console = Console(width=columns, record=True, file=io.StringIO())
    console.print(screen(replace(SNAPSHOT, groups=(busy, GROUP)), (), SNAPSHOT, width=columns))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= columns
    name = next(number for number, line in enumerate(lines) if pair in line)
    assert lines[name].split()[1:] == ["reaper", "paused"]
    assert lines[name + 1].split() == ["7", "4.0", "s", "3", "1.5", "min", "0", "0/0", "12345", "123456"]
    assert lines[name - 1].split() == list(top.COLUMNS[2:])


def test_what_is_wrong_is_said_once_of_many_groups_and_comes_before_them() -> None:
    groups = tuple(replace(GROUP, stream=f"orders-{number}") for number in range(50))
    problems = [Problem(Trouble.PAUSED, group.pair, "recovery is paused") for group in groups]
    lines = _shown(replace(SNAPSHOT, groups=groups), *problems).splitlines()
    assert lines[1].startswith("- orders-0/billing, orders-1/billing, orders-2/billing and 47 more groups: recovery is")


def test_recoveries_have_a_rate_since_the_look_before() -> None:
    before = replace(SNAPSHOT, now_ms=98_000, groups=(replace(GROUP, recovered=4),))
    row = next(line.split() for line in _shown(SNAPSHOT, before=before).splitlines() if "orders/billing" in line)
    assert row[-1] == "3.0"


def test_problems_and_outages_are_told() -> None:
    told = _shown(SNAPSHOT, Problem(Trouble.PAUSED, "orders/billing", "recovery is paused"))
    assert "- orders/billing: recovery is paused" in told
    assert "unreachable: gone" in _shown(SNAPSHOT, failure="gone")


def test_names_from_outside_are_no_markup() -> None:
    odd = replace(SNAPSHOT, groups=(replace(GROUP, stream="[red]x[/red]\x1b[2J"),))
    assert "[red]x[/red]\\x1b[2J/billing" in _shown(odd)


async def test_without_a_terminal_it_says_what_to_use(reaper: Command) -> None:
    answer = await reaper("top")
    assert (answer.code, "use `reaper status --watch 1`" in answer.err) == (2, True)


async def test_for_machines_it_prints_the_status_a_line(reaper: Command) -> None:
    answer = await reaper("top", "--json", "--rounds", "2", "--interval", "0.1", "--groups", "orders/billing")
    assert answer.code == 0
    assert [json.loads(line)["status"] for line in answer.out.splitlines()] == ["degraded", "degraded"]


async def test_on_a_terminal_it_draws_until_it_is_told_to_end(scene: Scene, server: RedisServer) -> None:
    await elect(scene.client, a_report(), now_ms=await scene.now_ms())
    ours, theirs = pty.openpty()
    program = _start(server.url, theirs)
    os.close(theirs)
    try:
        drawn = b""
        while b"alice-1-abc" not in drawn or b"orders/billing" not in drawn:
            drawn += await anyio.to_thread.run_sync(os.read, ours, 65_536)
        program.send_signal(signal.SIGINT)
        left = await anyio.to_thread.run_sync(_read_to_the_end, ours)
        assert await anyio.to_thread.run_sync(program.wait) == 0
        assert b"Traceback" not in drawn + left
        assert b"\x1b[?1049l" in left, "the terminal is given back as it was"
    finally:
        program.kill()
        program.wait()
        os.close(ours)


def _start(url: str, terminal: int) -> "subprocess.Popen[bytes]":
    env = {**os.environ, "REAPER_REDIS_URL": url, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    words = [sys.executable, "-m", "reaper", "top", "--interval", "0.1"]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, env=env, cwd=ROOT)


def _read_to_the_end(terminal: int) -> bytes:
    found = b""
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # what a terminal says once nobody is at its other end
            return found
        if not part:
            return found
        found += part


async def test_an_unreachable_server_is_2() -> None:
    answer = await run_command(f"redis://127.0.0.1:{free_port()}/0", "top", "--json", "--rounds", "1")
    assert answer.code == 2


def test_a_missing_extra_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich.live", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'stream-reaper\[top\]'"):
        top._screen()
