"""The projects in docs/library.md, docs/testing.md and docs/producers.md, as files."""

import re
from pathlib import Path

from tests.support.processes import ROOT


def write_files(page: str, folder: Path) -> list[str]:
    """Write the files of a page, which begin with their names, into ``folder``; return the names."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    files = re.findall(r"^```py\n# ([\w.]+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for name, code in files:
        (folder / name).write_text(code, encoding="utf-8")
    return [name for name, _ in files]
