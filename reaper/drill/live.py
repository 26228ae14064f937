"""What people see while an act is played: a live view on a terminal, plain lines elsewhere."""

import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import anyio

from reaper.drill import queries
from reaper.drill.lines import fitted
from reaper.drill.producer import Producer
from reaper.drill.records import ProcessRun, Role, Step
from reaper.drill.redis_server import INSTALL_LINE
from reaper.drill.stage import Stage
from reaper.drill.supervisor import Supervisor
from reaper.drill.witness import Witness
from workers.protocol.errors import StreamReaperError
from workers.protocol.events import EventName
from workers.runtime.printing import show

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_INTERVAL_S = 1.0
LIVE_INTERVAL_S = 0.2
NEWS_SHOWN = 14


class MissingExtraError(StreamReaperError):
    """A package of the ``demo`` extra is missing. The message is the line that installs it."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The numbers of one moment."""

    enqueued: int
    settled: int
    ready: int
    in_flight: int
    recovered: int
    dropped: int
    suspects: int
    dead: int
    stale_refused: int
    leader: str
    token: int


@dataclass(slots=True)
class Scene:
    """What a screen shows of an act."""

    stage: Stage
    producer: Producer
    witness: Witness
    supervisor: Supervisor = field(init=False)
    started_at: float = 0.0
    news: list[tuple[float, str]] = field(default_factory=list)
    """What happened, with seconds since the beginning."""

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self.stage.folder, on_end=self._ended)

    def begin(self) -> None:
        """Start the clock, and say which of the faults asked for cannot be played."""
        self.started_at = time.time()
        for adapted in self.stage.settings.adapted(self.stage.recovery):
            if adapted.played != adapted.asked:
                instead = f"becomes {adapted.played}" if adapted.played else "is left out"
                self.announce(f"{adapted.asked} {instead}: {adapted.why}")

    @property
    def passed_s(self) -> float:
        """Seconds since the beginning."""
        return time.time() - self.started_at

    def announce(self, sentence: str) -> None:
        """Tell what happened."""
        self.news.append((self.passed_s, sentence))

    def _ended(self, run: ProcessRun) -> None:
        if self.started_at and run.killed_at is None and not run.stopped:
            self.announce(f"{run.role} {run.name} died (exit code {run.exit_code}); it is restarted")

    def figures(self) -> Moment:
        """Return the numbers as they were seen last."""
        view, counts, enqueued = self.witness.view, self.witness.counts, len(self.producer.enqueued)
        leads = [run.name for run in self.supervisor.alive(Role.REAPER) if queries.belongs_to(view.holder, run.name)]
        return Moment(
            enqueued=enqueued,
            settled=max(0, enqueued - view.outstanding - view.dead - counts[Step.DROPPED]),
            ready=view.ready,
            in_flight=view.in_flight,
            recovered=counts[EventName.RECOVERED] + counts[Step.CLAIM],
            dropped=counts[Step.DROPPED],
            suspects=view.parked,
            dead=view.dead,
            stale_refused=counts[EventName.REFUSED],
            leader=leads[0] if leads else "nobody",
            token=view.token,
        )


class Screen(Protocol):
    """Shows a scene until it is cancelled."""

    async def run(self, scene: Scene) -> None:
        """Show ``scene`` until cancelled."""


class PlainScreen:
    """One line a second, and one for each thing that happens."""

    async def run(self, scene: Scene) -> None:
        """Show ``scene`` until cancelled."""
        shown, next_line = 0, 0.0
        try:
            while True:
                shown = self._tell(scene, shown)
                if scene.passed_s >= next_line:
                    show(*fitted([f"  {scene.passed_s:5.1f} s  {self._line(scene)}"]))
                    next_line += PLAIN_INTERVAL_S
                await anyio.sleep(LIVE_INTERVAL_S)
        finally:
            self._tell(scene, shown)
            show(*fitted([f"  {scene.passed_s:5.1f} s  {self._line(scene)}"]))

    def _tell(self, scene: Scene, shown: int) -> int:
        for at, sentence in scene.news[shown:]:
            show(*fitted([f"  {at:5.1f} s  * {sentence}"]))
        return len(scene.news)

    def _line(self, scene: Scene) -> str:
        now = scene.figures()
        line = (
            f"settled {now.settled}/{now.enqueued} ready {now.ready} in flight {now.in_flight} "
            f"recovered {now.recovered} dead {now.dead}"
        )
        if now.dropped:
            line += f" dropped {now.dropped}"
        return f"{line} leader {now.leader}" if scene.stage.recovery.by_reapers else line


class QuietScreen:
    """Shows nothing; for measurements."""

    async def run(self, _scene: Scene) -> None:
        """Wait until cancelled."""
        await anyio.sleep_forever()


class LiveScreen:
    """A view that is drawn again and again, for terminals. Needs the ``rich`` package."""

    async def run(self, scene: Scene) -> None:
        """Show ``scene`` until cancelled; its last state stays on the screen."""
        from rich.live import Live

        with Live(self.draw(scene), auto_refresh=False) as live:
            try:
                while True:
                    await anyio.sleep(LIVE_INTERVAL_S)
                    live.update(self.draw(scene), refresh=True)
            finally:
                live.update(self.draw(scene), refresh=True)

    def draw(self, scene: Scene) -> "RenderableType":
        """Return the view of this moment."""
        from rich.console import Group
        from rich.padding import Padding
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar

        now = scene.figures()
        total = max(now.enqueued, len(scene.producer.jobs))
        parts: list[RenderableType] = [
            Padding(ProgressBar(total=total, completed=now.settled + now.dead)),  # a bar alone ends without a newline
            self._figures(now),
            self._cast(scene, now),
            *(f"[dim]{at:5.1f} s[/]  {sentence}" for at, sentence in scene.news[-NEWS_SHOWN:]),
        ]
        title = f"{scene.stage.recovery.title} · {scene.passed_s:.1f} s"
        return Panel(Group(*parts), title=title, title_align="left")

    def _figures(self, now: Moment) -> "RenderableType":
        from rich.table import Table

        table = Table(box=None, expand=True, header_style="dim")
        cells = {
            "enqueued": str(now.enqueued),
            "settled": f"[green]{now.settled}[/]",
            "ready": str(now.ready),
            "in flight": f"[cyan]{now.in_flight}[/]",
            "recovered": f"[yellow]{now.recovered}[/]",
            "suspects": str(now.suspects),
            "dead": f"[red]{now.dead}[/]",
            "stale refused": f"[magenta]{now.stale_refused}[/]",
        }
        if now.dropped:
            cells["dropped"] = f"[red]{now.dropped}[/]"
        for name in cells:
            table.add_column(name, justify="right")
        table.add_row(*cells.values())
        return table

    def _cast(self, scene: Scene, now: Moment) -> str:
        names = []
        for run in scene.supervisor.alive(*Role):
            leads = run.name == now.leader
            names.append(f"[bold reverse] {run.name} [/]" if leads else run.name)
        leader = f"   leader [bold]{now.leader}[/], term {now.token}" if scene.stage.recovery.by_reapers else ""
        return f"alive {' '.join(names)}{leader}"


def screen_at_hand(*, quiet: bool = False) -> Screen:
    """Return the live view on a terminal, plain lines elsewhere or where ``NO_COLOR`` is set, nothing with ``quiet``.

    Raises MissingExtraError.
    """
    if quiet:
        return QuietScreen()
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return PlainScreen()
    try:
        import rich  # noqa: F401 - is it there?
    except ImportError as error:
        raise MissingExtraError(f"the live view needs rich, which is not installed: {INSTALL_LINE}.") from error
    return LiveScreen()
