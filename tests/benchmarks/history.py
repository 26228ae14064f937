"""What each release was measured by: the ratios that are demanded, kept in a table and drawn as a chart."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from math import ceil
from textwrap import wrap

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.benchmarks.page import Chapter, table

COLUMNS_OF_PANELS, PANEL_IN = 3, (3.2, 2.0)
_TITLE = 58
"""Characters of a line of a panel's title."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A ratio of a release, on one Python."""

    release: str
    python: str
    day: str
    what: str
    ratio: float
    demand: float


def measured(chapters: Iterable[Chapter], release: str) -> list[Measured]:
    """Return what a run has to say of ``release``: the rows whose ratio is demanded."""
    return [
        Measured(release, chapter.python, chapter.day.isoformat(), row.what, round(row.ratio, 3), row.demand.limit)
        for chapter in chapters
        for row in chapter.result.rows
        if row.demand is not None and row.demand.of_ratio and row.ratio is not None
    ]


def merged(before: Iterable[Measured], now: Sequence[Measured]) -> list[Measured]:
    """Put what a release was found to be now into the place of what it was found to be before."""
    renewed = {(one.release, one.python, one.what) for one in now}
    return [*(one for one in before if (one.release, one.python, one.what) not in renewed), *now]


def read(text: str) -> list[Measured]:
    """Read what `written` has written."""
    rows = csv.DictReader(io.StringIO(text))
    return [Measured(**{**row, "ratio": float(row["ratio"]), "demand": float(row["demand"])}) for row in rows]  # type: ignore[arg-type]


def written(history: Iterable[Measured]) -> str:
    """Return the table, in an order that a new release or row only adds to."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(field.name for field in fields(Measured))
    rows.writerows(map(astuple, sorted(history, key=lambda one: (_order(one.release), one.python, one.what))))
    return out.getvalue()


def ratios_of(release: str, history: Iterable[Measured]) -> str:
    """Return a table of the ratios of ``release``, with a column for each Python."""
    found = {(one.what, one.python): one for one in history if one.release == release}
    pythons = sorted({python for _, python in found}, key=_order)
    rows = []
    for what in sorted({what for what, _ in found}):
        here = [found.get((what, python)) for python in pythons]
        demand = next(one.demand for one in here if one)
        rows.append([what, *(f"{one.ratio:.2f}" if one else "-" for one in here), f"{demand:.2f}"])
    header = [f"ratio in {release}", *(f"Python {python}" for python in pythons), "demand"]
    return table(header, rows, numbers=range(1, len(header)))


def chart(history: Sequence[Measured]) -> str:
    """Draw a panel for each ratio as SVG: a line for each Python over the releases, and what is demanded."""
    whats = sorted({one.what for one in history})
    rows = ceil(len(whats) / COLUMNS_OF_PANELS)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.size": 8}):
        figure = Figure(figsize=(PANEL_IN[0] * COLUMNS_OF_PANELS, PANEL_IN[1] * rows), layout="constrained")
        panels = list(figure.subplots(rows, COLUMNS_OF_PANELS, squeeze=False).flat)
        for axes, what in zip(panels, whats, strict=False):
            _panel(axes, what, [one for one in history if one.what == what])
        for axes in panels[len(whats) :]:
            axes.axis("off")
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _panel(axes: Axes, what: str, history: Sequence[Measured]) -> None:
    releases = sorted({one.release for one in history}, key=_order)
    for python in sorted({one.python for one in history}, key=_order):
        ours = {one.release: one.ratio for one in history if one.python == python}
        places = [place for place, release in enumerate(releases) if release in ours]
        axes.plot(places, [ours[releases[place]] for place in places], "o-", label=f"Python {python}")
    axes.axhline(history[-1].demand, color="#6e7781", linestyle="--", linewidth=0.8)
    axes.set_xticks(range(len(releases)), releases)
    axes.set_xlim(-0.5, len(releases) - 0.5)
    axes.set_ylim(0, 1.15 * max(one for found in history for one in (found.ratio, found.demand)))
    axes.set_title("\n".join(wrap(what, _TITLE)), loc="left", fontsize=7)
    axes.legend(frameon=False, fontsize=6, loc="lower left")


def _order(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
