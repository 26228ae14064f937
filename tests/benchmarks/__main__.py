"""Runs the benchmarks, prints their tables, and writes docs/benchmarks.md.

It reports, and does not judge: the exit code is 0 whether demands are met or not.
"""

import inspect
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import anyio
import click

from tests.benchmarks import (
    crash,
    failover,
    idle,
    ingest,
    latency,
    mass,
    overshoot,
    recovery,
    redis_stream,
    report,
    scan,
    schedule,
    throughput,
    tracing,
)
from tests.benchmarks.machine import describe
from tests.benchmarks.page import Chapter, terminal_table, verdict, write_page
from tests.support.servers import binaries_at_hand, version_of

BENCHMARKS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        overshoot,
        crash,
        scan,
        recovery,
        mass,
        schedule,
        failover,
        throughput,
        tracing,
        latency,
        idle,
        redis_stream,
        ingest,
        report,
    )
}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice(list(BENCHMARKS)), help="Run this one; may be repeated.")
@click.option("--quick", is_flag=True, help="Small numbers: to see that everything works.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where to write the page. Without it, only a complete run is written, to docs/benchmarks.md.",
)
def main(only: Sequence[str], quick: bool, output: Path | None) -> None:
    if not sys.platform.startswith("linux"):
        raise click.ClickException("the benchmarks read CPU time and memory from /proc: run them on Linux.")
    machine = describe(".".join(map(str, version_of(binaries_at_hand()[-1]) or ())))
    click.echo(f"{machine.hardware}\n{machine.software}\n{machine.load}\n")
    chapters = [_run(name, quick=quick) for name in only or BENCHMARKS]
    click.echo(verdict(row for chapter in chapters for row in chapter.result.rows))
    page = output or (PAGE if not (only or quick) else None)
    if page:
        page.write_text(write_page(chapters, machine, datetime.now(UTC).date()), encoding="utf-8")
        click.echo(f"written to {page.name}")


def _run(name: str, *, quick: bool) -> Chapter:
    """Run one benchmark and print what it has found."""
    module, started = BENCHMARKS[name], time.monotonic()
    result = anyio.run(lambda: module.measure(quick=quick))
    click.echo(f"== {name} ({time.monotonic() - started:.0f} s)\n{terminal_table(result.rows)}\n")
    for breakdown in result.breakdowns:
        click.echo("\n".join([breakdown.title, *(f"  {much:>8}  {what}" for what, much in breakdown.parts), ""]))
    return Chapter(name, inspect.getdoc(module) or name, result)


if __name__ == "__main__":
    main()
