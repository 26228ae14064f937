"""Draws the report's charts as SVG that takes its colours from the page, so that it is readable on light and dark."""

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC
from itertools import accumulate
from typing import Any

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator
except ImportError as error:  # pragma: no cover - one sentence, tested with the module hidden
    from reaper.pipeline.report.errors import missing_matplotlib

    raise missing_matplotlib() from error

from reaper.pipeline.report import words

Row = Mapping[str, Any]

WIDTH_IN, PANEL_IN = 9.2, 2.9
MOST_LINES = 6
"""Series in one chart: more cannot be told apart."""
MOST_BARS = 40
"""Bars of one chart: as many as a table has rows."""
FEW_POINTS = 40
"""So many are marked one by one; a line through more of them is dense enough."""

# Placeholders: every colour of a chart is replaced by a variable of the page.
INK, MUTED, GRID = "#010101", "#020202", "#030303"
SERIES = tuple(f"#0400{n:02x}" for n in range(1, MOST_LINES + 1))
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid"} | {c: f"--series-{n}" for n, c in enumerate(SERIES, 1)}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9.5,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.5,
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
    "xtick.minor.size": 0,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    # Names are names, whatever is between two dollars.
    "text.parse_math": False,
}


def _drawn(name: str, height_in: float, draw: Callable[[Figure], None]) -> str:
    """Return the SVG that ``draw`` draws. ``name`` keeps the IDs of several charts on a page apart."""
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        figure.patch.set_alpha(0)
        draw(figure)
        for axes in figure.axes:
            axes.patch.set_alpha(0)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _for_page(text.getvalue(), name)


def drawn(name: str, height_in: float, draw: Callable[[Figure], None]) -> str:
    """Return the SVG of a chart of somebody else's page, in the same style."""
    return _drawn(name, height_in, draw)


def _for_page(svg: str, name: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]+", r"font-size: \1", svg)
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"(\d+\.\d{2})\d+", r"\1", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{name.replace("-", " ")}"', 1)


# ---- how times are distributed


def distributions(name: str, panels: Mapping[str, Sequence[Row]], label: Callable[[Row], str]) -> str:
    """Draw, for each panel, which share of the times is below what: rows of `quantiles.curve`."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        chosen = _largest(_by(label, [row for rows in panels.values() for row in rows]))
        colours = dict(zip(chosen, SERIES, strict=False))
        for panel, (title, rows) in zip(axes, panels.items(), strict=True):
            series = _by(label, rows)
            for key in (key for key in chosen if key in series):
                _step_up(panel, series[key], colours[key], key)
            _logarithmic_durations(panel)
            panel.set_title(title)
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        _legend_below(figure, axes[0] if _by(label, next(iter(panels.values()))) else axes[-1])

    return _drawn(name, PANEL_IN + 0.3, draw)


def _step_up(axes: Axes, rows: Iterable[Row], colour: str, label: str) -> None:
    merged: dict[float, int] = {}
    for row in rows:
        merged[row["below"]] = merged.get(row["below"], 0) + row["n"]
    bounds = sorted(merged)
    sums = list(accumulate(merged[bound] for bound in bounds))
    axes.plot(bounds, [100 * part / sums[-1] for part in sums], color=colour, label=label, drawstyle="steps-post")


def _logarithmic_durations(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, numticks=9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words.duration(value)))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axes.set_ylim(0, 103)


# ---- over time


def courses(name: str, rows: Sequence[Row], period_ms: int) -> str:
    """Draw the stall rate over time, and how many deliveries ended: rows of `stalls.stalls_over_time`."""

    def draw(figure: Figure) -> None:
        rate, load = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        series = _by(words.pair, rows)
        for colour, key in zip(SERIES, _largest(series, "deliveries"), strict=False):
            points = sorted(series[key], key=lambda row: int(row["period"]))
            _line(rate, points, [row["permille"] / 10 for row in points], period_ms, colour, key)
            per_s = [row["deliveries"] * 1000 / period_ms for row in points]
            _line(load, points, per_s, period_ms, colour, key)
        rate.set_title("Deliveries that stalled")
        rate.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        rate.set_ylim(bottom=0)
        load.set_title("Deliveries that ended, per second")
        load.set_ylim(bottom=0)
        _dates(load)
        _legend_below(figure, rate)

    return _drawn(name, PANEL_IN * 1.5, draw)


def _line(axes: Axes, points: Sequence[Row], values: Sequence[float], period_ms: int, colour: str, label: str) -> None:
    """Draw a line that is broken where nothing was told for a period."""
    times: list[Any] = []
    heights: list[float] = []
    before = None
    for row, value in zip(points, values, strict=True):
        if before is not None and row["period"] - before > period_ms:
            times.append(words.moment(before + period_ms))
            heights.append(float("nan"))
        times.append(words.moment(row["period"]))
        heights.append(value)
        before = row["period"]
    marker = "o" if len(points) <= FEW_POINTS else ""
    axes.plot(times, heights, color=colour, label=label, marker=marker, markersize=2.5)


def leaders(name: str, terms: Sequence[Row], last_ms: int) -> str:
    """Draw who led when: rows of `leadership.terms`. A term whose end nobody told is drawn until the next one."""
    lanes = sorted({(words.namespace(row), words.replica(row["holder"])) for row in terms})
    names = [f"{space} · {who}" if len({lane[0] for lane in lanes}) > 1 else who for space, who in lanes]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, until_ms in zip(terms, _ends(terms, last_ms), strict=True):
            begin, end = words.moment(row["began_ms"]), words.moment(until_ms)
            colour = SERIES[0] if row["end"] in ("released", "leading") else SERIES[1]
            lane = lanes.index((words.namespace(row), words.replica(row["holder"])))
            axes.barh(lane, (end - begin).total_seconds() / 86_400, left=begin, height=0.5, color=colour)  # type: ignore[arg-type]
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        _dates(axes)

    return _drawn(name, 0.9 + 0.32 * len(lanes), draw)


def _ends(terms: Sequence[Row], last_ms: int) -> list[int]:
    """Return when each term ended at the latest. Terms are in order, namespace by namespace."""
    ends = []
    for number, row in enumerate(terms):
        following = terms[number + 1] if number + 1 < len(terms) else None
        same = following is not None and following["stream"] == row["stream"]
        latest = following["began_ms"] if following is not None and same else last_ms
        ends.append(row["ended_ms"] or max(latest, row["began_ms"]))
    return ends


def _dates(axes: Axes) -> None:
    locator = AutoDateLocator(tz=UTC, minticks=4, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]


# ---- visibility timeouts


def costs(name: str, groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw what each timeout would have cost, and which one is recommended: groups of `advice.fragment.as_json`."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for colour, (label, advice) in zip(SERIES, groups.items(), strict=False):
            points = [point for point in advice["curve"] if point["total_s"] > 0]
            axes.plot(
                [point["timeout_ms"] for point in points],
                [point["total_s"] for point in points],
                color=colour,
                label=label,
            )
            best = advice["recommended"]
            axes.plot(best["timeout_ms"], max(best["total_s"], 1e-3), color=colour, marker="o", markersize=6)
        _logarithmic_durations(axes)
        axes.set_ylim(auto=True)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: words.duration(value * 1000)))
        axes.set_title("Cost of a visibility timeout, as waiting; the dots are what is recommended")
        _legend_below(figure, axes)

    return _drawn(name, PANEL_IN + 0.3, draw)


# ---- counts


def stacked_bars(name: str, title: str, bars: Mapping[str, Mapping[str, int]]) -> str:
    """Draw one bar a row, stacked by what each part is: ``{row: {part: count}}``; the `MOST_BARS` longest."""
    longest = sorted(bars, key=lambda row: -sum(bars[row].values()))[:MOST_BARS]
    bars = {row: bar for row, bar in bars.items() if row in set(longest)}
    parts = sorted({part for bar in bars.values() for part in bar}, key=lambda part: -_sum_of(bars, part))
    shown = parts if len(parts) <= MOST_LINES else [*parts[: MOST_LINES - 1], "others"]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        lefts = [0] * len(bars)
        for colour, part in zip(SERIES, shown, strict=False):
            meant = parts[MOST_LINES - 1 :] if part == "others" else [part]
            widths = [sum(bar.get(one, 0) for one in meant) for bar in bars.values()]
            axes.barh(list(bars), widths, left=lefts, height=0.55, color=colour, label=part.replace("_", " "))
            lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_title(title)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words.count(value)))
        _legend_below(figure, axes)

    return _drawn(name, 1.3 + 0.36 * len(bars), draw)


def _sum_of(bars: Mapping[str, Mapping[str, int]], part: str) -> int:
    return sum(bar.get(part, 0) for bar in bars.values())


# ---- series


def _by(label: Callable[[Row], str], rows: Iterable[Row]) -> dict[str, list[Row]]:
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(label(row), []).append(row)
    return series


def _largest(series: Mapping[str, Sequence[Row]], size: str = "n") -> list[str]:
    """Return the names of the series that are drawn: the largest."""
    return sorted(series, key=lambda key: -sum(row[size] for row in series[key]))[:MOST_LINES]


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower left", ncols=min(3, len(labels)), handlelength=1.2)
