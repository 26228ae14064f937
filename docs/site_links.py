"""A hook of MkDocs: the readme and the changelog become pages of the site, and links to other files become text.

`tests/docs/test_docs.py` checks that these files exist.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BESIDE = {"README.md": "quick-start.md", "CHANGELOG.md": "changelog.md"}
"""Files beside `docs/`, and their pages."""
_LINK = re.compile(r"\[([^\]\n]*)\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, *, config: Any) -> None:
    """Add the pages of files that lie beside `docs/`."""
    from mkdocs.structure.files import File  # not in the environment of the tests

    for name, page in BESIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Lead links to pages of the site there, and turn links to other files into text."""
    source = page.file.src_uri
    beside = {to: name for name, to in BESIDE.items()}
    folder = posixpath.dirname(source) if source not in beside else ".."

    def on_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        target = BESIDE.get(target.removeprefix("../"), target) if target.startswith("../") else target
        target = target.removeprefix("../docs/")
        if target.startswith(("..", "examples/")) or target.endswith(".py"):
            return f"{link[1]} (`{target.removeprefix('../')}`)"
        return f"[{link[1]}]({posixpath.relpath(target, posixpath.dirname(source))}{link[3] or ''})"

    return _LINK.sub(on_site, markdown)
