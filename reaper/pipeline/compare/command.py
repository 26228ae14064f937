"""The command ``reaper compare``."""

import json
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from reaper.drill.disks import told_of_disks
from reaper.drill.settings import MOST_MS, DrillSettings
from reaper.drill.trace import MOST_JOBS
from reaper.pipeline.command import (
    ended_in_order,
    leave_at_once,
    leave_in_order,
    open_session,
    sentences,
    show_result,
)
from reaper.pipeline.compare.scenarios import FAULT_AT_S, LONGEST_S, MODES, SCENARIOS, choose_scenarios, moved
from reaper.pipeline.progress import ProgressLine
from reaper.pipeline.settings import PipelineSettings
from workers.protocol.errors import ConfigurationError
from workers.runtime.options import Amount, examples, json_flag
from workers.runtime.output_files import OutputFile, output_file
from workers.runtime.settings import load_settings

if TYPE_CHECKING:
    from reaper.pipeline.compare.findings import Comparison
    from reaper.pipeline.compare.play import Plan

DEFAULT_OUTPUT = "comparison.html"
MOST_TURNS = 1_000

_HELP = f"""Play the same drill once for each way to recover, and say which is the better one for what.

Every drill has the same trace, seed, and faults at the same moments, and runs on a Redis of its own kind. The journals
are then read on Spark. All figures are written beside the page (--output), with the suffix .json.
Exit code 0 it was played, whoever won; 2 not possible.

\b
Scenarios:
{chr(10).join(f"  {name:<20}{scenario.title}" for name, scenario in SCENARIOS.items())}
"""


@click.command(
    help=_HELP,
    epilog=examples(
        "reaper compare",
        "reaper compare --mode reaper/stream --mode embedded --repeat 3 --output comparison.html",
        "reaper compare --trace trace.csv --speedup 30 --limit 2000 --json",
    ),
)
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODES), help="Only these; repeatable. Default: all.")
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME", help="Only these; repeatable. Default: all.")
@click.option(
    "--repeat", type=click.IntRange(min=1, max=MOST_TURNS), default=1, show_default=True, help="Turns of each drill."
)
@click.option(
    "--trace", type=click.Path(path_type=Path), help="CSV file, as for `reaper drill`. Default: a generated one."
)
@click.option("--speedup", type=Amount(min=0, min_open=True), help="Replay arrivals this many times faster.")
@click.option("--limit", type=click.IntRange(min=1, max=MOST_JOBS), help="Replay no more than this many jobs.")
@click.option("--prefill-ms", type=Amount(min=0, max=MOST_MS), help="Duration of a context token.")
@click.option("--decode-ms", type=Amount(min=0, max=MOST_MS), help="Duration of a generated token.")
@click.option("--seed", type=int, help="Of the generated trace and the payloads.")
@click.option(
    "--fault-at",
    type=Amount(min=0, max=LONGEST_S),
    default=FAULT_AT_S,
    show_default=True,
    help="Seconds after the first job at which the harm is done: when jobs of the trace are in flight.",
)
@output_file("--output", default=DEFAULT_OUTPUT, show_default=True, help="The page, one HTML file.")
@click.option(
    "--files",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the drills' reports and the lake in this folder.",
)
@click.option("--heap", default="1g", show_default=True, help="Memory of Spark's driver.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@json_flag("Print all figures as JSON, and no progress.")
def compare(
    modes: tuple[str, ...],
    scenarios: tuple[str, ...],
    repeat: int,
    trace: Path | None,
    speedup: float | None,
    limit: int | None,
    prefill_ms: float | None,
    decode_ms: float | None,
    seed: int | None,
    fault_at: float,
    output: OutputFile,
    files: Path | None,
    heap: str,
    quiet: bool,
    machine: bool,
) -> None:
    """Play and judge; see `_HELP`."""
    with sentences():
        from reaper.pipeline.compare.page import write_page
        from reaper.pipeline.compare.play import Plan
        from reaper.pipeline.spark.session import check_session

        given = {"trace": trace, "speedup": speedup, "limit": limit, "prefill_ms": prefill_ms,
                 "decode_ms": decode_ms, "seed": seed}  # fmt: skip
        _check_jobs(given)
        options = tuple(
            word
            for name, value in given.items()
            if value is not None
            for word in (f"--{name.replace('_', '-')}", str(value.absolute() if isinstance(value, Path) else value))
        )
        situations = [moved(scenario, fault_at) for scenario in choose_scenarios(scenarios)]
        chosen = tuple(mode for mode in MODES if mode in (modes or MODES))
        plan = Plan(situations, chosen, repeat, options)
        figures = _figures_file(output)
        check_session(heap, "--heap")
        line = ProgressLine(quiet=quiet or machine)
        try:
            with ended_in_order(), told_of_disks(files), _folder(files) as folder:
                settings = PipelineSettings(lake=_lake_in(folder, files), heap=heap)
                comparison = _play_and_read(plan, folder, settings, line)
        except KeyboardInterrupt:  # all is put away, but for a thread that may still be reading journals
            leave_at_once(signal.SIGINT, None)
        line.end()
        output.write(write_page(comparison))
        figures.write(json.dumps(comparison.as_json(), indent=1) + "\n")
        show_result(comparison.as_json(), comparison.overall, machine=machine)


def _check_jobs(given: Mapping[str, Any]) -> None:
    """Refuse, before anything is played, jobs that no drill of ours could play. Raises ConfigurationError."""
    jobs = load_settings(DrillSettings, flags=given).jobs()
    over = max(job.at + job.duration for job in jobs)
    if over > timedelta(seconds=LONGEST_S):
        raise ConfigurationError(
            f"the jobs take {over.total_seconds():,.0f} s, and a drill of the comparison {LONGEST_S} s at most: replay "
            "them faster (--speedup), fewer of them (--limit), or shorter ones (--prefill-ms, --decode-ms)."
        )


@contextmanager
def _folder(files: Path | None) -> Iterator[Path]:
    """Give an empty folder: one that is kept, or a temporary one."""
    if files is None:
        with tempfile.TemporaryDirectory(prefix="reaper-compare-") as temporary:
            yield Path(temporary)
        return
    folder = files.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise ConfigurationError(f"--files {files} cannot be used: {error.strerror}.") from error
    if not is_empty:
        raise ConfigurationError(f"--files {files}: the folder is not empty.")
    yield folder


def _lake_in(folder: Path, files: Path | None) -> str:
    """Return where the lake will be. Raises ConfigurationError, before all is played, where none can be."""
    from reaper.pipeline.lake.tables import lake_at

    try:
        return lake_at(folder / "lake").root
    except ConfigurationError as error:
        named = "the folder for temporary files (TMPDIR names another)" if files is None else f"--files {files}"
        raise ConfigurationError(f"{named} will not do: {error}") from error


def _play_and_read(plan: "Plan", folder: Path, settings: PipelineSettings, line: ProgressLine) -> "Comparison":
    from reaper.pipeline.compare.findings import conclude
    from reaper.pipeline.compare.journals import ingest_journals, read_journals
    from reaper.pipeline.compare.play import play

    def ingest(url: str) -> None:
        session = open_session(settings, line)
        line.show("bringing the journals into a lake …")
        ingest_journals(session, settings.model_copy(update={"redis_url": url}))

    drills = anyio.run(partial(play, plan, folder, line.show, ingest))
    session = open_session(settings, line, leave_in_order)
    line.show("reading the journals …")
    opinions = read_journals(session, settings.lake, drills.played)
    return conclude(drills, opinions, datetime.now(UTC).isoformat(timespec="seconds"))


def _figures_file(output: OutputFile) -> OutputFile:
    """Return the file beside the page. Raises ConfigurationError."""
    if output.path.suffix == ".json":
        raise ConfigurationError(f"--output {output}: the page is HTML; its figures are written beside it, as .json.")
    return output.beside(".json")
