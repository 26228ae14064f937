"""Lines that fit a terminal of eighty columns, in which people watch demos."""

import textwrap
from collections.abc import Iterable

COLUMNS = 80


def fitted(lines: Iterable[str]) -> list[str]:
    """Return ``lines``, those that are too long broken at words and indented; all others keep their columns."""
    return [part for line in lines for part in ([line] if len(line) <= COLUMNS else _broken(line))]


def _broken(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    wrapper = textwrap.TextWrapper(COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    wrapper.replace_whitespace = False
    return wrapper.wrap(line)
