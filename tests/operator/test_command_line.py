"""Every command has an example in its help, JSON, plain text without a terminal, and completion."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.operator.conftest import Command, run_command
from tests.operator.dead import give_up
from tests.operator.every import ALL, LEAVES, child_of, reaper_main, worker_main
from tests.operator.heartbeats import a_report, hold
from tests.scripts.scene import Scene
from tests.support.processes import ROOT
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio

PROGRAM = 'from reaper.cli.main import main; main(prog_name="reaper")'
SERVICES = frozenset({"reaper run", "worker run"})
"""They print nothing but log lines."""


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_help_says_in_one_line_what_it_does_and_ends_with_examples(name: str, command: click.Command) -> None:
    summary = (command.help or "").strip().partition("\n")[0]
    assert re.fullmatch(r"[A-Z][^.]{10,58}\..*|[A-Z][^.]{10,58}\.", summary), (name, summary)
    assert "…" not in summary
    printed = CliRunner().invoke(command, ["--help"], prog_name=name).stdout
    examples = printed.partition("  Examples:\n")[2].splitlines()
    assert examples
    assert all(line.startswith(f"    {name.split()[0]} ") for line in examples), examples


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_its_examples_can_be_typed(name: str, command: click.Command) -> None:
    root = reaper_main if name.startswith("reaper") else worker_main
    path = name.split()[1:]
    for line in (command.epilog or "").partition("Examples:\n")[2].splitlines():
        program, *words = shlex.split(line)
        assert words[: len(path)] == path, f"{line} is an example of something else"
        context = click.Context(root, info_name=program)
        current: click.Command = root
        while isinstance(current, click.Group):
            current = child_of(current, words.pop(0))
        current.make_context(current.name, words, parent=context)  # raises where a flag is unknown


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[name for name, _ in LEAVES])
def test_help_says_what_the_exit_code_means_and_it_prints_json(name: str, command: click.Command) -> None:
    assert re.search(
        r"^Exit status:\n  0  \w.*\n(?:  1  \w.*\n)?  2  wrong usage or settings\n", command.epilog or "", re.MULTILINE
    )
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert ({"-o", "--format"} <= flags) == (name not in SERVICES)


READING = [
    ("status", "--groups", "orders/billing"), ("doctor", "--groups", "orders/billing"),
    ("acl", "--groups", "orders/billing"), ("explain", "1-1", "--group", "orders/billing"),
    ("dead-letters", "list", "orders/billing"),
]  # fmt: skip


ACTING = [
    ("groups", "pause", "orders/billing"), ("groups", "resume", "orders/billing"),
    ("dead-letters", "redrive", "orders/billing", "--all", "--dry-run"),
    ("dead-letters", "delete", "orders/billing", "--all", "--yes"),
]  # fmt: skip


@pytest.mark.parametrize("words", [READING[0], ACTING[0]], ids=" ".join)
async def test_there_is_no_colour_where_nobody_sees_it(scene: Scene, reaper: Command, words: tuple[str, ...]) -> None:
    await hold(scene.client, a_report(), now_ms=await scene.now_ms())
    await give_up(scene)
    answer = await reaper(*words)
    assert answer.code in (0, 1)
    assert "\x1b" not in answer.out + answer.err


async def test_on_a_terminal_no_color_takes_the_colours_out(scene: Scene, server: RedisServer) -> None:
    await hold(scene.client, a_report(), now_ms=await scene.now_ms())
    coloured = await run_command(server.url, "doctor", colour=True)
    plain = await run_command(server.url, "doctor", colour=True, NO_COLOR="1")
    assert ("\x1b[" in coloured.out, "\x1b[" in plain.out) == (True, False)


@pytest.mark.parametrize(
    ("program", "typed", "completed"),
    [
        ("reaper", "reaper ex", "explain"),
        ("reaper", "reaper acl wor", "worker"),
        ("reaper", "reaper pipeline ingest --av", "--available-now"),
        ("reaper", "reaper compare --mode emb", "embedded/stream"),
        ("worker", "worker run x --recov", "--recovery"),
    ],
)
def test_the_shell_completes_what_is_typed(program: str, typed: str, completed: str) -> None:
    main = {"reaper": reaper_main, "worker": worker_main}[program]
    env = {
        f"_{program.upper()}_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    answer = CliRunner().invoke(main, [], prog_name=program, env=env)
    assert f"plain,{completed}" in answer.stdout.splitlines()


def test_the_line_that_the_docs_give_turns_completion_on(tmp_path: Path) -> None:
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if "_REAPER_COMPLETE=bash_source" in line)
    command = tmp_path / "reaper"
    command.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c '{PROGRAM}' \"$@\"\n", encoding="utf-8")
    command.chmod(0o755)
    typed = """COMP_WORDS=(reaper pipeline adv); COMP_CWORD=2; _reaper_completion reaper; echo "${COMPREPLY[@]}" """
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["/bin/bash", "-c", f"{line}\n{typed}"], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["advise"], "")
