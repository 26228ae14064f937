"""The documentation names files, tests and commands: they exist."""

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from reaper.pipeline.settings import PipelineSettings
from reaper.settings import ReaperSettings
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = [
        (str(path), anchor)
        for path, anchor in _links(page)
        if not path.exists() or (anchor and anchor not in _heading_anchors(path))
    ]
    assert broken == []


def test_every_promise_names_tests_that_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
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
        if not code.co_flags & inspect.CO_COROUTINE:  # what awaits is the middle of a program: it must only parse
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
    order = ["docs/images/status-page.png", "```", "## Use it", "## What it promises", "## When not to use it"]
    places = [text.index(one) for one in order]
    assert places == sorted(places)
    assert text[: places[0]].count("\n") < 10, "the picture is on the first screen"
