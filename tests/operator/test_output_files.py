"""Files that a command writes at its end: what cannot be written is refused before anything else is done."""

import errno
import os
from pathlib import Path

import click
import pytest

from tests.operator.conftest import run_command
from tests.operator.every import LEAVES
from workers.protocol.errors import ConfigurationError
from workers.runtime.output_files import OutputFile, output_file

pytestmark = pytest.mark.anyio

NOWHERE = "redis://127.0.0.1:1/0"  # whoever gets as far as asking Redis says something else
WRITING = (
    ("reaper drill", "--output"),
    ("reaper demo", "--output"),
    ("reaper compare", "--output"),
    ("reaper pipeline report", "--output"),
)
READ = {"--config", "--trace"}
FOLDERS = {"--files"}


def _names_in(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


def test_no_file_that_is_written_escapes_these_tests() -> None:
    """What is named is read, or a folder, or comes from `output_file`."""
    files = {
        (name, option.opts[0]): option.callback
        for name, command in LEAVES
        for option in command.params
        if isinstance(option.type, click.Path) and option.type.file_okay
    }
    ours = next(iter(output_file("--any")(click.command()(lambda: None)).params)).callback
    assert {place for place, callback in files.items() if callback is ours} == set(WRITING)
    assert {option for (_, option), callback in files.items() if callback is not ours} == READ | FOLDERS


@pytest.mark.parametrize(("name", "option"), WRITING)
async def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    name: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for path, number in (("gone/out", errno.ENOENT), ("file/out", errno.ENOTDIR)):
        answer = await run_command(NOWHERE, *name.split()[1:], option, path)
        said = f"error: cannot write {option} {path}: {os.strerror(number)}.\n"
        assert (answer.code, answer.out, answer.err) == (2, "", said)
    assert _names_in(tmp_path) == ["file"]


@pytest.mark.parametrize("name", [name for name, option in WRITING if "report" not in name])
async def test_machines_are_told_in_json_wherever_they_say_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("-o", "json", "--output", "gone/out"), ("--output", "gone/out", "-o", "json")):
        answer = await run_command(NOWHERE, *name.split()[1:], *words)
        assert (answer.code, answer.err) == (2, "")
        assert answer.data["status"] == "invalid"
        assert answer.data["error"].startswith("cannot write --output gone/out")


async def test_the_comparison_looks_at_the_file_beside_its_page_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = await run_command(NOWHERE, "compare", "--output", "page.json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: --output page.json must not end with .json")
    (tmp_path / "page.json").mkdir()
    answer = await run_command(NOWHERE, "compare", "--output", "page.html")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "error: cannot write --output page.json: Is a directory.\n"
    assert _names_in(tmp_path) == ["page.json"]


def test_nothing_is_left_by_looking_and_what_is_there_stays(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("of before")
    OutputFile(there, "--output")
    OutputFile(tmp_path / "new", "--output")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("there", "of before")]


def test_what_nobody_may_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system is asked, for root may write what its mode forbids."""
    asked = []
    monkeypatch.setattr(os, "access", lambda path, _mode: asked.append(path))
    (tmp_path / "there").touch()
    for name in ("there", "new"):
        with pytest.raises(ConfigurationError, match=f"{name}: Permission denied"):
            OutputFile(tmp_path / name, "--output")
    assert asked == [tmp_path / "there", tmp_path]


def test_a_disk_that_is_full_by_then_is_a_sentence() -> None:
    file = OutputFile(Path("/dev/full"), "--output")
    with pytest.raises(ConfigurationError, match=r"^cannot write --output /dev/full: No space left on device\.$"):
        file.write("the page")


async def test_a_folder_that_cannot_be_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    answer = await run_command(NOWHERE, "compare", "--files", "file/folder")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "error: cannot use --files file/folder: Not a directory.\n"
