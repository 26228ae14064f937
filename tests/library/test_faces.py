"""``from workers import …`` and ``from reaper import …`` are lazy, for programs and type checkers alike."""

import ast
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

import reaper
import workers
from tests.support.processes import ROOT, Processes

pytestmark = pytest.mark.anyio

FACES = pytest.mark.parametrize("face", [workers, reaper], ids=lambda face: face.__name__)

BARE = """
import sys
sys.path.insert(0, {root!r})
import {modules}
ours = sorted(name for name in sys.modules if name.partition(".")[0] in ("workers", "reaper"))
others = {{name.partition(".")[0] for name in sys.modules}} - {{"workers", "reaper", "__main__"}}
print(*ours, sep=" ")
print("others:", *sorted(others - set(sys.stdlib_module_names)))
"""


def _tree(face: ModuleType) -> ast.Module:
    assert face.__file__
    return ast.parse(Path(face.__file__).read_text(encoding="utf-8"))


def _seen_by_type_checkers(face: ModuleType) -> dict[str, str]:
    """Return the names that the face re-exports, in the form that strict type checkers ask for, and their modules."""
    (block,) = [node for node in _tree(face).body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    seen = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        assert statement.module
        for alias in statement.names:
            assert alias.asname == alias.name, f"{alias.name} is no re-export: write 'as {alias.name}'"
            seen[alias.name] = statement.module
    return seen


@FACES
def test_programs_and_type_checkers_see_the_same_names_from_the_same_places(face: ModuleType) -> None:
    seen = _seen_by_type_checkers(face)
    assert sorted(face.__all__) == sorted(seen)
    for name, module in seen.items():
        assert getattr(face, name) is getattr(importlib.import_module(module), name)


@FACES
def test_every_name_is_listed_and_can_be_imported_with_a_star(face: ModuleType) -> None:
    found: dict[str, object] = {}
    exec(f"from {face.__name__} import *", found)  # noqa: S102
    assert set(face.__all__) == found.keys() - {"__builtins__"}
    assert set(face.__all__) <= set(dir(face))


@FACES
def test_a_name_that_is_not_there_is_no_attribute(face: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"^module '{face.__name__}' has no attribute 'Wroker'$"):
        face.Wroker  # noqa: B018
    assert not hasattr(face, "__wrapped__")


@pytest.mark.parametrize(("misspelt", "meant"), [("workers.Producr", "Producer"), ("reaper.Raeper", "Reaper")])
async def test_a_misspelt_name_gets_a_hint(processes: Processes, misspelt: str, meant: str) -> None:
    program = processes.python("-c", f"import workers, reaper; {misspelt}")
    assert await program.wait() == 1
    assert f"Did you mean: '{meant}'?" in program.output


WIRE = "workers workers.protocol workers.protocol."


@pytest.mark.parametrize(
    ("modules", "loaded"),
    [
        ("workers, reaper", "reaper workers"),
        ("workers.protocol.keys", f"{WIRE}errors workers.protocol.keys"),
        ("workers.protocol.messages", f"{WIRE}errors workers.protocol.messages"),
        ("workers.protocol.events", f"{WIRE}events"),
    ],
)
async def test_faces_and_wire_import_nothing_but_python(processes: Processes, modules: str, loaded: str) -> None:
    code = BARE.format(root=str(ROOT), modules=modules)
    program = processes.start(sys.executable, "-I", "-S", "-c", code)
    assert await program.wait() == 0
    assert program.output == f"{loaded}\nothers:\n"


@FACES
def test_type_checkers_are_told_that_the_package_is_typed(face: ModuleType) -> None:
    assert face.__file__
    assert (Path(face.__file__).parent / "py.typed").is_file()
