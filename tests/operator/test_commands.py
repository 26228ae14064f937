"""The command line itself: help, lazily imported commands, and the page of all settings."""

import pytest
from click.testing import CliRunner

from docs import configuration
from reaper.cli.main import main
from tests.operator.conftest import run_command
from tests.support.processes import Processes

pytestmark = pytest.mark.anyio

NOWHERE = "redis://127.0.0.1:1/0"
COMMANDS = [
    "acl", "compare", "dead-letters", "demo", "doctor", "drain", "drill", "explain", "groups", "pipeline",
    "replicas", "run", "status", "watch",
]  # fmt: skip


def test_help_lists_every_command() -> None:
    lines = CliRunner().invoke(main, ["--help"]).stdout.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in lines] == COMMANDS


async def test_a_misspelt_command_is_rejected() -> None:
    answer = await run_command(NOWHERE, "statsu")
    assert (answer.code, "error: no such command 'statsu'" in answer.err) == (2, True)


async def test_drill_and_demo_are_not_imported_for_anything_else(processes: Processes) -> None:
    modules = "[name for name in ('reaper.drill', 'reaper.service') if name in sys.modules]"
    look = f"import sys, reaper.cli.main; print({modules})"
    program = processes.python("-c", look)
    assert (await program.wait(), program.output) == (0, "[]\n")


def test_the_page_of_all_settings_is_up_to_date() -> None:
    assert configuration.FILE.read_text(encoding="utf-8") == configuration.document()
