"""Writes the results as a table on the terminal, and as docs/internals/benchmarks.md. Pure.

A new result replaces the old one of the same benchmark. The rest of the page stays.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from tests.benchmarks.figures import HEADER, Result, Row
from tests.benchmarks.machine import Machine

INTRODUCTION = """\
# Benchmarks

For maintainers. The users' page is [benchmarks](../benchmarks.md).

`make bench` (`python -m tests.benchmarks`) writes this page in a quarter of an hour.
Each benchmark starts its own Redis.
`python -m tests.benchmarks --only NAME` runs one of {names}, and renews its part of the page.
Each benchmark has its last result here. To measure another Python, run `make bench VENV=.venv-3.13 PYTHON=python3.13`.
With `--quick` it uses small numbers and leaves the page alone.
"""

HOW_TO_READ = """\
## How to read it

- **stream-reaper**: this project, with reapers and workers as real processes.
- **bare**: the shortest code that does the same job by hand (`tests/benchmarks/bare.py`).
  Both run in turn, on servers that were started in the same way.
- **ratio**: stream-reaper divided by bare, the median of the rounds.
  Compare ratios, because seconds depend on the machine.
- **demand**: the limit that the project sets for itself.
- **other load**: how busy other programs kept the cores when the run began.
- Percentiles are nearest-rank. Rates are medians of rounds, and maxima are the worst of all rounds.
"""

OVER_RELEASES = """\
## Over releases

The chart has the ratio of each release and each Python, and its limit as a dashed line.
The numbers are in [benchmarks.csv](benchmarks.csv).

![Ratios to the bare code over releases](images/benchmarks.svg)

{ratios}"""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One benchmark and its result."""

    name: str
    result: Result
    machine: Machine
    day: date
    python: str
    """The version that it ran on, as `3.11`."""


@dataclass(frozen=True, slots=True)
class Told:
    """The page's part on one benchmark on one Python."""

    name: str
    python: str
    text: str
    demands: tuple[tuple[str, bool], ...]
    """What was demanded, and whether it is met."""


@dataclass(frozen=True, slots=True)
class Page:
    """The page's parts on all benchmarks."""

    told: tuple[Told, ...] = ()
    machines: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """What was measured on last, by the version of Python."""

    def renewed(self, chapters: Iterable[Chapter]) -> "Page":
        """Return the page with ``chapters`` in place of the former results of the same benchmarks."""
        told = {one.name: one for one in self.told}
        machines = dict(self.machines)
        for chapter in chapters:
            told[chapter.name] = _told(chapter)
            machines[chapter.python] = (chapter.machine.hardware, chapter.machine.software)
        return Page(tuple(told.values()), tuple(machines.items()))


def read_page(text: str, abouts: Mapping[str, str]) -> Page:
    """Return what `write_page` has written. Benchmarks that do not exist any more are left out."""
    names = {_title(about): name for name, about in abouts.items()}
    told: list[Told] = []
    machines: dict[str, tuple[str, ...]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        if python := re.fullmatch(r"Python ([\d.]+)", title):
            lines = [line[2:].removesuffix(".") for line in body.splitlines() if line.startswith("- ")]
            machines[python[1]] = tuple(lines[-2:])
        elif title in names:
            parts = re.split(r"^(?=Measured on )", body, flags=re.MULTILINE)[1:]
            told += [_as_told(names[title], part) for part in parts]
    return Page(tuple(told), tuple(machines.items()))


def write_page(page: Page, abouts: Mapping[str, str], ratios: str = "") -> str:
    """Return docs/internals/benchmarks.md.

    ``abouts`` are the titles and texts of all benchmarks, in their order. ``ratios`` is the table of the present
    release, with a column for each Python.
    """
    names = ", ".join(f"`{name}`" for name in abouts)
    by_name = {name: sorted((one for one in page.told if one.name == name), key=_minor) for name in abouts}
    runs = sorted({one.python: one for one in page.told}.values(), key=_minor)
    parts = [
        INTRODUCTION.format(names=names),
        *(_run(run.python, by_name, dict(page.machines).get(run.python, ())) for run in runs),
        OVER_RELEASES.format(ratios=ratios),
        HOW_TO_READ,
        *(_chapters(abouts[name], found) for name, found in by_name.items() if found),
    ]
    return "\n".join(parts)


def verdict(demands: Iterable[tuple[str, bool]]) -> str:
    """Sum up how many demands are met, and name those that are not."""
    demanded = list(demands)
    missed = [what for what, met in demanded if not met]
    summary = f"{len(demanded) - len(missed)} of {len(demanded)} demands are met"
    return f"{summary}. Not met: {' · '.join(missed)}" if missed else summary


def demands_of(rows: Iterable[Row]) -> tuple[tuple[str, bool], ...]:
    """Return what was demanded, and whether it is met."""
    return tuple((row.what, row.met) for row in rows if row.met is not None)


def terminal_table(rows: Sequence[Row]) -> str:
    """Return ``rows`` as aligned text."""
    lines = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]).rstrip()


def _as_told(name: str, part: str) -> Told:
    python = part.partition(" with Python ")[2].partition(". ")[0]
    return Told(name, python, part.rstrip("\n") + "\n", _demands_in(part))


def _minor(told: Told) -> int:
    return int(told.python.partition(".")[2])


def _title(about: str) -> str:
    return about.partition("\n\n")[0].rstrip(".")


def _demands_in(text: str) -> tuple[tuple[str, bool], ...]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return tuple((row[0], row[-1] == "met") for row in rows if row[-1] in ("met", "NOT met"))


def _run(python: str, by_name: Mapping[str, Sequence[Told]], machine: Sequence[str]) -> str:
    here = {name: one for name, found in by_name.items() for one in found if one.python == python}
    lines = [f"## Python {python}", "", f"- {verdict(demand for one in here.values() for demand in one.demands)}."]
    return "\n".join([*lines, *(f"- {line}." for line in machine), ""])


def _chapters(about: str, told: Sequence[Told]) -> str:
    """Return one benchmark with its results on each Python."""
    text = _sentence_by_line(about.partition("\n\n")[2])
    return "\n".join([f"## {_title(about)}", "", text, "", *(one.text for one in told)])


def _told(chapter: Chapter) -> Told:
    rows = table(HEADER, [row.cells() for row in chapter.result.rows], numbers=range(1, 4))
    when = f"Measured on {chapter.day.isoformat()} with Python {chapter.python}. {chapter.machine.load}."
    text = f"{when}\n\n{rows}"
    return Told(chapter.name, chapter.python, text, demands_of(chapter.result.rows))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: range) -> str:
    """Return a table with right-aligned columns ``numbers``."""
    rule = ["---:" if column in numbers else "---" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)) + "\n"


def _sentence_by_line(text: str) -> str:
    """Break lines after sentences, so that a change of one is a change of one line."""
    return re.sub(r"(?<=[.:;]) (?=[A-Z])", "\n", " ".join(text.replace("``", "`").split()))
