"""The code map is of this code: every room is on it and says what it is for, and every file that it names exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/internals/architecture.md").read_text(encoding="utf-8")
_CODE = [file for package in ("reaper", "workers") for file in sorted((ROOT / package).rglob("*"))]
PACKAGES = [file.parent for file in _CODE if file.name == "__init__.py"]
FOLDERS = sorted({*PACKAGES, *(file.parent for file in _CODE if file.suffix == ".lua")})
PATHS = sorted(set(re.findall(r"`((?:reaper|workers|tests|deploy|docs)/[\w/.]*)`", PAGE)))
SCRIPTS = sorted(set(re.findall(r"`(\w+\.lua)`", PAGE)))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("folder", FOLDERS, ids=_name)
def test_every_room_is_on_the_map(folder: Path) -> None:
    assert f"| `{_name(folder)}/` |" in PAGE


@pytest.mark.parametrize("package", PACKAGES, ids=_name)
def test_every_room_says_what_it_is_for(package: Path) -> None:
    assert ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", PATHS)
def test_every_file_on_the_map_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_on_the_map_exists(script: str) -> None:
    assert [*(ROOT / "reaper").rglob(script), *(ROOT / "workers").rglob(script)]
