r"""Prints the output of commands. All commands print here.

Names, reasons and errors come from outside. Printed without change, they could set a terminal's title, clear it,
reverse the reading order, or forge a line. So characters that cannot be printed are escaped (``\x1b``), and the marks
of colors contain a secret. Long lines are cut, with the number of omitted characters. ``-o json`` prints them whole.
"""

import io
import json
import os
import re
import secrets
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import click

from workers.protocol.errors import NotPossibleError
from workers.protocol.messages import counted, on_one_line

_SECRET = secrets.token_hex(8)
"""A secret of this process, so that text from outside cannot contain a mark."""
_MARK = re.compile(rf"\x1b<{_SECRET}:([0-9;]*)>")
LONGEST_LINE = 4_096
"""Characters of one line that are printed for people."""
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33}


def styled(words: str, *styles: str) -> str:
    """Return words that `show` prints in ``styles``: bold, dim, red, green or yellow."""
    return f"{_mark(*(_CODES[style] for style in styles))}{words}{_mark(0)}"


def _mark(*codes: int) -> str:
    return f"\x1b<{_SECRET}:{';'.join(map(str, codes))}>"


def printable(line: str, longest: int | None = LONGEST_LINE) -> str:
    """Return a line that is safe for a terminal, with its colors, and cut to ``longest`` characters."""
    parts = _MARK.split(line)
    parts[::2] = map(on_one_line, parts[::2] if longest is None else _cut(parts[::2], longest))
    parts[1::2] = [f"\x1b[{codes}m" for codes in parts[1::2]]
    return "".join(parts)


def _cut(words: list[str], longest: int) -> Iterator[str]:
    left = longest
    for number, one in enumerate(words):
        if len(one) <= left:
            left -= len(one)
            yield one
            continue
        yield f"{one[:left]} … ({counted(sum(map(len, words[number:])) - left, 'more character')})"
        yield from [""] * (len(words) - number - 1)
        return


def show(*lines: str, err: bool = False, whole: bool = False) -> None:
    """Print lines for people. A newline inside a line comes from outside, and is escaped.

    Without lines there is no output. ``whole`` prints long lines uncut, for example commands that people paste.
    """
    if lines:
        longest = None if whole else LONGEST_LINE
        click.echo("\n".join(printable(line, longest) for line in lines), err=err)


def show_json(document: Any) -> None:
    """Print a document for machines, exactly and in ASCII, on one line."""
    click.echo(json.dumps(document, default=str))


def prepare_outputs() -> None:
    """Open closed standard streams, so that no connection gets their numbers, and escape foreign characters."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def show_crashes() -> None:
    """Have Python print uncaught errors with `show`, because they can quote text from outside."""
    sys.excepthook = _show_crash


def _show_crash(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    first, *others = "".join(traceback.format_exception(kind, error, frames)).rstrip().split("\n")
    show(first, *(f"  {line}" for line in others), err=True)


def confirm(question: str) -> None:
    """Ask on standard error. Raises NotPossibleError unless the answer is yes."""
    try:
        if click.confirm(printable(question), err=True):
            return
    except click.Abort as error:
        click.echo(err=True)  # ends the line of the question
        if isinstance(error.__context__, KeyboardInterrupt):  # click raises Abort for Ctrl-C and for the end of input
            raise KeyboardInterrupt from None
    raise NotPossibleError("nothing was changed: not confirmed. Answer y, or use --yes.")
