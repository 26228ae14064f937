"""The documentation names files, tests and commands: they exist."""

import ast
import inspect
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import reaper as reaper_package
import workers as workers_package
from reaper.cli.lazy import LazyCommand
from reaper.cli.main import main as reaper
from reaper.pipeline.settings import PipelineSettings
from reaper.settings import ReaperSettings
from workers.cli import main as worker
from workers.protocol.scripts import Script, script_text
from workers.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def _heading_anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _links(page: Path) -> Iterator[tuple[Path, str]]:
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        yield (page.parent / path).resolve() if path else page, anchor


def _texts() -> Iterator[tuple[Path, str]]:
    """Yield the pages, and the texts of our programs, because all of them can name a command."""
    for page in PAGES:
        yield page, re.sub(r"\s*\n\s*(?=--)", " ", page.read_text(encoding="utf-8"))
    for module in (path for room in ("reaper", "workers") for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield module, node.value


def test_no_page_and_no_message_promises_a_release() -> None:
    """There is none on PyPI, so every installation is one of a clone."""
    installs = [
        (str(place.relative_to(ROOT)), named)
        for place, text in _texts()
        for named in re.findall(r"\b(?:pip|pipx|uv|uvx) (?:install|add|run|tool install)\b([^`\n]*)", text)
    ]
    assert [one for one in installs if "stream-reaper" in one[1]] == []
    assert len([one for one in installs if "'.[" in one[1]]) > 15


_COMMAND = re.compile(r"(?:(?<=`)|^ *)(reaper|worker) ([a-z][^`\n#|]*)", re.MULTILINE)


def _command_of(program: str, words: list[str]) -> tuple[list[str], set[str]]:
    """Return which command is meant, its name in words, and all options that it has."""
    command: click.Command = {"reaper": reaper, "worker": worker}[program]
    names: list[str] = []
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            break
        command = found.imported() if isinstance(found, LazyCommand) else found
        names.append(words.pop(0))
    return names, {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}


def test_every_command_that_is_named_takes_the_options_it_is_named_with() -> None:
    unknown, seen = [], 0
    for place, text in _texts():
        for program, rest in _COMMAND.findall(text):
            words = rest.split()
            names, options = _command_of(program, words)
            if names:  # else it is prose
                seen += 1
                asked = {word.partition("=")[0].rstrip(".,;:)'\"]") for word in words if re.match("--[a-z]", word)}
                unknown += [(str(place.relative_to(ROOT)), program, *names, one) for one in asked - options]
    assert unknown == []
    assert seen > 300


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = [
        (str(path), anchor)
        for path, anchor in _links(page)
        if not path.exists() or (anchor and anchor not in _heading_anchors(path))
    ]
    assert broken == []


def test_every_promise_names_tests_that_exist() -> None:
    text = (ROOT / "docs/internals/architecture.md").read_text(encoding="utf-8")
    promises = re.findall(r"^\| (I\d) \|.*$", text, re.MULTILINE)
    assert promises == ["I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8"]
    for line in re.findall(r"^\| I\d \|.*$", text, re.MULTILINE):
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", line)
        assert named, line
        for file, test in named:
            tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            assert test in {node.name for node in tree.body if isinstance(node, functions)}, (file, test)


def _snippets(language: str) -> list[str]:
    fenced = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [snippet for page in PAGES for snippet in fenced.findall(page.read_text(encoding="utf-8"))]


def test_every_python_snippet_runs_or_is_the_middle_of_a_program() -> None:
    snippets = _snippets("python")
    assert snippets
    for snippet in snippets:
        code = compile(snippet, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if (
            not code.co_flags & inspect.CO_COROUTINE
        ):  # code with await is the middle of a program, so it must only parse
            exec(code, {})  # noqa: S102 - our own documentation


def test_every_settings_snippet_is_accepted() -> None:
    snippets = _snippets("toml")
    assert snippets
    for snippet in snippets:
        values = tomllib.loads(snippet)
        kind = PipelineSettings if "lake" in values else ReaperSettings if "groups" in values else WorkerSettings
        assert kind(**values).model_fields_set == set(values)


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs/README.md"
    reached = {path for path, _ in _links(index)}
    assert {page for page in (ROOT / "docs").glob("*.md") if page != index} <= reached


def test_the_readme_shows_first_and_promises_later() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    order = ["docs/images/status-page.png", "## Quick start", "## What it promises", "docs/alternatives.md"]
    places = [text.index(one) for one in order]
    assert places == sorted(places)
    assert text[: places[0]].count("\n") < 10, "the picture is on the first screen"


@pytest.mark.parametrize("name", ["settle", "recover", "enqueue"])
def test_scripts_are_put_together_as_the_protocol_says(name: str, tmp_path: Path) -> None:
    page = (ROOT / "docs/protocol.md").read_text()
    command = page.split("cd workers/protocol/lua\n", 1)[1].split(" > /tmp/settle.lua", 1)[0]
    command = re.sub(r"(?<= )/\w+(?=/\w+\.lua)", str(tmp_path), command.replace("settle.lua", f"{name}.lua"))
    made = subprocess.run(
        ["/bin/sh", "-c", command], cwd=ROOT / "workers/protocol/lua", capture_output=True, text=True, check=True
    )
    whole, ours = iter(made.stdout.splitlines()), Script("workers.protocol", name).source.splitlines()
    assert all(line in whole for line in ours if line), "ours is the same, but for what it does not use"
    own = [line for line in script_text("workers.protocol", name).splitlines() if not line.startswith("--- @")]
    assert [line for line in own if line not in ours] == []


def test_every_public_name_is_in_the_api_reference() -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: (\S+)$", page, re.MULTILINE))
    homes = [(name, home) for package in (reaper_package, workers_package) for name, home in package._HOMES.items()]
    assert [name for name, home in homes if not {home, f"{home}.{name}"} & listed] == []
