"""What people see of an act: a line a second, and one for each fault; or nothing."""

import textwrap
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

import anyio

from reaper.drill import queries
from reaper.drill.producer import Producer
from reaper.drill.records import ProcessRun, Role
from reaper.drill.stage import Stage
from reaper.drill.supervisor import Supervisor
from reaper.drill.witness import Witness
from workers.protocol.events import EventName
from workers.runtime.printing import show

COLUMNS = 80
LINE_INTERVAL_S = 1.0
NEWS_INTERVAL_S = 0.2


@dataclass(slots=True)
class Scene:
    """The facts that a screen shows of an act."""

    stage: Stage
    producer: Producer
    witness: Witness
    supervisor: Supervisor = field(init=False)
    started_at: float = 0.0
    news: list[tuple[float, str]] = field(default_factory=list)
    """Sentences, each with the seconds since the start."""

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self.stage.folder, on_end=self._ended)

    def begin(self) -> None:
        """Start the clock, and announce the faults that this mode cannot play."""
        self.started_at = time.time()
        for asked, played in self.stage.settings.left_out(self.stage.recovery):
            self.announce(f"{asked} {f'becomes {played}' if played else 'is left out'}: no reaper runs")

    @property
    def passed_s(self) -> float:
        """Seconds since the start."""
        return time.time() - self.started_at

    def announce(self, sentence: str) -> None:
        """Add a sentence to the news."""
        self.news.append((self.passed_s, sentence))

    def _ended(self, run: ProcessRun) -> None:
        if self.started_at and run.killed_at is None and not run.stopped:
            self.announce(f"{run.role} {run.name} died (exit code {run.exit_code}); it is restarted")

    @property
    def over(self) -> int:
        """Jobs that are settled or dead letters."""
        return max(0, len(self.producer.enqueued) - self.witness.view.outstanding)

    def figures(self) -> dict[str, str]:
        """Return the latest numbers by name, in the order in which they are shown."""
        view, counts = self.witness.view, self.witness.counts
        figures: dict[str, object] = {
            "settled": f"{max(0, self.over - view.dead)}/{len(self.producer.enqueued)}",
            "ready": view.ready,
            "in flight": view.in_flight,
            "recovered": counts[EventName.RECOVERED],
            "dead": view.dead,
        }
        if self.stage.recovery.by_reapers:
            alive = self.supervisor.alive(Role.REAPER)
            leaders = (run.name for run in alive if queries.belongs_to(view.holder, run.name))
            figures["leader"] = next(leaders, "nobody")
        return {name: str(figure) for name, figure in figures.items()}


Screen = Callable[[Scene], Coroutine[Any, Any, None]]
"""Shows a scene until it is cancelled."""


async def plain_screen(scene: Scene) -> None:
    """Print a line a second, and one for each sentence of the news."""
    shown, next_line_s = 0, 0.0

    def update(*, last: bool = False) -> None:
        nonlocal shown, next_line_s
        lines = [f"  {at:5.1f} s  * {sentence}" for at, sentence in scene.news[shown:]]
        shown = len(scene.news)
        if last or scene.passed_s >= next_line_s:
            figures = " ".join(f"{name} {figure}" for name, figure in scene.figures().items())
            lines.append(f"  {scene.passed_s:5.1f} s  {figures}")
            next_line_s += LINE_INTERVAL_S
        show(*fitted(lines))

    try:
        while True:
            update()
            await anyio.sleep(NEWS_INTERVAL_S)
    finally:
        update(last=True)


async def quiet_screen(_scene: Scene) -> None:
    """Show nothing, so that a measurement is not disturbed."""
    await anyio.sleep_forever()


def fitted(lines: Iterable[str]) -> list[str]:
    """Return ``lines``, those that are too long for a terminal broken at words and indented."""
    return [part for line in lines for part in ([line] if len(line) <= COLUMNS else _broken(line))]


def _broken(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    wrapper = textwrap.TextWrapper(COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    wrapper.replace_whitespace = False
    return wrapper.wrap(line)
