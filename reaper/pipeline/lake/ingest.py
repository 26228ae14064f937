"""Ingests journals and dead letters into a lake, each entry exactly once.

Spark writes down the range of a batch before it begins, and that it is done after it ended. A batch in between is
repeated, with the same number and range, and each commit names its batch (`reaper.pipeline.lake.delta`). Until then the
journal has to keep the entries of the batch.
"""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from reaper.pipeline.lake.batches import BatchWriter
from reaper.pipeline.lake.delta import LakeTable
from reaper.pipeline.lake.history import check_history
from reaper.pipeline.lake.layout import TABLES, Layout
from reaper.pipeline.lake.maintenance import Upkeep
from reaper.pipeline.lake.source import LAKE, NAME, JournalSource
from reaper.pipeline.lake.store import replace_text, spark_path
from reaper.pipeline.lake.supervisor import IngestError, Progress, Run, Supervisor
from reaper.pipeline.lake.tables import create_tables, install_fence, only_writer, with_state
from reaper.pipeline.settings import PipelineSettings
from reaper.pipeline.spark.session import cores_of, is_submitted
from reaper.pipeline.spark.shipping import ship_by_value
from workers.protocol.address import holds_login, shown_address
from workers.protocol.connection import commands_client
from workers.protocol.errors import ConfigurationError
from workers.protocol.server import check_server

_URL_VARIABLE = "STREAM_REAPER_SOURCE_URL"
TARGET_BYTES = 128_000_000
"""Compaction joins files up to this size."""


def ingest(settings: PipelineSettings, layout: Layout, open_session: Callable[[], SparkSession], run: Run) -> Progress:
    """Ingest until ``run`` is over.

    Raises LakeBusyError, ConfigurationError, UnreachableError, or IngestError if it would lose or repeat entries.
    """
    with only_writer(with_state(layout)):
        check_history(layout, fail_on_data_loss=settings.fail_on_data_loss)
        if not settings.spark_remote:
            anyio.run(_check_redis, settings)
        options = source_options(settings, layout)
        session = open_session()
        options["partitions"] = str(min(settings.max_tasks, cores_of(session)))
        create_tables(layout)
        _note_source(layout, settings)
        fence = install_fence(layout)
        for name in TABLES:
            LakeTable(layout.table(name)).clean(thoroughly=True)  # a kill leaves files that no commit names
        ship_by_value()
        session.dataSource.register(JournalSource)
        writer = BatchWriter(layout, layout.name(), fence)
        upkeep = Upkeep(layout, TARGET_BYTES, settings.lake_retention)
        return Supervisor(partial(_start_query, session, settings, options, writer, run), layout, run, upkeep).run()


async def _check_redis(settings: PipelineSettings) -> None:
    url = redis_url(settings)
    client = commands_client(url)
    try:
        await check_server(client, url)
    finally:
        await client.aclose()


def redis_url(settings: PipelineSettings) -> str:
    """Return the address of Redis. Raises ConfigurationError if its environment variable is not set."""
    url = os.environ.get(settings.redis_url_env) if settings.redis_url_env else settings.redis_url
    if not url:
        raise ConfigurationError(f"redis_url_env names {settings.redis_url_env}, which is not set in the environment.")
    return url


def _note_source(layout: Layout, settings: PipelineSettings) -> None:
    known = not settings.redis_url_env or settings.redis_url_env in os.environ  # else only Spark's machines know it
    source = {
        "redis": shown_address(redis_url(settings)) if known else "",
        "journals": settings.journal_pattern,
        "dead_letters": settings.dead_letter_pattern,
    }
    replace_text(layout.source, json.dumps(source))


def source_options(settings: PipelineSettings, layout: Layout) -> dict[str, str]:
    """Return the options of the data source. Raises ConfigurationError."""
    return {
        **_address(settings),
        LAKE: layout.root,
        "streamPattern": ",".join(filter(None, (settings.journal_pattern, settings.dead_letter_pattern))),
        "maxEntriesPerTrigger": str(settings.max_entries_per_trigger),
        "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
        "discoverSeconds": f"{min(10.0, settings.trigger.total_seconds()):g}",
    }


def _address(settings: PipelineSettings) -> dict[str, str]:
    """Return the option with the address of Redis. Spark shows options, so a password goes by the environment."""
    if settings.redis_url_env:
        return {"urlEnv": settings.redis_url_env}
    if not holds_login(settings.redis_url):
        return {"url": settings.redis_url}
    if settings.spark_remote or is_submitted():
        raise ConfigurationError(
            "redis_url contains a password, which the running Spark would show. Put the address into an "
            "environment variable of Spark's driver, and set redis_url_env to its name."
        )
    os.environ[_URL_VARIABLE] = settings.redis_url  # Spark starts after this and hands it on to its workers
    return {"urlEnv": _URL_VARIABLE}


def _start_query(
    session: SparkSession, settings: PipelineSettings, options: dict[str, str], writer: BatchWriter, run: Run
) -> StreamingQuery:
    layout = writer.layout
    if layout.name() != writer.name:
        raise IngestError(f"the lake {layout.root} was replaced during the ingestion.")
    check_history(layout, fail_on_data_loss=settings.fail_on_data_loss)
    _remove_torn_writes(layout.checkpoint)
    query = session.readStream.format(NAME).options(**options).load().writeStream.foreachBatch(writer)
    query = query.queryName("stream-reaper").option("checkpointLocation", spark_path(layout.checkpoint))
    if run.available_now:
        return query.trigger(availableNow=True).start()
    return query.trigger(processingTime=f"{settings.trigger.total_seconds() * 1000:.0f} milliseconds").start()


def _remove_torn_writes(checkpoint: Path) -> None:
    """Remove unfinished files of a full disk, because Spark cannot start a batch that has one."""
    for file in checkpoint.rglob(".*.tmp*"):
        file.unlink(missing_ok=True)
