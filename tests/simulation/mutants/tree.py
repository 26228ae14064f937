"""Copies of the repository: a mutant lives in one, and nothing else is touched."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.simulation.mutants.catalogue import Mutant

HASHED = ("reaper", "workers", "tests")
"""What decides whether a mutant is found."""
_LEFT_OUT = shutil.ignore_patterns(".*", "soak", "build", "dist", "*.egg-info")


def hash_of(root: Path) -> str:
    """Return a name for the present state of the product and its tests."""
    told = sha256()
    for folder in HASHED:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".py", ".lua", ".toml") and "__pycache__" not in file.parts:
                told.update(f"{file.relative_to(root)}\0".encode())
                told.update(file.read_bytes())
    return told.hexdigest()[:16]


@contextmanager
def copied(root: Path) -> Iterator[Path]:
    """Make a copy of ``root`` for as long as the block runs.

    Bytecode is copied with its source: else each copy would have all of it compiled anew.
    """
    with TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(root, copy, symlinks=True, ignore=_LEFT_OUT)  # one of the examples is a link
        yield copy


@contextmanager
def mutated(root: Path, mutant: Mutant) -> Iterator[Path]:
    """Make a copy with ``mutant`` in it. Raises ValueError where it does not fit."""
    with copied(root) as copy:
        for file, content in mutant.mutated(copy).items():
            path = copy / file
            path.write_text(content, encoding="utf-8")
            for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
                stale.unlink()
        yield copy
