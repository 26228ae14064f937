"""Runs the benchmarks, prints their tables, and writes docs/internals/benchmarks.md, with a chart over releases.

It reports, and does not judge: the exit code is 0 whether demands are met or not.
"""

import inspect
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import anyio
import click

from tests.benchmarks import (
    crash,
    failover,
    history,
    idle,
    ingest,
    latency,
    many_groups,
    mass,
    overshoot,
    recover_calls,
    recovery,
    report,
    round_trips,
    scan,
    schedule,
    throughput,
)
from tests.benchmarks.machine import describe
from tests.benchmarks.page import Chapter, Page, demands_of, read_page, terminal_table, verdict, write_page
from tests.support.servers import newest_redis, shown

BENCHMARKS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        overshoot,
        crash,
        scan,
        recovery,
        recover_calls,
        mass,
        schedule,
        failover,
        many_groups,
        throughput,
        latency,
        round_trips,
        idle,
        ingest,
        report,
    )
}
ABOUTS = {name: inspect.getdoc(module) or name for name, module in BENCHMARKS.items()}
"""Title and text of each."""
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/internals/benchmarks.md"
TABLE, CHART = PAGE.with_suffix(".csv"), PAGE.parent / "images" / "benchmarks.svg"
PYTHON = "{}.{}".format(*sys.version_info)


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice(list(BENCHMARKS)), help="Run this one; may be repeated.")
@click.option("--quick", is_flag=True, help="Small numbers: to see that everything works.")
def main(only: Sequence[str], quick: bool) -> None:
    if not sys.platform.startswith("linux"):
        raise click.ClickException("the benchmarks read CPU time and memory from /proc: run them on Linux.")
    chapters = []
    for name in only or BENCHMARKS:
        chapters.append(_run(name, quick=quick))
        if not quick:
            _write_down(chapters[-1])
    click.echo(verdict(demands_of(row for chapter in chapters for row in chapter.result.rows)))


def _run(name: str, *, quick: bool) -> Chapter:
    """Run one benchmark and print what it has found."""
    module = BENCHMARKS[name]
    machine = describe(shown(newest_redis()))
    click.echo(f"== {name}: {machine.load}")
    started = time.monotonic()
    result = anyio.run(lambda: module.measure(quick=quick))
    click.echo(f"{terminal_table(result.rows)}\n({time.monotonic() - started:.0f} s)\n")
    return Chapter(name, result, machine, datetime.now(UTC).date(), PYTHON)


def _write_down(chapter: Chapter) -> None:
    """Put a benchmark into the page, the table and the chart, in place of what they have of it on this Python."""
    release = version("stream-reaper")
    before = history.read(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else []
    told = history.merged(before, history.measured([chapter], release))
    page = read_page(PAGE.read_text(encoding="utf-8"), ABOUTS) if PAGE.exists() else Page()
    ratios = history.ratios_of(release, told)
    PAGE.write_text(write_page(page.renewed([chapter]), ABOUTS, ratios), encoding="utf-8")
    TABLE.write_text(history.written(told), encoding="utf-8")
    CHART.write_text(history.chart(told), encoding="utf-8")
    click.echo(f"written to {PAGE.name}, {TABLE.name} and {CHART.name}\n")


if __name__ == "__main__":
    main()
