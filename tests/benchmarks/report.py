"""How long the whole report takes on a lake of millions of events.

A lake is generated: the events that seven kinds of jobs in four groups would have left, some of them crashed, slow,
failed or poison. Then `reaper pipeline report` is run on it as a process of its own, on two cores, everything included:
Java and Spark start, every question is asked, and the page is written. The time is from start to end of the process;
generating the lake is not in it.

Where the time goes with five million events: the report takes some 43 s of CPU time on two cores, of which 28 s are
Spark's tasks (17 s for the six passes over the lake, 11 s for a hundred small stages that run code for the first time),
4.5 s planning, 3.5 s compiling, 3 s the start of Java and Spark, and 2 s drawing. Three quarters of it do not depend on
how large the lake is. What was tried: one question at a time, no code generation for small questions (as slow), Java's
better compiler (its compiling costs more than it saves below some ten million events), classes from an archive (3 s
less, for a file of 190 MB that belongs to one version of everything), and other garbage collectors.
"""

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.figures import Demand, Result, Row, at_most
from tests.support.processes import Processes

MASTER = "local[2]"
TIMEOUT_S = 1_800.0


@dataclass(frozen=True, slots=True)
class Size:
    """One lake, the memory Spark gets for it, and how long the report may take."""

    events: int
    heap: str
    demand: Demand | None = None


SIZES = (Size(5_000_000, "2g", at_most(20)), Size(20_000_000, "3g", at_most(60)))
QUICK_SIZES = (Size(100_000, "1g"),)


async def measure(*, quick: bool) -> Result:
    """Generate a lake of each size, and report on it."""
    rows: list[Row] = []
    for size in QUICK_SIZES if quick else SIZES:
        with tempfile.TemporaryDirectory(prefix="reaper-report-") as name:
            rows += await _report_on(size, Path(name))
    return Result(tuple(rows))


async def _report_on(size: Size, folder: Path) -> list[Row]:
    processes = Processes(folder)
    lake, page = folder / "lake", folder / "report.html"
    try:
        generator = processes.python("-m", "tests.benchmarks.report", str(lake), str(size.events), size.heap)
        assert await generator.wait(TIMEOUT_S) == 0, generator.output
        options = ("--lake", str(lake), "--output", str(page), "--master", MASTER, "--heap", size.heap, "--quiet")
        began = time.monotonic()
        report = processes.python("-m", "reaper", "pipeline", "report", *options, name="report")
        assert await report.wait(TIMEOUT_S) == 0, report.output
        seconds = time.monotonic() - began
    finally:
        processes.end()
    what = f"{size.events:,} events, heap {size.heap}"
    return [
        Row(f"full report on {what}", seconds, "s", demand=size.demand),
        Row(f"size of its page, {what}", page.stat().st_size / 1_000, "kB", demand=at_most(1_000)),
    ]


def _generate(lake: str, events: str, heap: str) -> None:
    from reaper.pipeline.session import spark_session  # benchmarks without Spark need none
    from reaper.pipeline.synthetic import generate_lake

    with spark_session(MASTER, heap=heap) as spark:
        generate_lake(spark, lake, events=int(events))


if __name__ == "__main__":
    _generate(*sys.argv[1:])
