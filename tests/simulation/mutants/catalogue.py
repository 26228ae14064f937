"""The mutants, as they are written down."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CORE = ("reaper/recovery/", "workers/embedded/", "workers/loop/")


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement: a text that occurs once in a file, and the new text."""

    file: str
    """From the root of the repository."""
    text: str
    by: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change that breaks one thing."""

    name: str
    subject: str
    """The name of its file of data."""
    breaks: str
    """The promise that it breaks, for people."""
    edits: tuple[Edit, ...]
    near: tuple[str, ...] = ()
    """Test files, or single tests, that are tried first: before those that its files are known to be tested by."""
    harmless: str = ""
    """Why it breaks nothing after all; '' = it does."""

    def mutated(self, root: Path) -> dict[str, str]:
        """Return what the files that it changes hold then. Raises ValueError where it does not fit."""
        contents: dict[str, str] = {}
        for edit in self.edits:
            content = contents.get(edit.file) or (root / edit.file).read_text(encoding="utf-8")
            found = content.count(edit.text)
            if found != 1:
                raise ValueError(f"{self.name}: {found} times in {edit.file}, not once: {edit.text!r}")
            contents[edit.file] = content.replace(edit.text, edit.by)
        return contents

    @property
    def is_of_core(self) -> bool:
        """Tell whether it changes a script, recovery or the worker's loop: a story may catch it."""
        return any(edit.file.endswith(".lua") or edit.file.startswith(CORE) for edit in self.edits)

    @property
    def digest(self) -> str:
        """A name for the changed promise."""
        return sha256(repr(self.edits).encode()).hexdigest()[:16]


def load(folder: Path = HERE) -> tuple[Mutant, ...]:
    """Return all mutants, subject by subject."""
    return tuple(mutant for file in sorted(folder.glob("*.toml")) for mutant in _read(file))


def _read(file: Path) -> Iterator[Mutant]:
    for name, told in tomllib.loads(file.read_text(encoding="utf-8")).items():
        edits = tuple(_edit(edit) for edit in told.get("edits", [told]))
        yield Mutant(name, file.stem, told["breaks"], edits, tuple(told.get("near", ())), told.get("harmless", ""))


def _edit(told: Mapping[str, Any]) -> Edit:
    return Edit(told["file"], told["text"], told["by"])
