"""The command ``reaper pipeline report``."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from reaper.pipeline.command import LAKE, SPARK, need_matplotlib, open_session, sentences, settings_of
from reaper.pipeline.progress import ProgressLine
from reaper.pipeline.settings import PipelineSettings
from workers.protocol.keys import GroupKeys
from workers.runtime.options import GroupType, format_option, help_end, output_option, settings_options
from workers.runtime.printing import show, show_json

if TYPE_CHECKING:
    from reaper.pipeline.analysis.scope import Scope
    from reaper.pipeline.lake.layout import Layout
    from reaper.pipeline.report.findings import Findings

DEFAULT_OUTPUT = "recovery-report.html"
JAVA_OPTIONS = "-XX:+UseParallelGC -XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=240m"
"""A report may pause, and the garbage collector that avoids pauses costs a fifth of its CPU time. With
smaller spaces for the code of a report, Java would collect garbage again and again, each time in all of the heap.
"""
SMALL_LAKE_BYTES = 200_000_000
"""About eight million events. With five million, compiling once takes a sixth less CPU time."""

_SETTINGS = (*LAKE, *SPARK)


@click.command(
    epilog=help_end(
        "reaper pipeline report --lake lake --output report.html",
        "reaper pipeline report --lake lake --since 36h --group orders/billing -o json",
    )
)
@settings_options(PipelineSettings, exclude=[name for name in PipelineSettings.model_fields if name not in _SETTINGS])
@output_option(default=DEFAULT_OUTPUT, show_default=True, help="Write the page to this HTML file.")
@format_option("Print a line, or all figures as JSON without progress.")
@click.option("--since", metavar="TIME", help="Only from 2026-11-20, 2026-11-20T15:04 (UTC), or 36h ago (m, h, d, w).")
@click.option("--until", metavar="TIME", help="Only before this; written as --since.")
@click.option(
    "--group", "groups", multiple=True, metavar="STREAM/GROUP", type=GroupType(), help="Only this group; repeatable."
)
@click.option("--redis-url", metavar="URL", help="Search this Redis for jobs that have no end in the lake.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def report(
    config: Path | None,
    output: Path,
    machine: bool,
    since: str | None,
    until: str | None,
    groups: tuple[GroupKeys, ...],
    redis_url: str | None,
    quiet: bool,
    **flags: Any,
) -> None:
    """Write a report about a lake.

    Its chapters are next steps, recovery, integrity, durations, timeouts, dead letters and terms. The page is one
    HTML file that needs no network. `-o json` prints all its figures.
    """
    with sentences():
        from reaper.pipeline.analysis.scope import Scope, parse_instant

        need_matplotlib()
        now = datetime.now(UTC)
        begin, end = (parse_instant(text, now) if text else None for text in (since, until))
        settings = settings_of(flags, config)
        progress = ProgressLine(quiet=quiet or machine)
        findings = _read(settings, Scope(now, begin, end, tuple(keys.name for keys in groups)), progress)
        if redis_url:
            from reaper.pipeline.report.live import look_for_unsettled

            progress.show("looking for unsettled jobs in Redis")
            findings.live = anyio.run(look_for_unsettled, findings, redis_url)
        progress.end()
    from reaper.pipeline.report.page import write_page

    output.write_text(write_page(findings), encoding="utf-8")
    if machine:
        show_json(findings.as_json())
    else:
        show(f"{findings.about['events']:,} events: {output}")


def _read(settings: PipelineSettings, scope: "Scope", progress: ProgressLine) -> "Findings":
    from reaper.pipeline.lake.tables import existing_lake
    from reaper.pipeline.report.reading import read_report
    from reaper.pipeline.spark.session import is_embedded

    layout = existing_lake(settings.lake)  # an error should come before the start of Spark
    with ThreadPoolExecutor(1) as beside:
        beside.submit(import_module, "reaper.pipeline.report.page")  # a third of a second in which Java can start
        spark = open_session(settings, progress, java_options=_java_options(layout))
    embedded = not settings.spark_remote and is_embedded(settings.spark_master or None)
    return read_report(spark, settings.lake, scope, progress.show, embedded=embedded)


def _java_options(layout: "Layout") -> str:
    from reaper.pipeline.lake.delta import LakeTable
    from reaper.pipeline.spark.java import QUICK_START

    small = sum(file.bytes for file in LakeTable(layout.table("events")).files()) < SMALL_LAKE_BYTES
    return f"{JAVA_OPTIONS} {QUICK_START}" if small else JAVA_OPTIONS
