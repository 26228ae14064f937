"""Benchmarks and soak run seldom, so their command lines are checked here: each option that they use must exist."""

import ast
from collections.abc import Iterator
from pathlib import Path
from re import compile as pattern

import pytest

from tests.operator.every import LEAVES
from tests.soak.__main__ import main as soak_main

TESTS = Path(__file__).parents[1]
SOURCES = [path for folder in ("benchmarks", "soak") for path in sorted((TESTS / folder).rglob("*.py"))]
_OPTION = pattern(r"--[a-z][a-z-]+")
_DECLARING = {"add_argument", "option"}
_OF_OTHER_PROGRAMS = {"--heap"}
"""Options of programs that are not ours."""


def _options(node: ast.AST) -> Iterator[str]:
    """Yield the options among the texts below a node."""
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and _OPTION.fullmatch(one.value):
            yield one.value


def _declared(tree: ast.AST) -> Iterator[str]:
    """Yield the options that a file gives to a program of its own."""
    for one in ast.walk(tree):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr in _DECLARING:
            for argument in one.args:
                yield from _options(argument)


TREES = {path.relative_to(TESTS).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
KNOWN = {
    *(option for command in (*(one for _, one in LEAVES), soak_main) for parameter in command.params
      for option in (*parameter.opts, *parameter.secondary_opts)),
    *(option for tree in TREES.values() for option in _declared(tree)),
}  # fmt: skip


@pytest.mark.parametrize("source", TREES)
def test_every_option_that_is_typed_exists(source: str) -> None:
    assert {*_options(TREES[source])} <= KNOWN | _OF_OTHER_PROGRAMS
