"""The command ``reaper compare``."""

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click

from reaper.drill.drill import run_folder
from reaper.drill.settings import DrillSettings
from reaper.pipeline.command import ended_in_order, need_matplotlib, show_result
from reaper.pipeline.compare.play import Plan, play
from reaper.pipeline.compare.scenarios import FAULT_AT_S, LONGEST_S, MODES, SCENARIOS, choose_scenarios, moved
from reaper.pipeline.progress import ProgressLine
from workers.protocol.errors import ConfigurationError
from workers.runtime.options import (
    INTERRUPTED_EXIT,
    DurationType,
    errors_as_sentences,
    format_option,
    help_end,
    output_option,
    settings_options,
)
from workers.runtime.settings import load_settings

DEFAULT_OUTPUT = "comparison.html"
MOST_TURNS = 1_000
JOBS = ("trace", "speedup", "limit", "prefill_ms", "decode_ms", "seed")
"""Settings of the drill that choose the jobs, which are the same in every drill."""

_HELP = f"""Compare the recovery modes under the same faults.

Every drill has the same trace, seed and faults, and starts a Redis that its mode needs. All figures are written next
to the page (--output), with the suffix .json.

\b
Scenarios:
{chr(10).join(f"  {name:<20}{scenario.title}" for name, scenario in SCENARIOS.items())}
"""


@click.command(
    help=_HELP,
    epilog=help_end(
        "reaper compare",
        "reaper compare --mode reaper/stream --mode embedded/stream --repeat 3 --output comparison.html",
        "reaper compare --trace trace.csv --speedup 30 --limit 2000 -o json",
        ok="all drills were played, whatever their results",
    ),
)
@click.option(
    "--mode", "modes", multiple=True, type=click.Choice(MODES), help="Play only this. Repeatable. Default: all."
)
@click.option(
    "--scenario", "scenarios", multiple=True, metavar="NAME", help="Play only this. Repeatable. Default: all."
)
@click.option(
    "--repeat", type=click.IntRange(min=1, max=MOST_TURNS), default=1, show_default=True, help="Number of turns."
)
@settings_options(DrillSettings, exclude=DrillSettings.model_fields.keys() - set(JOBS))
@click.option(
    "--fault-at",
    type=DurationType(most=LONGEST_S),
    default=f"{FAULT_AT_S:g}s",
    show_default=True,
    help="Time of the fault after the first job. Jobs must be in flight then.",
)
@output_option(default=DEFAULT_OUTPUT, show_default=True, help="Write the page to this HTML file.")
@click.option(
    "--files",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the drills' reports in this folder.",
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
@format_option("Print text, or all figures as JSON without progress.")
def compare(
    modes: tuple[str, ...],
    scenarios: tuple[str, ...],
    repeat: int,
    fault_at: float,
    output: Path,
    files: Path | None,
    quiet: bool,
    machine: bool,
    **jobs: Any,
) -> None:
    """Play and judge (see `_HELP`)."""
    with errors_as_sentences():
        need_matplotlib()
        from reaper.pipeline.compare.findings import conclude
        from reaper.pipeline.compare.page import write_page

        _check_jobs(jobs)
        given = {name: value for name, value in jobs.items() if value is not None}
        options = tuple(word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", _word(value)))
        situations = [moved(scenario, fault_at) for scenario in choose_scenarios(scenarios)]
        chosen = tuple(mode for mode in MODES if mode in (modes or MODES))
        plan = Plan(situations, chosen, repeat, options)
        figures = _figures_file(output)
        line = ProgressLine(quiet=quiet or machine)
        try:
            with ended_in_order(), run_folder(files, "compare") as folder:
                drills = anyio.run(partial(play, plan, folder, line.show))
        except KeyboardInterrupt:  # all is put away
            sys.exit(INTERRUPTED_EXIT)
        line.end()
        comparison = conclude(drills, datetime.now(UTC).isoformat(timespec="seconds"))
        output.write_text(write_page(comparison), encoding="utf-8")
        figures.write_text(json.dumps(comparison.as_json(), indent=1) + "\n", encoding="utf-8")
        show_result(comparison.as_json(), comparison.overall, machine=machine)


def _word(value: Any) -> str:
    return str(value.absolute() if isinstance(value, Path) else value)


def _check_jobs(given: Mapping[str, Any]) -> None:
    """Raise ConfigurationError before the first drill if the jobs take longer than a drill may last."""
    jobs = load_settings(DrillSettings, flags=given).jobs()
    over = max(job.at + job.duration for job in jobs)
    if over > timedelta(seconds=LONGEST_S):
        raise ConfigurationError(
            f"the jobs take {over.total_seconds():,.0f} s, but a drill of the comparison at most {LONGEST_S} s. "
            "Replay them faster (--speedup), fewer of them (--limit), or shorter ones (--prefill-ms, "
            "--decode-ms)."
        )


def _figures_file(output: Path) -> Path:
    """Return the file beside the page. Raises ConfigurationError."""
    if output.suffix == ".json":
        raise ConfigurationError(
            f"--output {output} must not end with .json: the figures are written there. Name an HTML file."
        )
    return output.with_suffix(".json")
