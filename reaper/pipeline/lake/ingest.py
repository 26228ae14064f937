"""Runs the query that brings journals and dead letters into the lake, and starts it again where it fails.

Each entry comes into the lake exactly once. Spark writes down the range of a batch before it begins, and that it is
done after it ended; a batch in between is replayed, with the same number and range; and a batch is published by a
commit that names it (`reaper.pipeline.lake.delta`). Until then the journal has to keep what the batch reads.
"""

import json
import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic

import anyio
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from reaper.pipeline.lake.batches import BatchWriter
from reaper.pipeline.lake.delta import LakeTable, ReplacedError
from reaper.pipeline.lake.history import LakeAwayError, check_history, check_presence
from reaper.pipeline.lake.layout import TABLES, Layout, remove, replace_text, spark_path
from reaper.pipeline.lake.maintenance import Upkeep
from reaper.pipeline.lake.source import FILES, FOLDER, NAME, JournalSource
from reaper.pipeline.lake.tables import LakeBusyError, create_tables, only_ingester, with_state
from reaper.pipeline.redis_stream.shipping import seal
from reaper.pipeline.settings import PipelineSettings
from reaper.pipeline.spark.failures import DISK_FULL, NO_SPACE, PYTHON_ENDED, all_words, python_has_ended
from reaper.pipeline.spark.session import is_submitted
from reaper.pipeline.spark.shipping import ship_by_value
from reaper.pipeline.storage import is_of_store, reason_of_store
from workers.protocol.address import hide_password
from workers.protocol.connection import check_server, commands_client
from workers.protocol.errors import ConfigurationError, StreamReaperError

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
FAILURES_IN_VAIN = 5
"""Failures in a row, without a batch between them, after which a run that should come to an end gives up."""
PYTHON_IS_LATE = "Python worker failed to connect back"
STARTS_TOO_LATE = 20
"""The same where Spark, which grants a Python 10 s to start, does so on a machine that is busy."""
LOOK_EVERY_S = 0.1
TELL_EVERY_S = 0.5
"""Seconds between two looks at how far the query is, which cost Spark more than a look at whether it still runs."""
_URL_VARIABLE = "STREAM_REAPER_SOURCE_URL"


class IngestError(StreamReaperError):
    """Ingestion cannot go on by itself. The message says why."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run has brought so far."""

    batches: int = 0
    events: int = 0
    dead_letters: int = 0
    malformed: int = 0
    behind: int | None = None
    """Entries that were waiting when the last batch was planned; None where Redis does not count them."""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """How to run, beside the settings."""

    available_now: bool = False
    """End when everything is ingested that was there at the start."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set from outside, it ends the run."""
    tell: Callable[[Progress], None] = lambda _: None
    """Called again and again with what the run has brought."""


def ingest(settings: PipelineSettings, layout: Layout, open_session: Callable[[], SparkSession], run: Run) -> Progress:
    """Ingest until ``run`` says that it is over.

    Raises LakeBusyError, ConfigurationError, UnreachableError, or IngestError where going on would lose or repeat
    entries.
    """
    with only_ingester(with_state(layout)):
        check_history(layout, fail_on_data_loss=settings.fail_on_data_loss)
        if not settings.remote:
            anyio.run(_check_redis, settings)
        options = source_options(settings)
        session = open_session()
        create_tables(layout)
        _note_source(layout, settings)
        fence = install_fence(layout)
        for left_by_a_kill in layout.staging.glob("batch-*"):
            remove(left_by_a_kill)
        ship_by_value()
        session.dataSource.register(seal(JournalSource))
        upkeep = Upkeep(layout, settings.target_mb * 1_000_000, settings.keep)
        start = partial(_start_query, session, settings, layout, options, (layout.name(), fence), run)
        return Supervisor(start, layout, run, upkeep).run()


async def _check_redis(settings: PipelineSettings) -> None:
    url = redis_url(settings)
    client = commands_client(url)
    try:
        await check_server(client, url)
    finally:
        await client.aclose()


def redis_url(settings: PipelineSettings) -> str:
    """Return the address of Redis.

    Raises ConfigurationError where the variable that should hold it is not set.
    """
    url = os.environ.get(settings.redis_url_env) if settings.redis_url_env else settings.redis_url
    if not url:
        raise ConfigurationError(f"redis_url_env names {settings.redis_url_env}, and this variable is not set here.")
    return url


def install_fence(layout: Layout) -> int:
    """Take over the lake from whoever wrote it before; return our number. Raises LakeBusyError."""
    tables = [LakeTable(layout.table(table)) for table in TABLES]
    fence = 1 + max(table.fence() for table in tables)
    try:
        for table in tables:
            table.install_fence(fence)
    except ReplacedError as error:
        raise LakeBusyError(f"{error} ({layout.root}): a lake has one ingester.") from error
    return fence


def _note_source(layout: Layout, settings: PipelineSettings) -> None:
    known = not settings.redis_url_env or settings.redis_url_env in os.environ  # else only Spark's machines know it
    source = {
        "redis": hide_password(redis_url(settings)) if known else "",
        "journals": settings.journals,
        "dead_letters": settings.dead_letters,
    }
    replace_text(layout.source, json.dumps(source))


def source_options(settings: PipelineSettings) -> dict[str, str]:
    """Return the options of the data source."""
    patterns = filter(None, (settings.journals, settings.dead_letters))
    return {
        **_address(settings),
        "streamPattern": ",".join(patterns),
        "maxEntriesPerTrigger": str(settings.max_entries_per_trigger),
        "partitions": str(settings.partitions),
        "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
        "ignoreDeletes": "true",  # a redrive deletes dead letters, whether we have seen them or not
        "discoverSeconds": f"{min(10.0, settings.trigger.total_seconds()):g}",
    }


def _address(settings: PipelineSettings) -> dict[str, str]:
    """Return where Redis is, without letting a password into an option: Spark shows those."""
    if settings.redis_url_env:
        return {"urlEnv": settings.redis_url_env}
    if hide_password(settings.redis_url) == settings.redis_url:
        return {"url": settings.redis_url}
    if settings.remote or is_submitted():
        raise ConfigurationError(
            "redis_url holds a password, and Spark, which runs already, would show it: put the address into an "
            "environment variable of Spark's driver, and give that variable's name as redis_url_env."
        )
    os.environ[_URL_VARIABLE] = settings.redis_url  # Spark, which starts after this, hands it on to its workers
    return {"urlEnv": _URL_VARIABLE}


def _start_query(
    session: SparkSession,
    settings: PipelineSettings,
    layout: Layout,
    options: dict[str, str],
    ingester: tuple[str, int],
    run: Run,
) -> StreamingQuery:
    check_presence(layout, ingester[0])  # the query before this one may have failed of it
    check_history(layout, fail_on_data_loss=settings.fail_on_data_loss)
    _clear_torn_writes(layout.checkpoint)
    folder = layout.staging / f"batch-{uuid.uuid4().hex}"
    ours = {FOLDER: str(folder), FILES: str(settings.partitions)}
    written = session.readStream.format(NAME).options(**options, **ours).load()
    writer = written.writeStream.foreachBatch(BatchWriter(layout, *ingester, folder))
    writer = writer.queryName("stream-reaper").option("checkpointLocation", spark_path(layout.checkpoint))
    if run.available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.trigger.total_seconds() * 1000:.0f} milliseconds").start()


def _clear_torn_writes(checkpoint: Path) -> None:
    """Remove what Spark was writing there when the disk was full: it begins with no batch where that lies about."""
    for file in checkpoint.rglob(".*.tmp*"):
        file.unlink(missing_ok=True)


class Supervisor:
    """Keeps the query running: starts it again from its checkpoint, with a pause that grows while nothing gets done."""

    def __init__(self, start: Callable[[], StreamingQuery], layout: Layout, run: Run, upkeep: Upkeep) -> None:
        self._start, self._layout, self._run, self._upkeep = start, layout, run, upkeep
        self._before = layout.newest_counts()
        self._behind: int | None = None
        self._restarts = 0

    def run(self) -> Progress:
        """Return once the run is over. Raises IngestError."""
        failures, done = 0, self._before.batch
        pauses = growing_pauses()
        while True:
            error = self._attempt()
            if error is None:
                return self.progress()
            if (now := self._layout.newest_counts().batch) > done:
                failures, done, pauses = 0, now, growing_pauses()
            failures += 1
            self._restarts += 1
            reason = self._reason_of(error)
            if is_final(error) or (self._run.available_now and failures >= attempts_against(reason)):
                raise IngestError(f"ingestion into the lake {self._layout.root} stopped: {reason}")
            pause = next(pauses)
            lake = self._layout.root
            logger.warning("the lake %s: the query failed, and starts again in %g s: %s", lake, pause, reason)
            if self._run.stop.wait(pause):
                return self.progress()

    def _reason_of(self, error: Exception) -> str:
        """Return why a query failed. Of a lake that is away Spark names some file of it."""
        try:
            check_presence(self._layout)
        except LakeAwayError as away:
            return str(away)
        except OSError:
            pass
        return reason_of(error)

    def _attempt(self) -> Exception | None:
        """Run the query until it ends. Returns why it failed, or None where it is over."""
        try:
            return self._watch(self._start())
        except (PySparkException, Py4JJavaError) as error:  # Java has answered
            return None if self._run.stop.is_set() else error
        except (Py4JError, ConnectionError) as error:
            if self._run.stop.is_set():  # a signal to all processes of a service ends Java by itself
                return None
            raise IngestError(f"Spark's driver is gone, start again: {reason_of(error)}") from error
        except Exception as error:
            if not is_of_store(error):
                raise
            return None if self._run.stop.is_set() else error

    def _watch(self, query: StreamingQuery) -> Exception | None:
        looked = monotonic()
        try:
            while query.isActive and not self._run.stop.is_set():
                with suppress(StreamingQueryException):  # looked at below
                    query.awaitTermination(LOOK_EVERY_S)  # type: ignore[arg-type]  # typed as int, and taken as float
                if monotonic() >= looked + TELL_EVERY_S:
                    self._look_at(query)
                    looked = monotonic()
        except OSError:  # what tells how far it is cannot be read
            with suppress(ConnectionError):
                query.stop()
            raise
        if self._run.stop.is_set():
            query.stop()
            return None
        self._look_at(query)
        return query.exception()

    def _look_at(self, query: StreamingQuery) -> None:
        last = query.lastProgress
        self._behind = _behind(last.sources[0].latestOffset) if last else None
        self._run.tell(self.progress())
        self._upkeep.look(self._layout.newest_counts().batch)

    def progress(self) -> Progress:
        """Return what the run has brought so far."""
        now, before = self._layout.newest_counts(), self._before
        return Progress(
            now.batch - before.batch,
            now.total_events - before.total_events,
            now.total_dead_letters - before.total_dead_letters,
            now.total_malformed - before.total_malformed,
            self._behind,
            self._restarts,
        )


def _behind(latest: str | None) -> int | None:
    """Read what the data source reports of its streams' ends."""
    streams = json.loads(latest) if latest else None
    if not isinstance(streams, dict):
        return None
    return sum(int(stream.get("behind", 0)) for stream in streams.values())


def growing_pauses() -> Iterator[float]:
    """Yield how long to wait before each attempt, in seconds."""
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(LONGEST_PAUSE_S, pause * 2)


_FINAL = re.compile(r"\b(DataLossError|RedisStreamError|ReplacedError): ")
_OUR_WORDS = "Option failOnDataLoss=false goes", "--no-fail-on-data-loss goes"
"""The data source names its option, and whoever ingests has a setting."""
_CALLING = re.compile(r"^.*An error occurred while calling .*\n(?:: )?", re.MULTILINE)
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)


def is_final(error: Exception) -> bool:
    """Tell whether starting the query again would only fail again, or repeat what must not be repeated."""
    return _FINAL.search(str(error)) is not None


def attempts_against(reason: str) -> int:
    """Return how often something is tried in a row before a run that should end gives up."""
    return STARTS_TOO_LATE if PYTHON_IS_LATE in reason else FAILURES_IN_VAIN


def reason_of(error: Exception) -> str:
    """Return the sentence in an error of Spark, which quotes tracebacks and plans around it."""
    ours = re.search(_FINAL.pattern + r"(.+)", str(error))
    if ours:
        return ours[2].strip().replace(*_OUR_WORDS)
    words = all_words(error)
    if python_has_ended(words):
        return PYTHON_ENDED
    if NO_SPACE in words:
        return DISK_FULL
    if is_of_store(error):
        return reason_of_store(error)
    said = _CALLING.sub("", str(error).replace("\\n", "\n"))  # Java's answer may come as one line
    raised = _RAISED.findall(said)
    return f"{raised[-1][0]}: {raised[-1][1]}" if raised else (said.strip().splitlines() or ["?"])[0]
