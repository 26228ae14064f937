"""Writes results for people: a table on the terminal, and docs/benchmarks.md. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from tests.benchmarks.figures import HEADER, Breakdown, Result, Row
from tests.benchmarks.machine import Machine

INTRODUCTION = """\
# Benchmarks

This page is written by `make bench` (`python -m tests.benchmarks`), which takes a quarter of an hour.
It needs nothing but Linux: each benchmark starts a Redis of its own, on a free port, without persistence.
`python -m tests.benchmarks --only NAME` runs one of {names},
and renews its part of this page, for the Python that it runs on (`make bench VENV=.venv-3.13 PYTHON=python3.13`);
`--quick` uses small numbers, to see that everything works, and writes nothing.
"""

HOW_TO_READ = """\
## How to read it

- **stream-reaper** is what this project does, with reapers and workers as real processes
  (`python -m reaper run`, `python -m workers run`).
- **bare** is the least code that does the same job by hand (`tests/benchmarks/bare.py`),
  measured in the same run, on a Redis started in the same way, in turn with ours.
- **ratio** is ours divided by bare: the median of the ratios of single rounds where rounds were taken in turn.
  For rates more is better, for times and costs less is.
- Compare ratios rather than numbers: seconds depend on the machine and on whoever else uses it, ratios much less so.
- A **demand** is what the project promises itself; where it is NOT met, the table says so.
- Percentiles are nearest-rank. Rates are medians of rounds, and maxima are the worst of all rounds.
- Profiles are taken in a run of their own, whose numbers are in no table.
  The programs are sampled by CPU time, and C code counts for the Python function that calls it.
  Server time is what Redis itself counts for each command (`INFO commandstats`).
"""

OVER_RELEASES = """\
## Over releases

The ratios that are demanded (dashed), release by release, and on each Python.
The numbers are in [benchmarks.csv](benchmarks.csv).

![Ratios to the bare code over releases](images/benchmarks.svg)
"""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One benchmark and what it has found."""

    name: str
    about: str
    """Title and text, as a docstring has them."""
    result: Result
    machine: Machine
    day: date
    python: str
    """The version that it ran on, as `3.11`."""


def write_page(chapters: Sequence[Chapter], names: Sequence[str]) -> str:
    """Return docs/benchmarks.md of the chapters, at least one, of each Python; ``names`` are all that there are."""
    pythons = list(dict.fromkeys(chapter.python for chapter in chapters))
    by_name = {name: [chapter for chapter in chapters if chapter.name == name] for name in names}
    parts = [
        INTRODUCTION.format(names=", ".join(f"`{name}`" for name in names)),
        *(_run([chapter for chapter in chapters if chapter.python == python], names) for python in pythons),
        OVER_RELEASES,
        HOW_TO_READ,
        *(_chapters(found) for found in by_name.values() if found),
    ]
    return "\n".join(parts)


def verdict(rows: Iterable[Row]) -> str:
    """Sum up how many demands are met, and name those that are not."""
    demanded = [row for row in rows if row.met is not None]
    missed = [row.what for row in demanded if not row.met]
    summary = f"{len(demanded) - len(missed)} of {len(demanded)} demands are met"
    return f"{summary}; not met: {'; '.join(missed)}" if missed else summary


def terminal_table(rows: Sequence[Row]) -> str:
    """Return ``rows`` as aligned text."""
    lines = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]).rstrip()


def _run(chapters: Sequence[Chapter], names: Sequence[str]) -> str:
    rows = [row for chapter in chapters for row in chapter.result.rows]
    machine = chapters[-1].machine
    lines = [f"## Python {chapters[0].python}", "", f"- {verdict(rows)}."]
    if missing := [name for name in names if name not in {chapter.name for chapter in chapters}]:
        lines.append(f"- Not run here: {', '.join(missing)}.")
    return "\n".join([*lines, *(f"- {line}." for line in (machine.hardware, machine.software)), ""])


def _chapters(chapters: Sequence[Chapter]) -> str:
    """Return one benchmark, with what it found on each Python."""
    title, _, text = chapters[0].about.partition("\n\n")
    return "\n".join([f"## {title.rstrip('.')}", "", _sentence_by_line(text), "", *map(_chapter, chapters)])


def _chapter(chapter: Chapter) -> str:
    breakdowns = [_breakdown(breakdown) for breakdown in chapter.result.breakdowns]
    table = _table(HEADER, [row.cells() for row in chapter.result.rows], numbers=range(1, 4))
    when = f"Measured on {chapter.day.isoformat()}, Python {chapter.python}; {chapter.machine.load}."
    return "\n".join([when, "", table, *breakdowns])


def _breakdown(breakdown: Breakdown) -> str:
    return "\n".join([f"{breakdown.title}:", "", _table(("where", "how much"), breakdown.parts, numbers=range(1, 2))])


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: range) -> str:
    rule = ["---:" if column in numbers else "---" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)) + "\n"


def _sentence_by_line(text: str) -> str:
    """Break lines after sentences, so that a change of one is a change of one line."""
    return re.sub(r"(?<=[.:;]) (?=[A-Z])", "\n", " ".join(text.replace("``", "`").split()))
