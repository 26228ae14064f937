"""Draws how long jobs waited after a fault, and how long healthy jobs waited meanwhile, with one line for each mode."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from reaper.pipeline.compare.findings import ScenarioFindings
from reaper.pipeline.report.charts import SERIES, Draw, chart, duration_axis
from reaper.pipeline.report.html import Markup

_ROW_IN, _MARGIN_IN = 0.17, 0.8
_PANELS = {
    "Fault to second start: median to longest": ("recovery_p50", "recovery_max"),
    "Wait of healthy jobs: median to p99": ("latency_p50", "latency_p99"),
}


def waits(found: Sequence[ScenarioFindings], modes: Sequence[str]) -> Markup:
    """Return the chart. Empty if no scenario has times."""
    timed = [one for one in found if "recovery_p50" in one.table]
    if not timed:
        return Markup("")
    panels = {title: _drawing(timed, modes, *ends) for title, ends in _PANELS.items()}
    return chart("waits", panels, modes, _MARGIN_IN + _ROW_IN * len(timed) * (len(modes) + 1))


def _drawing(found: Sequence[ScenarioFindings], modes: Sequence[str], low: str, high: str) -> Draw:
    step = len(modes) + 1

    def draw(axes: Axes) -> None:
        for place, (mode, color) in enumerate(zip(modes, SERIES, strict=False)):
            rows = [
                (-(number * step + place), *(max(0.001, one.table[name][mode].value) for name in (low, high)))
                for number, one in enumerate(found)
                if mode in one.table.get(low, {}) and mode in one.table.get(high, {})
            ]
            places, lows, highs = zip(*rows, strict=True) if rows else ((), (), ())
            axes.hlines(places, lows, highs, color=color, linewidth=3)
            axes.plot(highs, places, "o", color=color, markersize=4)
        duration_axis(axes.xaxis, unit_ms=1000)
        axes.set_yticks([-(number * step + (len(modes) - 1) / 2) for number in range(len(found))])
        axes.set_yticklabels([one.scenario.name for one in found])
        axes.grid(visible=False, axis="y")

    return draw
