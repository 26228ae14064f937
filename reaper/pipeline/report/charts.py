"""Draws the charts of pages as SVG. Colors come from the page, so that a chart is legible on light and on dark.

A chart is one or more small panels, each with its own SVG. A page sets them side by side, a phone one below the other.
The legend is HTML, so that it wraps.
"""

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from reaper.pipeline.analysis.answers import SHARES
from reaper.pipeline.report import html, words
from reaper.pipeline.report.html import Markup

Row = Mapping[str, Any]
Draw = Callable[[Axes], None]

WIDTH_IN, HEIGHT_IN = 4.2, 2.5
"""Size of a panel. A phone shows it at about its own size, so letters stay legible."""
MOST_LINES = 6
"""Series in one chart. The colors of more would be too similar."""
FEW_POINTS = 40
"""A line through at most this many points marks each of them."""

# placeholders, because every color of a chart is replaced by a variable of the page
INK, MUTED, GRID = "#010101", "#020202", "#030303"
SERIES = tuple(f"#0400{n:02x}" for n in range(1, MOST_LINES + 1))
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid"} | {c: f"--series-{n}" for n, c in enumerate(SERIES, 1)}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9.5,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    # A name with dollar signs is a name.
    "text.parse_math": False,
}


def chart(name: str, panels: Mapping[str, Draw], legend: Sequence[str] = (), height_in: float = HEIGHT_IN) -> Markup:
    """Return a figure with one panel for each title. ``name`` keeps the IDs of several charts on a page apart."""
    drawn = [panel(f"{name}-{n}", title, draw, height_in) for n, (title, draw) in enumerate(panels.items(), start=1)]
    return html.figure(drawn, legend)


def panel(name: str, title: str, draw: Draw, height_in: float = HEIGHT_IN) -> str:
    """Return one panel as SVG."""
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.subplots()
        draw(axes)
        axes.set_title(title)
        axes.patch.set_alpha(0)
        # The minor ticks of a logarithmic axis would be written as LaTeX.
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _for_page(text.getvalue(), name, title)


def _for_page(svg: str, name: str, title: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]+", r"font-size: \1", svg)
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"(\d+\.\d{2})\d+", r"\1", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


def duration_axis(axis: Axis, unit_ms: float = 1.0) -> None:
    """Make an axis logarithmic and write durations on it. ``unit_ms`` is the number of ms in one unit of the data."""
    (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")  # type: ignore[attr-defined]
    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high < 100 * low else (1.0,)
    # If 1, 2 and 5 give fewer than two ticks, LogLocator takes more, and their labels overlap on a phone.
    axis.set_major_locator(MaxNLocator(4) if high < 5 * low else LogLocator(base=10, subs=subs, numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: words.duration(value * unit_ms)))


# ---- how times are distributed


def distributions(name: str, panels: Mapping[str, Sequence[Row]], label: Callable[[Row], str]) -> Markup:
    """Draw the share of the times below each value, from rows with ``quantiles`` (of `SHARES`), ``max``, and ``n``."""
    chosen = _largest(_by(label, [row for rows in panels.values() for row in rows]), lambda row: row["n"])

    def drawing(rows: Sequence[Row]) -> Draw:
        lines = {label(row): row for row in rows}

        def draw(axes: Axes) -> None:
            for color, key in zip(SERIES, chosen, strict=False):
                if row := lines.get(key):
                    times = [max(1, ms) for ms in (*row["quantiles"], row["max"])]
                    axes.plot(times, [100 * share for share in (*SHARES, 1)], color=color)
            duration_axis(axes.xaxis)
            axes.set_ylim(0, 103)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))

        return draw

    return chart(name, {title: drawing(rows) for title, rows in panels.items() if rows}, chosen)


# ---- over time


def courses(name: str, rows: Sequence[Row], period_ms: int) -> Markup:
    """Draw throughput, the longest queue wait, and recoveries over time, from rows of the question ``over_time``."""
    series = _by(words.group, rows)
    chosen = _largest(series, lambda row: row["deliveries"])

    def drawing(value: Callable[[Row], float | None], form: Callable[[float], str]) -> Draw:
        def draw(axes: Axes) -> None:
            for color, key in zip(SERIES, chosen, strict=False):
                _line(axes, sorted(series[key], key=lambda row: int(row["period"])), value, period_ms, color)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda height, _: form(height)))
            locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=6)  # type: ignore[no-untyped-call]
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]

        return draw

    panels = {
        "Jobs done per second": drawing(lambda row: row["acked"] * 1000 / period_ms, lambda height: f"{height:g}"),
        "Longest queue wait": drawing(lambda row: row["longest_wait_ms"], words.duration),
        "Stalled deliveries recovered": drawing(lambda row: row["stalls"], lambda height: f"{height:g}"),
    }
    return chart(name, panels, chosen)


def _line(axes: Axes, points: Sequence[Row], value: Callable[[Row], float | None], period_ms: int, color: str) -> None:
    """Draw a line with gaps for the periods without data in the journal."""
    times: list[Any] = []
    heights: list[float] = []
    before = None
    for row in points:
        if before is not None and row["period"] - before > period_ms:
            times.append(words.moment(before + period_ms))
            heights.append(float("nan"))
        times.append(words.moment(row["period"]))
        height = value(row)
        heights.append(float("nan") if height is None else height)
        before = row["period"]
    axes.plot(times, heights, color=color, marker="o" if len(points) <= FEW_POINTS else "", markersize=2.5)


# ---- series


def _by(label: Callable[[Row], str], rows: Iterable[Row]) -> dict[str, list[Row]]:
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(label(row), []).append(row)
    return series


def _largest(series: Mapping[str, Sequence[Row]], size: Callable[[Row], int]) -> list[str]:
    """Return the names of the drawn series, which are the largest."""
    return sorted(series, key=lambda key: -sum(map(size, series[key])))[:MOST_LINES]
