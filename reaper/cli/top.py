"""``reaper top``: the state of the service, live in a terminal."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import anyio
import click

from reaper.cli.options import connected, json_option, operator_options
from reaper.operations.judgement import Problem, as_json, folded, judge, notes
from reaper.operations.snapshot import take_snapshot
from reaper.operations.state import GroupState, Snapshot, SourceState
from reaper.operations.words import duration
from reaper.settings import ReaperSettings
from workers.protocol.errors import ConfigurationError, StreamReaperError
from workers.runtime.options import Amount, examples, show_error
from workers.runtime.printing import printable, show_json

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

COLUMNS = ("group", "mode", "ready", "oldest", "pending", "idle", "scheduled", "suspects", "dead", "recovered", "/s")
NARROW = 120
"""Columns of a terminal below which a group's name has a line of its own: figures that are cut are worth nothing."""
REASON_MISSING = (
    "`reaper top` needs the package 'rich': pip install 'stream-reaper[top]' (or use `reaper status --watch 1`)."
)


@click.command(epilog=examples("reaper top", "reaper top --interval 0.5 --groups orders/billing"))
@click.option(
    "--interval",
    type=Amount(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option("--rounds", type=click.IntRange(min=1), metavar="NUMBER", help="End after so many looks.")
@json_option
@operator_options
def top(interval: float, rounds: int | None, machine: bool, settings: ReaperSettings) -> None:
    """Show leader, groups and what is wrong, live, until Ctrl-C. With --json, one document a line.

    Exit code 0, or 2 where Redis cannot be reached at the start; later outages are shown and waited out.
    """
    show = _Lines() if machine else _screen()
    try:
        anyio.run(_watch, settings, interval, rounds, show)
    except KeyboardInterrupt:
        pass
    finally:
        show.close()


async def _watch(settings: ReaperSettings, interval: float, rounds: int | None, show: "_Lines | _Screen") -> None:
    before: Snapshot | None = None
    number = 0
    while rounds is None or number < rounds:
        if number:
            await anyio.sleep(interval)
        number += 1
        try:
            async with connected(settings) as (client, server):
                snapshot = await take_snapshot(client, settings.namespace_keys, settings.watched, server)
        except StreamReaperError as error:
            if before is None:
                raise
            show.failed(before, error)
            continue
        show.look(snapshot, before)
        before = snapshot


class _Lines:
    """For machines."""

    def look(self, snapshot: Snapshot, before: Snapshot | None) -> None:  # noqa: ARG002 - as `_Screen`
        show_json(as_json(snapshot, judge(snapshot)))

    def failed(self, before: Snapshot, error: StreamReaperError) -> None:  # noqa: ARG002 - as `_Screen`
        show_error(error, machine=True)

    def close(self) -> None:
        """Nothing is open."""


def _screen() -> "_Screen":
    if not sys.stdout.isatty():
        raise ConfigurationError("`reaper top` needs a terminal: use `reaper status --watch 1`, or --json.")
    try:
        return _Screen()
    except ImportError as error:
        raise ConfigurationError(REASON_MISSING) from error


class _Screen:
    """For people."""

    def __init__(self) -> None:
        from rich.live import Live  # an extra

        self._live = Live(auto_refresh=False, screen=True)
        self._live.start()

    def look(self, snapshot: Snapshot, before: Snapshot | None) -> None:
        self._live.update(screen(snapshot, judge(snapshot), before, width=self._live.console.width), refresh=True)

    def failed(self, before: Snapshot, error: StreamReaperError) -> None:
        width = self._live.console.width
        self._live.update(screen(before, (), None, failure=str(error), width=width), refresh=True)

    def close(self) -> None:
        self._live.stop()


def screen(
    snapshot: Snapshot, problems: Sequence[Problem], before: Snapshot | None, *, failure: str = "", width: int = 160
) -> "Group":
    """Return what is shown of a snapshot, ``width`` columns wide; rates are those since ``before``.

    What is wrong comes first: many groups fill a terminal, and what does not fit is cut at its end.
    """
    from rich.console import Group

    lines = [_words(_leader_text(snapshot), "bold")]
    if failure:
        lines.append(_words(f"unreachable: {failure}", "bold red"))
    told = [_words(f"- {line}", "red") for line in folded((one.pair, one.text) for one in problems)]
    told += [_words(f"note  {note}", "yellow") for note in notes(snapshot)]
    told = told or [_words("" if failure else "healthy", "green")]
    if width < NARROW:
        return Group(*lines, *told, _words(""), *_narrow_lines(snapshot, problems, before))
    return Group(*lines, *told, _words(""), _table(snapshot, problems, before))


def _words(line: str, style: str = "") -> "Text":
    """Return a line as it may stand here: the one way onto this screen."""
    from rich.text import Text

    return Text(printable(line), style=style)


def _table(snapshot: Snapshot, problems: Sequence[Problem], before: Snapshot | None) -> "Table":
    from rich.table import Table

    table = Table(*COLUMNS, expand=True, header_style="dim", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
        column.no_wrap = True
    for group in snapshot.groups:
        shown = cells(group, _rate(snapshot, before, group))
        table.add_row(*map(_words, shown), style=_style(group, problems))
    return table


def _narrow_lines(snapshot: Snapshot, problems: Sequence[Problem], before: Snapshot | None) -> "Iterator[Text]":
    """Yield the same as two lines a group, its name above its figures."""
    rows = [(group, cells(group, _rate(snapshot, before, group))) for group in snapshot.groups]
    figures = [COLUMNS[2:], *(row[2:] for _, row in rows)]
    widths = [max(map(len, column)) for column in zip(*figures, strict=True)]

    def line(words: Sequence[str]) -> str:
        return "  ".join(word.rjust(width) for word, width in zip(words, widths, strict=True))

    yield _words(line(COLUMNS[2:]), "dim")
    for group, (name, mode, *others) in rows:
        style = _style(group, problems)
        yield _words(f"{name}  {mode}", style)
        yield _words(line(others), style)


def _leader_text(snapshot: Snapshot) -> str:
    leader = snapshot.leader
    who = (
        f"leader {leader.id}  term {leader.token}  lease {duration(snapshot.lease_left_ms)}" if leader else "no leader"
    )
    return f"{snapshot.namespace}  {snapshot.server}  {who}  {len(snapshot.followers)} followers"


def _style(group: GroupState, problems: Sequence[Problem]) -> str:
    return "red" if any(problem.pair == group.pair for problem in problems) else ""


def _rate(snapshot: Snapshot, before: Snapshot | None, group: GroupState) -> str:
    """Return recoveries per second since the look before."""
    earlier = before.group(group.pair) if before else None
    if before is None or earlier is None or snapshot.now_ms <= before.now_ms:
        return ""
    return f"{max(0, group.recovered - earlier.recovered) * 1000 / (snapshot.now_ms - before.now_ms):.1f}"


def cells(group: GroupState, rate: str) -> list[str]:
    """Return one row; the retry stream counts with the stream."""
    sources = (group.main, group.retry)
    return [
        group.pair,
        f"{group.mode or '-'}{' paused' if group.paused else ''}",
        " + ".join(str(source.ready) for source in sources if source.exists) or "-",
        _oldest(sources, "oldest_ready_ms"),
        str(sum(source.pending for source in sources)),
        _oldest(sources, "oldest_pending_ms"),
        str(group.scheduled),
        f"{group.suspects_parked}/{group.suspects_out}",
        str(group.dead_letters),
        str(group.recovered),
        rate,
    ]


def _oldest(sources: Sequence[SourceState], name: str) -> str:
    ages = [age for source in sources if (age := getattr(source, name)) is not None]
    return duration(max(0, *ages)) if ages else ""
