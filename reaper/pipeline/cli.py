"""The commands of ``reaper pipeline``. Spark is imported only by the command that needs it."""

import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from reaper.pipeline.advice.command import advise_command
from reaper.pipeline.command import (
    LAKE,
    SPARK,
    Handler,
    open_session,
    pipeline_options,
    sentences,
    settings_of,
    show_result,
)
from reaper.pipeline.progress import ProgressLine
from reaper.pipeline.report.command import report
from workers.runtime.logs import log_to_stderr
from workers.runtime.options import examples, help_end, log_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reaper.pipeline.lake.supervisor import Progress

_STATE = ("lake_state",)
_SOURCE = ("redis_url", "redis_url_env", "journal_pattern", "dead_letter_pattern")


@click.group(
    epilog=examples(
        "reaper pipeline ingest --lake lake --available-now",
        "reaper pipeline report --lake lake --output report.html",
        "reaper pipeline advise --lake lake",
    )
)
def pipeline() -> None:
    """Ingest journals into Delta tables, and report on them."""


_READING = ("trigger", "max_entries_per_trigger", "max_tasks", "fail_on_data_loss")
_INGEST = (*LAKE, *_STATE, *_SOURCE, *_READING, "lake_retention", *SPARK)


@pipeline.command(
    epilog=help_end(
        "reaper pipeline ingest --lake lake --available-now",
        "reaper pipeline ingest --lake /var/lib/lake --redis-url redis://redis:6379/0 --trigger 30s",
        ok="stopped, or all entries are ingested (--available-now)",
    )
)
@pipeline_options(*_INGEST)
@click.option("--available-now", is_flag=True, help="Ingest the entries that exist now, and end.")
@log_options
def ingest(
    config: Path | None, machine: bool, available_now: bool, log_level: str, log_format: str, **flags: Any
) -> None:
    """Ingest journals and dead letters into the lake.

    Each entry is ingested once. The command runs until SIGTERM or SIGINT. Entries of other formats go to the table
    `malformed`, with the reason.
    """
    log_to_stderr(log_level, log_format)
    with sentences():
        from reaper.pipeline.lake.ingest import ingest as run_ingestion
        from reaper.pipeline.lake.supervisor import Run
        from reaper.pipeline.lake.tables import lake_at

        settings = settings_of(flags, config)
        line = ProgressLine(quiet=machine)
        stop = threading.Event()
        _heed(_leave)
        run = Run(available_now, stop, lambda progress: line.show(_ingest_text(progress)))

        def open_heeding() -> "SparkSession":
            session = open_session(settings, line, _leave)
            _heed(partial(_stop, stop))
            return session

        progress = run_ingestion(settings, lake_at(settings.lake, settings.lake_state), open_heeding, run)
        line.end()
    show_result(progress, [_ingest_text(progress)], machine=machine)


def _heed(handler: Handler) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _leave(_number: int, _frame: object) -> None:
    """End at once, because there are no read entries yet, and Spark may take long to start."""
    os._exit(0)


def _stop(stop: threading.Event, number: int, _frame: object) -> None:
    """Let the running batch finish. A second signal ends the process as usual."""
    stop.set()
    signal.signal(number, signal.SIG_DFL)


def _ingest_text(progress: "Progress") -> str:
    text = f"{progress.events:,} events, {progress.dead_letters:,} dead letters in {progress.batches:,} batches"
    if progress.malformed:
        text += f", {progress.malformed:,} malformed entries kept aside"
    return text + (f"; {progress.behind:,} entries waiting" if progress.behind else "")


@pipeline.command(
    epilog=help_end("reaper pipeline trim --lake lake", "reaper pipeline trim --lake lake --trim-margin 1d -o json")
)
@pipeline_options(*LAKE, *_STATE, *_SOURCE, "trim_margin")
@click.option("--with-dead-letters", is_flag=True, help="Also trim dead letters. They cannot be redriven afterwards.")
def trim(config: Path | None, machine: bool, with_dead_letters: bool, **flags: Any) -> None:
    """Trim journals in Redis that are in the lake.

    Dead letters stay unless you use --with-dead-letters. The output names each stream that is left alone, with the
    reason.
    """
    with sentences():
        from reaper.pipeline.lake.ingest import redis_url
        from reaper.pipeline.lake.tables import existing_lake, with_state
        from reaper.pipeline.lake.trim import trim as run_trim

        settings = settings_of(flags, config)
        layout = with_state(existing_lake(settings.lake, settings.lake_state))

        async def run() -> Any:
            return await run_trim(settings, layout, url=redis_url(settings), dead_letters=with_dead_letters)

        done = anyio.run(run)
        text = [
            f"{stream.stream}: left alone, {stream.kept_because}"
            if stream.kept_because
            else f"{stream.stream}: {stream.removed:,} entries trimmed, {stream.left:,} left"
            for stream in done
        ]
    show_result(done, text or ["nothing to trim"], machine=machine)


pipeline.add_command(advise_command)
pipeline.add_command(report)
