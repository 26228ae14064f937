r"""Prints the output of commands. All commands print here.

Names, reasons and errors come from outside. Printed without change, they could set a terminal's title, clear it,
reverse the reading order, or forge a line. So characters that cannot be printed are escaped (``\x1b``), and the marks
of colors contain a secret. Long texts are cut, with the number of omitted characters. ``-o json`` prints them whole.
"""

import json
import re
import secrets
import sys
from typing import Any

import click

from workers.protocol.errors import NotPossibleError
from workers.protocol.messages import counted, on_one_line

_SECRET = secrets.token_hex(8)
"""A secret of this process, so that text from outside cannot contain a mark."""
_MARK = re.compile(rf"\x1b<{_SECRET}:([0-9;]*)>")
LONGEST_TEXT = 4_096
"""Characters that are printed for people, of a line or of its part in one style."""
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33}


def styled(words: str, *styles: str) -> str:
    """Return words that `show` prints in ``styles``: bold, dim, red, green or yellow."""
    return f"{_mark(*(_CODES[style] for style in styles))}{words}{_mark(0)}"


def _mark(*codes: int) -> str:
    return f"\x1b<{_SECRET}:{';'.join(map(str, codes))}>"


def printable(line: str, *, whole: bool = False) -> str:
    """Return a line that is safe for a terminal, with its colors."""
    parts = _MARK.split(line)
    parts[::2] = [on_one_line(words if whole else _cut(words)) for words in parts[::2]]
    parts[1::2] = [f"\x1b[{codes}m" for codes in parts[1::2]]
    return "".join(parts)


def _cut(words: str) -> str:
    more = len(words) - LONGEST_TEXT
    return f"{words[:LONGEST_TEXT]} … ({counted(more, 'more character')})" if more > 0 else words


def show(*lines: str, err: bool = False, whole: bool = False) -> None:
    """Print lines for people, if there are any. A newline inside a line comes from outside, and is escaped.

    ``whole`` prints long lines uncut, for example commands that people paste.
    """
    if lines:
        click.echo("\n".join(printable(line, whole=whole) for line in lines), err=err)


def show_json(document: Any) -> None:
    """Print a document for machines, exactly and in ASCII, on one line."""
    click.echo(json.dumps(document, default=str))


def confirm(question: str) -> None:
    """Ask on standard error. Raises NotPossibleError unless the answer is yes."""
    try:
        if sys.stdin and click.confirm(printable(question), err=True):  # none if it was closed
            return
    except click.Abort as error:
        click.echo(err=True)  # ends the line of the question
        if isinstance(error.__context__, KeyboardInterrupt):  # click raises Abort for Ctrl-C and for the end of input
            raise
    raise NotPossibleError("nothing was changed: not confirmed. Answer y, or use --yes.")
