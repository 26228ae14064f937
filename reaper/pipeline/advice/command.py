"""The command ``reaper pipeline advise``."""

from pathlib import Path
from typing import Any

import click

from reaper.pipeline.advice.options import advice_options, read_weights, read_workers
from reaper.pipeline.command import LAKE, SPARK, open_session, pipeline_options, sentences, settings_of, show_result
from reaper.pipeline.progress import ProgressLine
from workers.runtime.options import examples
from workers.runtime.output_files import OutputFile


@click.command(
    epilog=examples(
        "reaper pipeline advise --lake lake",
        "reaper pipeline advise --lake lake --group orders/billing --rerun-weight 2 --output advice.toml",
    )
)
@pipeline_options(*LAKE, *SPARK)
@advice_options
def advise(config: Path | None, machine: bool, pair: str | None, output: OutputFile | None, **given: Any) -> None:
    """Say which visibility timeouts would have cost least, as settings that `reaper run --config` reads.

    Exit code 0, or 2 where it is not possible, or the lake tells of nothing to advise on.
    """
    with sentences():
        from reaper.pipeline.advice.fragment import as_json, as_toml
        from reaper.pipeline.advice.reading import advise_lake
        from reaper.pipeline.lake.tables import existing_lake

        weights, workers = read_weights(given), read_workers(given)
        settings = settings_of(given, config)
        existing_lake(settings.lake)  # before Spark is started for nothing
        line = ProgressLine(quiet=machine)
        session = open_session(settings, line)
        line.show("counting …")
        advice = advise_lake(session, settings.lake, weights, workers=workers, pair=pair)
        line.end()
        if output:
            output.write(as_toml(advice, weights))
        if machine or not output:
            show_result(as_json(advice, weights), as_toml(advice, weights).splitlines(), machine=machine)
