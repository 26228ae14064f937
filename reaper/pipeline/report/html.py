"""The few pieces of HTML that the page is made of. Everything from outside is escaped here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Row = Mapping[str, Any]

LONGEST = 400
"""Signs of what a cell shows: names and words from outside may have any length. The JSON file has all of it."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, and what it shows of a row."""

    title: str
    cell: Callable[[Row], str]
    is_number: bool = False


def text(title: str, cell: Callable[[Row], str]) -> Column:
    """A column of words."""
    return Column(title, cell)


def number(title: str, cell: Callable[[Row], str]) -> Column:
    """A column of numbers, set flush right."""
    return Column(title, cell, is_number=True)


def shown(value: str) -> str:
    """Escape a value, unless it is HTML already."""
    return value if isinstance(value, Markup) else escape(str(value))


def table(columns: Sequence[Column], rows: Sequence[Row], *, caption: str = "", most: int = 40) -> Markup:
    """Return a table of the first ``most`` rows that says how many are left out; nothing where there is no row."""
    if not rows:
        return Markup("")
    left_out = len(rows) - most
    note = f"the first {most:,} of {len(rows):,}; all are in the JSON file" if left_out > 0 else ""
    title = " · ".join(part for part in (caption, note) if part)
    head = "".join(f"<th{_class(column)}>{escape(column.title)}</th>" for column in columns)
    body = "\n".join(_line(columns, row) for row in rows[:most])
    heading = f"<caption>{escape(title)}</caption>" if title else ""
    return Markup(
        f'<div class="table"><table>{heading}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
    )


def _line(columns: Sequence[Column], row: Row) -> str:
    cells = ((column, column.cell(row)) for column in columns)
    return "<tr>" + "".join(f"<td{_class(column)}>{shown(_cut(words))}</td>" for column, words in cells) + "</tr>"


def _cut(words: str) -> str:
    return words if isinstance(words, Markup) or len(words) <= LONGEST else f"{words[:LONGEST]}…"


def _class(column: Column) -> str:
    return ' class="n"' if column.is_number else ""


def paragraph(sentence: str) -> Markup:
    """Return a paragraph; nothing for an empty sentence."""
    return Markup(f"<p>{shown(sentence)}</p>") if sentence else Markup("")


def heading(title: str) -> Markup:
    """Return a heading within a section."""
    return Markup(f"<h3>{escape(title)}</h3>")


def code(words: str) -> Markup:
    """Return something that is typed or read by a machine."""
    return Markup(f"<code>{escape(words)}</code>")


def key(words: str) -> Markup:
    """Return a name that machines have given, cut to what a cell shows."""
    return code(_cut(words))


def block(words: str) -> Markup:
    """Return lines that are typed or read by a machine."""
    return Markup(f"<pre><code>{escape(words)}</code></pre>")


def figure(svg: str) -> Markup:
    """Return a chart."""
    return Markup(f"<figure>{svg}</figure>")


def section(name: str, title: str, parts: Iterable[str]) -> Markup:
    """Return a section of the page; ``name`` is what links point at."""
    content = "\n".join(part for part in map(shown, parts) if part)
    return Markup(f'<section id="{escape(name)}">\n<h2>{escape(title)}</h2>\n{content}\n</section>')


def tile(value: str, label: str, tone: str = "") -> Markup:
    """Return a figure that is seen at once. ``tone``: good, warn, bad or none."""
    return Markup(f'<div class="tile {tone}"><b>{shown(value)}</b><span>{escape(label)}</span></div>')
