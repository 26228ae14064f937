"""The command ``reaper pipeline report``."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import anyio
import click

from workers.protocol.errors import ConfigurationError
from workers.protocol.options import errors_as_sentences

DEFAULT_OUTPUT = Path("recovery-report.html")


@click.command()
@click.option("--lake", required=True, metavar="FOLDER", help="The lake that `reaper pipeline ingest` fills.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_OUTPUT,
    show_default=True,
    help="The page, one HTML file.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures to this.")
@click.option("--since", metavar="TIME", help="Only from 2026-11-20, 2026-11-20T15:04 (UTC), or 36h ago (m, h, d, w).")
@click.option("--until", metavar="TIME", help="Only before this; written as --since.")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="Only this one, or stream/group; repeatable.")
@click.option(
    "--redis-url", metavar="URL", help="Look in this Redis for jobs without an end, before calling them lost."
)
@click.option("--master", metavar="URL", help="Where Spark runs. Default: in this process, on all cores.")
@click.option("--remote", metavar="URL", help="A Spark Connect server, sc://host:port.")
@click.option("--heap", default="2g", show_default=True, help="Memory of Spark, where it is started here.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def report(
    lake: str,
    output: Path,
    json_file: Path | None,
    since: str | None,
    until: str | None,
    groups: Sequence[str],
    redis_url: str | None,
    master: str | None,
    remote: str | None,
    heap: str,
    quiet: bool,
) -> None:
    """Write what the lake tells about recovery, integrity, durations, stalls, leadership and dead letters.

    The page is one HTML file that needs no network. Every figure in it is also in the JSON file.
    """
    with errors_as_sentences():
        # These need Spark and matplotlib, which `reaper pipeline --help` does not.
        from reaper.pipeline.lake import existing_lake
        from reaper.pipeline.progress import ProgressLine
        from reaper.pipeline.report.live import look_for_unsettled
        from reaper.pipeline.report.page import write_page
        from reaper.pipeline.report.reading import read_report
        from reaper.pipeline.report.scope import Scope, parse_instant
        from reaper.pipeline.session import spark_session

        now = datetime.now(UTC)
        begin, end = (parse_instant(text, now) if text else None for text in (since, until))
        scope = Scope(begin, end, tuple(groups))
        existing_lake(lake)
        progress = ProgressLine(quiet=quiet)
        progress.show("starting Spark")
        with spark_session(master, remote, "reaper pipeline report", heap) as spark:
            findings = read_report(spark, lake, scope, now, progress.show)
        progress.end()
        if redis_url:
            findings.live = anyio.run(look_for_unsettled, findings, redis_url)
        _write(output, write_page(findings), "--output")
        if json_file:
            _write(json_file, json.dumps(findings.as_json(), indent=1, default=str) + "\n", "--json")
        click.echo(f"{findings.about['events']:,} events: {output}")


def _write(file: Path, text: str, option: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{option} {file} cannot be written: {error.strerror}.") from error
