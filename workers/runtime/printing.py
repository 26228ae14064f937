r"""The one place where commands print. What is printed is made of lines, and no line can do anything but stand there.

Names, reasons and errors come from outside. Written as they are, they would set a terminal's title, clear it, turn the
reading order round, or forge a line. So whatever cannot be printed is shown by its escape (``\x1b``), in every line,
and colours are marked by what nobody outside can spell. And whatever is longer than anybody reads is cut, with a word
of how much is left out: ``--json`` has it whole.
"""

import errno
import io
import json
import os
import re
import secrets
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, NoReturn

import click

from workers.protocol.messages import counted, on_one_line
from workers.runtime.entrance import interruptible

_SECRET = secrets.token_hex(8)
"""Of this process alone: text from outside cannot hold a mark."""
_MARK = re.compile(rf"\x1b<{_SECRET}:([0-9;]*)>")
LONGEST_LINE = 4_096
"""Characters of one line that are printed for people."""
UNWRITABLE_EXIT = 2
UNREAD_EXIT = 141
"""Exit code, as shells know it (128 and SIGPIPE), where whoever has read standard output reads no more."""
_STDERR = 2
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33}


def styled(words: str, *styles: str) -> str:
    """Return words that `show` prints in ``styles``: bold, dim, red, green or yellow."""
    return f"{_mark(*(_CODES[style] for style in styles))}{words}{_mark(0)}"


def _mark(*codes: int) -> str:
    return f"\x1b<{_SECRET}:{';'.join(map(str, codes))}>"


def printable(line: str, longest: int | None = LONGEST_LINE) -> str:
    """Return one line as it may stand on a terminal, with its colours, and at most ``longest`` characters of it."""
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
    """Print lines for people; a newline inside of one is from outside, and does not begin another.

    No lines are nothing, and no empty one. ``whole``: however long they are, as they are to be typed or pasted.
    """
    if lines:
        longest = None if whole else LONGEST_LINE
        _echo("\n".join(printable(line, longest) for line in lines), err=err)


def show_json(document: Any) -> None:
    """Print a document for machines, exactly and in ASCII, on one line."""
    _echo(json.dumps(document, default=str))


# --- outputs that are full, closed, or read by nobody any more ----------------------------------------------------

_failures: ContextVar["list[OSError] | None"] = ContextVar("failures", default=None)
"""Those of the block in which what cannot be printed is told at the end; None outside of any."""


def _echo(text: str, *, err: bool = False) -> None:
    """Print, or end the command: see `give_up_writing`. A reader that hangs can be left by Ctrl-C."""
    failures = None if err else _failures.get()
    if failures:
        return
    try:
        if not err:
            check_stdout()
        with interruptible():
            click.echo(text, err=err)
    except OSError as error:
        if failures is None:
            give_up_writing(error)
        failures.append(error)


@contextmanager
def acting() -> Iterator[None]:
    """Do all that the block does, whoever reads of it. What could not be printed ends the command afterwards."""
    failures: list[OSError] = []
    before = _failures.set(failures)
    try:
        yield
    finally:
        _failures.reset(before)
    if failures:
        give_up_writing(failures[0])


class _Nowhere(io.StringIO):
    """Standard output that was closed before we began. Programs of users print there and are not told, as in Python."""

    def write(self, text: str) -> int:
        return len(text)


def check_stdout() -> None:
    """Raise OSError where standard output was closed before we began."""
    if isinstance(sys.stdout, _Nowhere):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def give_up_writing(error: OSError) -> NoReturn:
    """End the command, as standard output cannot be written to: with a sentence, but where its reader has ended."""
    sys.stdout = io.StringIO()  # Python, too, writes to it at its end, and would complain
    if error.errno == errno.EPIPE:
        raise SystemExit(UNREAD_EXIT) from error
    click.echo(f"error: standard output cannot be written to: {error.strerror}.", err=True)
    raise SystemExit(UNWRITABLE_EXIT) from error


class _Unfailing(io.RawIOBase):
    """Standard error that is full, closed, or read by nobody: what is written there is lost, and nothing else happens.

    Python would end with an exit code of its own (120), and whoever tells of an error would meet another one.
    """

    def fileno(self) -> int:
        return _STDERR

    def isatty(self) -> bool:
        return os.isatty(_STDERR)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        with suppress(OSError):
            while left:
                left = left[os.write(_STDERR, left) :]
        return len(data)


def prepare_outputs() -> None:
    """Let no command fail for want of a character, or of somebody to tell errors. Called once, at its beginning.

    Nothing else gets the number of a standard place that is closed: a connection to Redis would, and whoever writes
    there would write into it. Characters that the terminal's encoding lacks are printed by their escapes.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    if sys.stderr is sys.__stderr__:
        encoding = getattr(sys.stderr, "encoding", None)
        sys.stderr = io.TextIOWrapper(_Unfailing(), encoding, "backslashreplace", write_through=True)
    if sys.stdout is None:
        sys.stdout = _Nowhere()
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def show_crashes() -> None:
    """Have Python print by `show` what ends the process and nobody caught: errors quote what came from outside."""
    sys.excepthook = _show_crash


def _show_crash(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    first, *others = "".join(traceback.format_exception(kind, error, frames)).rstrip().split("\n")
    show(first, *(f"  {line}" for line in others), err=True)


def ask(question: str) -> str:
    """Ask on stderr, and return what is typed; nothing where nobody is there to type."""
    try:
        typed: str = click.prompt(printable(question), err=True, default="", show_default=False)
    except click.Abort as error:
        _interrupt_again(error)
        return ""
    return typed


def confirm(question: str) -> None:
    """Ask on stderr, and abort the command unless the answer is yes."""
    try:
        click.confirm(printable(question), abort=True, err=True)
    except click.Abort as error:
        _interrupt_again(error)
        raise


def _interrupt_again(error: click.Abort) -> None:
    """Raise KeyboardInterrupt where Ctrl-C was the answer: for click that is the same as no answer."""
    if isinstance(error.__context__, KeyboardInterrupt):
        click.echo(err=True)  # the question's line ends
        raise KeyboardInterrupt from None
