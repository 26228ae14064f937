"""A hook of MkDocs: what lies beside `docs/` (the readme, the changelog, code) is no page of the site, so it is named.

That such a file is there, `tests/docs/test_docs.py` has checked.
"""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]\n]+)\]\((?!https?://|#)([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turn links that leave `docs/` into text."""
    folder = posixpath.dirname(page.file.src_uri)

    def told(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2].partition("#")[0]))
        leaves = target.startswith(("..", "examples/")) or target.endswith(".py")
        return f"{link[1]} (`{target.removeprefix('../')}`)" if leaves else link[0]

    return _LINK.sub(told, markdown)
