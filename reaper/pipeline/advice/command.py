"""The command ``reaper pipeline advise``."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from reaper.pipeline.advice.timeouts import Advice, Promise, Workers, advise
from reaper.pipeline.advice.words import as_json, as_lines, group_of
from reaper.pipeline.command import LAKE, SPARK, open_session, pipeline_options, sentences, settings_of, show_result
from reaper.pipeline.progress import ProgressLine
from workers.protocol.errors import NotPossibleError
from workers.protocol.keys import GroupKeys
from workers.runtime.options import DurationType, group_option, help_end

_DEFAULT = Promise()
_AUTO = "auto"


@click.command(
    "advise",
    epilog=help_end(
        "reaper pipeline advise --lake lake",
        "reaper pipeline advise --lake lake --group orders/billing --one-in 10000",
        no="the lake has no executions, or none of this group",
        redis=False,
    ),
)
@pipeline_options(*LAKE, *SPARK)
@group_option
@click.option(
    "--workers",
    type=click.Choice([_AUTO, *(str(kind) for kind in Workers)]),
    default=_AUTO,
    show_default=True,
    help="Whether workers send heartbeats, as those of stream-reaper do. auto: by the names of the consumers.",
)
@click.option(
    "--one-in",
    type=click.IntRange(min=10, max=1_000_000),
    default=_DEFAULT.one_in,
    show_default=True,
    metavar="N",
    help="Recover at most one execution in N from a live worker that does not extend it.",
)
@click.option(
    "--pause",
    type=DurationType(least=0.01),
    default=f"{_DEFAULT.pause_ms / 1000:g}s",
    show_default=True,
    help="How long a worker may be paused, blocked or disconnected and keep its jobs. The shortest recommendation is "
    "1.5 times this.",
)
def advise_command(
    config: Path | None, machine: bool, keys: GroupKeys | None, workers: str, one_in: int, pause: float, **given: Any
) -> None:
    """Recommend the visibility timeout of each group."""
    with sentences():
        from reaper.pipeline.advice.executions import records_of
        from reaper.pipeline.analysis.asking import LakeQueries, read_tables
        from reaper.pipeline.analysis.scope import Scope
        from reaper.pipeline.lake.tables import existing_lake
        from reaper.pipeline.spark.session import is_embedded

        promise = Promise(one_in=one_in, pause_ms=round(pause * 1000))
        settings = settings_of(given, config)
        existing_lake(settings.lake)  # Spark takes seconds to start
        line = ProgressLine(quiet=machine)
        session = open_session(settings, line)
        embedded = not settings.spark_remote and is_embedded(settings.spark_master or None)
        asker = LakeQueries(session, read_tables(session, settings.lake), Scope(datetime.now(UTC)), embedded=embedded)
        rows = asker.ask(line.show, only=("executions",)).answers["executions"]
        records = records_of(rows, None if workers == _AUTO else Workers(workers))
        line.end()
        advices = chosen([advise(record, promise) for record in records], keys.name if keys else None)
    show_result(as_json(advices, promise), list(as_lines(advices)), machine=machine)


def chosen(advices: Sequence[Advice], group: str | None) -> Sequence[Advice]:
    """Return the recommendation for ``group`` (``orders/billing``), or all for None.

    Raises NotPossibleError if there is none.
    """
    found = [advice for advice in advices if group in (None, group_of(advice))]
    if found:
        return found
    if not advices:
        raise NotPossibleError("cannot recommend a timeout: the lake has no executions. Run `reaper pipeline ingest`.")
    names = ", ".join(map(group_of, advices))
    raise NotPossibleError(f"group {group!r} is not in the lake: it has {names}. Check --group.")
