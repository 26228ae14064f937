"""Which scripts a program can come to run, by the names that its text mentions: nothing is imported or run.

A name reaches what the text of its definition mentions: definitions of the same module, and what it imports from
others of ours. A class reaches all of its methods. So the answer is never too small where scripts are loaded by their
literal names, and everything else calls them through functions that are named.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.support.processes import ROOT

PACKAGES = ("workers", "reaper")
LOADER = "load_script"

Name = tuple[str, str]
"""Module, and a name that it defines or imports; '' = what stands outside of all definitions, which nobody mentions."""


@dataclass(frozen=True)
class _Module:
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, Name] = field(default_factory=dict)


def scripts_reached(entries: Iterable[str], without: Iterable[str] = ()) -> set[tuple[str, str]]:
    """Return package and name of the scripts that ``entries`` reach: ``package.module`` or ``package.module:name``.

    ``without``: modules and packages that are not entered.
    """
    shut = tuple(without)
    found: set[tuple[str, str]] = set()
    seen: set[Name] = set()
    todo = [name for entry in entries for name in _names_of(entry)]
    assert todo
    while todo:
        module, name = todo.pop()
        if (module, name) in seen or module.startswith(shut):
            continue
        seen.add((module, name))
        for statement in _modules()[module].definitions.get(name, ()):
            found.update(_loaded(statement))
        todo += _mentioned(module, name)
    return found


def _names_of(entry: str) -> Iterator[Name]:
    module, _, name = entry.partition(":")
    definitions = _modules()[module].definitions
    assert not name or name in definitions, f"{module} defines no {name}"
    yield from ((module, one) for one in ([name] if name else definitions))


def _mentioned(module: str, name: str) -> Iterator[Name]:
    of = _modules()[module]
    if name in of.imports and name not in of.definitions:
        yield of.imports[name]
        return
    for statement in of.definitions.get(name, ()):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and (node.id in of.definitions or node.id in of.imports):
                yield module, node.id
            elif isinstance(node, ast.ImportFrom | ast.Import):  # at its use
                yield from (target for _, target in _imported(node))


def _loaded(statement: ast.stmt) -> Iterator[tuple[str, str]]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == LOADER:
            package, name = (ast.literal_eval(argument) for argument in node.args)
            yield package, name


@cache
def _modules() -> dict[str, _Module]:
    texts = {_module_of(file): file.read_text() for top in PACKAGES for file in sorted((ROOT / top).rglob("*.py"))}
    return {name: _read(text) for name, text in texts.items()}


def _module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _read(text: str) -> _Module:
    module = _Module({"": []})
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            module.definitions.setdefault(statement.name, []).append(statement)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
            for name in names:
                module.definitions.setdefault(name, []).append(statement)
        else:
            if not isinstance(statement, ast.ImportFrom | ast.Import):
                module.definitions[""].append(statement)
            for node in ast.walk(statement):
                if isinstance(node, ast.ImportFrom | ast.Import):
                    module.imports.update(_imported(node))
    return module


def _imported(node: ast.ImportFrom | ast.Import) -> Iterator[tuple[str, Name]]:
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
        for alias in node.names:
            yield alias.asname or alias.name, (node.module, alias.name)
