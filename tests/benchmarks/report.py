"""How long the whole report takes on a lake of millions of events.

A lake is generated, with the events of seven kinds of jobs in four groups. Some of them crashed, or were slow, failed
or poison. Then `reaper pipeline report` runs on it as its own process, on two cores and the Java of the extra `jre`. It
starts Java and Spark, asks every question, and writes the page. The time is from start to end of the process, without
the generation of the lake.
"""

import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.figures import Demand, Result, Row, at_most
from tests.support.java import java_of_the_extra
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
    with tempfile.TemporaryDirectory(prefix="reaper-report-") as name:
        env = {"JAVA_HOME": str(java_of_the_extra())}
        for size in QUICK_SIZES if quick else SIZES:
            folder = Path(name) / f"{size.events}"
            folder.mkdir()
            rows += await _report_on(size, folder, env)
    return Result(tuple(rows))


async def _timed(folder: Path, env: Mapping[str, str], *arguments: str) -> float:
    """Run a Python program, and return how many seconds it took from start to end."""
    processes = Processes(folder)
    try:
        began = time.monotonic()
        program = processes.python(*arguments, env=env)
        assert await program.wait(TIMEOUT_S) == 0, program.output
        return time.monotonic() - began
    finally:
        processes.end()


async def _report_on(size: Size, folder: Path, env: Mapping[str, str]) -> list[Row]:
    lake, page = folder / "lake", folder / "report.html"
    await _timed(folder, env, "-m", "tests.benchmarks.report", str(lake), str(size.events), size.heap)
    options = (
        "--lake",
        str(lake),
        "--output",
        str(page),
        "--spark-master",
        MASTER,
        "--spark-memory",
        size.heap,
        "--quiet",
    )
    report = ("-m", "reaper", "pipeline", "report", *options)
    seconds = await _timed(folder, env, *report)
    what = f"{size.events:,} events, heap {size.heap}"
    return [
        Row(f"full report on {what}", seconds, "s", demand=size.demand),
        Row(f"size of its page, {what}", page.stat().st_size / 1_000, "kB", demand=at_most(1_000)),
    ]


def _generate(lake: str, events: str, heap: str) -> None:
    from reaper.pipeline.spark.session import build_session  # benchmarks without Spark need none
    from tests.benchmarks.synthetic import generate_lake

    with build_session(MASTER, heap=heap) as spark:
        generate_lake(spark, lake, events=int(events))


if __name__ == "__main__":
    _generate(*sys.argv[1:])
