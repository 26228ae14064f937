"""The screen of an act, with a line each second and one for each fault, or without output."""

import textwrap
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import anyio

from reaper.drill import queries
from reaper.drill.records import Role
from reaper.drill.toolbox import Toolbox
from workers.protocol.events import EventName
from workers.runtime.printing import show

COLUMNS = 80
LINE_INTERVAL_S = 1.0
NEWS_INTERVAL_S = 0.2


def figures(tools: Toolbox) -> dict[str, str]:
    """Return the latest numbers by name, in the order in which they are shown."""
    view, enqueued = tools.witness.view, len(tools.producer.enqueued)
    shown: dict[str, object] = {
        "settled": f"{max(0, enqueued - view.outstanding - view.dead)}/{enqueued}",
        "ready": view.ready,
        "in flight": view.in_flight,
        "recovered": tools.witness.counts[EventName.RECOVERED],
        "dead": view.dead,
    }
    if tools.stage.recovery.by_reapers:
        alive = tools.supervisor.alive(Role.REAPER)
        shown["holder"] = next((run.name for run in alive if queries.belongs_to(view.holder, run.name)), "none")
    return {name: str(figure) for name, figure in shown.items()}


Screen = Callable[[Toolbox], Coroutine[Any, Any, None]]
"""Shows an act until it is cancelled."""


async def plain_screen(tools: Toolbox) -> None:
    """Print a line a second, and one for each sentence of the news."""
    shown, next_line_s = 0, 0.0

    def update(*, last: bool = False) -> None:
        nonlocal shown, next_line_s
        lines = [f"  {at:5.1f} s  * {sentence}" for at, sentence in tools.news[shown:]]
        shown = len(tools.news)
        if last or tools.passed_s >= next_line_s:
            numbers = " ".join(f"{name} {figure}" for name, figure in figures(tools).items())
            lines.append(f"  {tools.passed_s:5.1f} s  {numbers}")
            next_line_s += LINE_INTERVAL_S
        show(*fitted(lines))

    try:
        while True:
            update()
            await anyio.sleep(NEWS_INTERVAL_S)
    finally:
        update(last=True)


async def quiet_screen(_tools: Toolbox) -> None:
    """Print no lines, so that they disturb no measurement."""
    await anyio.sleep_forever()


def fitted(lines: Iterable[str]) -> list[str]:
    """Return ``lines``, those that are too long for a terminal broken at words and indented."""
    return [part for line in lines for part in ([line] if len(line) <= COLUMNS else _broken(line))]


def _broken(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    wrapper = textwrap.TextWrapper(COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    wrapper.replace_whitespace = False
    return wrapper.wrap(line)
