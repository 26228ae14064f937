"""Lines that fit a terminal of eighty columns, as demos are watched in."""

import textwrap
from collections.abc import Iterable

COLUMNS = 80
_HANGING = 2
"""Columns by which what goes on stands further to the right than what it goes on from."""


def fitted(lines: Iterable[str]) -> list[str]:
    """Return ``lines`` broken at words where they are too long; what is aligned in them stays so."""
    return [part for line in lines for part in _broken(line)]


def _broken(line: str) -> list[str]:
    if len(line) <= COLUMNS:
        return [line]
    indent = " " * (len(line) - len(line.lstrip(" │├└─")) + _HANGING)
    return textwrap.wrap(
        line,
        COLUMNS,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
