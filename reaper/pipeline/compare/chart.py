"""Draws how long jobs waited after a fault, and how long healthy ones waited meanwhile: one line a mode."""

import math
import re
from collections.abc import Sequence

from reaper.pipeline.compare.findings import Found

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter
except ImportError as error:  # pragma: no cover - one sentence, as for the report
    from reaper.pipeline.report.errors import missing_matplotlib

    raise missing_matplotlib() from error

from reaper.pipeline.report import words
from reaper.pipeline.report.charts import SERIES, drawn

_ROW_IN, _MARGIN_IN = 0.22, 0.9
_PANELS = (
    ("recovery_p50", "recovery_max", "Fault to second start: median to longest"),
    ("latency_p50", "latency_p99", "Healthy jobs meanwhile: wait, median to p99"),
)
_STANDALONE = {"ink": "#24292f", "muted": "#57606a", "grid": "#d0d7de"}
_STANDALONE_SERIES = ("#0969da", "#bc4c00", "#6e7781", "#8250df", "#1a7f37", "#cf222e")


def waits(found: Sequence[Found], modes: Sequence[str]) -> str:
    """Return the chart as SVG that takes its colours from the page."""
    told = [one for one in found if "recovery_p50" in one.table]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(_PANELS), sharey=True)
        for axes, (low, high, title) in zip(panels, _PANELS, strict=True):
            _panel(axes, told, modes, low, high)
            axes.set_title(title)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(modes))

    rows = len(told) * (len(modes) + 1)
    return drawn("waits", _MARGIN_IN + _ROW_IN * rows, draw) if told else ""


def _panel(axes: Axes, found: Sequence[Found], modes: Sequence[str], low: str, high: str) -> None:
    step = len(modes) + 1
    for mode, colour in zip(modes, SERIES, strict=False):
        places, lows, highs = [], [], []
        for number, one in enumerate(found):
            if mode in one.table.get(low, {}) and mode in one.table.get(high, {}):
                places.append(-(number * step + modes.index(mode)))
                lows.append(max(0.001, one.table[low][mode].value))
                highs.append(max(0.001, one.table[high][mode].value))
        axes.hlines(places, lows, highs, color=colour, linewidth=3)
        axes.plot(highs, places, "o", color=colour, markersize=4, label=mode)
    axes.set_xscale("log")
    least, most = axes.get_xlim()  # whole decades, so that there are ticks to read
    axes.set_xlim(10 ** math.floor(math.log10(least)), 10 ** math.ceil(math.log10(most)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words.duration(value * 1000)))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axes.set_yticks([-(number * step + (len(modes) - 1) / 2) for number in range(len(found))])
    axes.set_yticklabels([one.scenario.name for one in found])
    axes.grid(visible=False, axis="y")


def standalone(svg: str) -> str:
    """Return a chart with colours of its own, to be looked at as a file or in Markdown."""
    colours = _STANDALONE | {f"series-{n}": colour for n, colour in enumerate(_STANDALONE_SERIES, start=1)}
    for name, colour in colours.items():
        svg = svg.replace(f"var(--{name})", colour)
    svg = re.sub(r"<svg(?![^>]*xmlns=)", '<svg xmlns="http://www.w3.org/2000/svg"', svg, count=1)
    box = re.search(r'viewBox="[\d.]+ [\d.]+ ([\d.]+) ([\d.]+)"', svg)
    backdrop = f'<rect width="{box[1]}" height="{box[2]}" fill="#ffffff"/>' if box else ""
    return re.sub(r"(<svg[^>]*>)", lambda found: found[1] + backdrop, svg, count=1)
