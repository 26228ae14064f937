"""Files that a command writes at its end: a folder that does not exist is rejected before anything else is done."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.operator.conftest import run_command
from tests.operator.every import LEAVES
from workers.runtime.options import output_option

pytestmark = pytest.mark.anyio

NOWHERE = "redis://127.0.0.1:1/0"  # a command that gets as far as Redis fails in another way
WRITING = {"reaper drill", "reaper demo", "reaper compare", "reaper pipeline report"}
READ = {"--config", "--trace"}
FOLDERS = {"--files"}


def test_no_file_that_is_written_escapes_these_tests() -> None:
    """Each path is read, or is a folder, or comes from `output_option`."""
    files = {
        (name, option.opts[0]): option.callback
        for name, command in LEAVES
        for option in command.params
        if isinstance(option.type, click.Path) and option.type.file_okay
    }
    ours = next(iter(output_option()(click.command()(lambda: None)).params)).callback
    assert {name for (name, _), callback in files.items() if callback is ours} == WRITING
    assert {option for (_, option), callback in files.items() if callback is not ours} == READ | FOLDERS


@pytest.mark.parametrize("name", sorted(WRITING))
async def test_a_file_that_cannot_be_written_is_rejected_before_the_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for path, why in (("gone/out", "there is no folder 'gone'"), ("folder", "File 'folder' is a directory")):
        answer = await run_command(NOWHERE, *name.split()[1:], "--output", path)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith(f"error: invalid value for '--output': {why}")
    assert not (tmp_path / "gone").exists()


async def test_the_comparison_has_a_file_beside_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = await run_command(NOWHERE, "compare", "--output", "page.json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: --output page.json must not end with .json")


async def test_a_folder_that_cannot_be_is_rejected_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    answer = await run_command(NOWHERE, "compare", "--files", "file/folder")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "error: cannot use --files file/folder: Not a directory.\n"


FULL = Path("/dev/full")


@pytest.mark.processes
@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_a_full_disk_behind_standard_output_is_one_sentence() -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "reaper", "--version"],
            stdout=full, stderr=subprocess.PIPE, env=buffered, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "error: cannot read or write: No space left on device.\n")
