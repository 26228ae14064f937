"""The few pieces of HTML that the pages are made of. Everything from outside is escaped here."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Row = Mapping[str, Any]

LONGEST = 400
"""Characters of a cell, because texts from outside may have any length. The JSON file has the whole text."""
WIDE = 4
"""Columns from which on a phone shows each row of a table as a card."""
_SHORT, _PIECE = 14, 24
"""Characters of a word that stays in one line, and of a piece of a longer one."""
_PIECES = re.compile(rf"[^/:._@-]{{1,{_PIECE}}}[/:._@-]?|[/:._@-]", re.DOTALL)


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, with its heading, and its content for a row."""

    title: str
    cell: Callable[[Row], str]
    is_number: bool = False


def text(title: str, cell: Callable[[Row], str]) -> Column:
    """Return a column of words."""
    return Column(title, cell)


def number(title: str, cell: Callable[[Row], str]) -> Column:
    """Return a column of numbers, set flush right."""
    return Column(title, cell, is_number=True)


def shown(value: str) -> str:
    """Escape a value, unless it is HTML already."""
    return value if isinstance(value, Markup) else escape(str(value))


def breakable(words: str) -> Markup:
    """Escape words, and let a long name break after its separators instead of anywhere."""
    return Markup(" ".join(map(_breakable, words.split(" "))))


def _breakable(word: str) -> str:
    return escape(word) if len(word) <= _SHORT else "<wbr>".join(map(escape, _PIECES.findall(word)))


def table(columns: Sequence[Column], rows: Sequence[Row], *, caption: str = "", most: int = 40) -> Markup:
    """Return a table of the first ``most`` rows with the number of the others. Empty without rows."""
    if not rows:
        return Markup("")
    left_out = len(rows) - most
    note = f"the first {most:,} of {len(rows):,}; all are in the JSON file" if left_out > 0 else ""
    title = " · ".join(part for part in (caption, note) if part)
    head = "".join(f"<th{_class(column)}>{escape(column.title)}</th>" for column in columns)
    body = "\n".join(_line(columns, row) for row in rows[:most])
    heading = f"<caption>{escape(title)}</caption>" if title else ""
    wide = ' class="wide"' if len(columns) >= WIDE else ""
    return Markup(
        f'<div class="table"><table{wide}>{heading}<thead><tr>{head}</tr></thead><tbody>\n{body}\n'
        "</tbody></table></div>"
    )


def _line(columns: Sequence[Column], row: Row) -> str:
    return f"<tr>{''.join(_cell(column, column.cell(row)) for column in columns)}</tr>"


def _cell(column: Column, words: str) -> str:
    content = words if isinstance(words, Markup) else escape(words) if column.is_number else breakable(_cut(words))
    return f'<td{_class(column)} data-label="{escape(column.title)}">{content}</td>'


def _cut(words: str) -> str:
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}…"


def _class(column: Column) -> str:
    return ' class="n"' if column.is_number else ""


def paragraph(sentence: str) -> Markup:
    """Return a paragraph, or an empty text for an empty sentence."""
    return Markup(f"<p>{shown(sentence)}</p>") if sentence else Markup("")


def heading(title: str) -> Markup:
    """Return a heading within a section."""
    return Markup(f"<h3>{breakable(title)}</h3>")


def code(words: str) -> Markup:
    """Return a name or a command, cut to `LONGEST`."""
    return Markup(f"<code>{breakable(_cut(words))}</code>")


def block(words: str) -> Markup:
    """Return lines that people copy."""
    return Markup(f"<pre><code>{escape(words)}</code></pre>")


def figure(panels: Iterable[str], legend: Sequence[str] = ()) -> Markup:
    """Return a chart of one or more panels (SVG) with a legend."""
    names = "".join(f'<span class="s{n}">{breakable(name)}</span>' for n, name in enumerate(legend, start=1))
    caption = f"<figcaption>{names}</figcaption>" if names else ""
    return Markup(f'<figure><div class="panels">{"".join(panels)}</div>{caption}</figure>')


def section(name: str, title: str, parts: Iterable[str]) -> Markup:
    """Return a section of the page. ``name`` is the target of links."""
    content = "\n".join(part for part in map(shown, parts) if part)
    return Markup(f'<section id="{escape(name)}">\n<h2>{escape(title)}</h2>\n{content}\n</section>')


def tile(value: str, label: str, tone: str = "", hint: str = "") -> Markup:
    """Return a figure that people see at once. ``tone`` is good, warn, bad or none."""
    more = f"<small>{escape(hint)}</small>" if hint else ""
    return Markup(f'<div class="tile {tone}"><b>{shown(value)}</b><span>{escape(label)}</span>{more}</div>')
