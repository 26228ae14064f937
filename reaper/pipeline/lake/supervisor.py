"""Keeps the query of ingestion running. After an error it starts again from its checkpoint, after a growing pause."""

import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from time import monotonic

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.maintenance import Upkeep
from reaper.pipeline.spark.failures import all_words, missing_package, reason_from_outside
from reaper.pipeline.storage import is_of_store, reason_of_store
from workers.protocol.errors import StreamReaperError
from workers.protocol.log_fields import fields

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
FAILURES_IN_VAIN = 5
"""Failures in a row, without a batch in between, after which a run with ``available_now`` gives up."""
PYTHON_IS_LATE = "Python worker failed to connect back"
STARTS_TOO_LATE = 20
"""The same if Python does not start within the 10 s that Spark grants, because the machine is busy."""
LOOK_EVERY_S = 0.1
REPORT_EVERY_S = 0.5
"""Seconds between two reports, which cost Spark more than a check of the query."""


class IngestError(StreamReaperError):
    """Ingestion cannot continue by itself. The message has the reason."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The counts of a run so far."""

    batches: int = 0
    events: int = 0
    dead_letters: int = 0
    malformed: int = 0
    behind: int | None = None
    """Entries that were waiting when the last batch was planned. None if Redis does not count them."""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """How to run, beside the settings."""

    available_now: bool = False
    """End when everything is ingested that existed at the start."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set from outside, it ends the run."""
    tell: Callable[[Progress], None] = lambda _: None
    """Called again and again with the progress of the run."""


class Supervisor:
    """Runs the query until the run is over."""

    def __init__(self, start: Callable[[], StreamingQuery], layout: Layout, run: Run, upkeep: Upkeep) -> None:
        self._start, self._layout, self._run, self._upkeep = start, layout, run, upkeep
        self._before = layout.totals()
        self._behind: int | None = None
        self._restarts = 0

    def run(self) -> Progress:
        """Return once the run is over. Raises IngestError."""
        failures, done, pauses = Counter[int](), self._before.batch, growing_pauses()
        while True:
            error = self._attempt()
            if error is None:
                return self.progress()
            if (now := self._layout.totals().batch) > done:
                failures, done, pauses = Counter[int](), now, growing_pauses()
            self._restarts += 1
            lake = self._layout.root
            reason = reason_of(error) if self._layout.has_name() else f"{lake} does not exist. Mount or restore it"
            limit = attempts_against(reason)
            failures[limit] += 1  # late starts of a busy machine do not count as failures of another kind
            if is_final(error) or (self._run.available_now and failures[limit] >= limit):
                raise IngestError(f"ingestion into the lake {lake} stopped: {reason}")
            pause = next(pauses)
            logger.warning("ingestion failed, retrying: %s", fields(lake=lake, pause_s=round(pause, 1), cause=reason))
            if self._run.stop.wait(pause):
                return self.progress()

    def _attempt(self) -> Exception | None:
        """Run the query until it ends. Return its error, or None if the run is over."""
        try:
            return self._watch(self._start())
        except (PySparkException, Py4JJavaError) as error:  # Java has answered
            failure: Exception = error
        except (Py4JError, ConnectionError) as error:
            if not self._run.stop.is_set():  # a signal to all processes of a service ends Java by itself
                raise IngestError(f"Spark's driver has ended: {reason_of(error)}. Start ingestion again.") from error
            failure = error
        except Exception as error:
            if not is_of_store(error):
                raise
            failure = error
        return None if self._run.stop.is_set() else failure

    def _watch(self, query: StreamingQuery) -> Exception | None:
        looked = monotonic()
        try:
            while query.isActive and not self._run.stop.is_set():
                with suppress(StreamingQueryException):  # read below
                    query.awaitTermination(LOOK_EVERY_S)  # type: ignore[arg-type]  # typed as int, and taken as float
                if monotonic() >= looked + REPORT_EVERY_S:
                    self._look_at(query)
                    looked = monotonic()
            if not self._run.stop.is_set():
                self._look_at(query)
                return query.exception()
        finally:
            with suppress(ConnectionError):
                if query.isActive:  # after a stop, or with unreadable totals
                    query.stop()
        return None

    def _look_at(self, query: StreamingQuery) -> None:
        last = query.lastProgress
        self._behind = _behind(last.sources[0].latestOffset) if last else None
        self._run.tell(self.progress())
        self._upkeep.look(self._layout.totals().batch)

    def progress(self) -> Progress:
        """Return what the run has ingested so far."""
        now, before = astuple(self._layout.totals()), astuple(self._before)
        batches, events, letters, malformed = (new - old for new, old in zip(now, before, strict=True))
        return Progress(batches, events, letters, malformed, self._behind, self._restarts)


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


_OURS = re.compile(r"\b(?:DataLossError|RedisStreamError|ReplacedError|IngestError): (.+)")
_OUR_WORDS = "Option failOnDataLoss=false continues", "--no-fail-on-data-loss continues"
"""The data source names its option, and the command a flag."""
_CALLING = re.compile(r"^.*An error occurred while calling .*\n(?:: )?", re.MULTILINE)
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)


def is_final(error: Exception) -> bool:
    """Tell whether the query would only fail again, or would repeat entries."""
    ours = isinstance(error, StreamReaperError) or _OURS.search(str(error)) is not None
    return ours or bool(missing_package(all_words(error)))


def attempts_against(reason: str) -> int:
    """Return how often a run that should end tries in a row before it gives up."""
    return STARTS_TOO_LATE if PYTHON_IS_LATE in reason else FAILURES_IN_VAIN


def reason_of(error: Exception) -> str:
    """Return the sentence in an error of Spark, which quotes tracebacks and plans around it."""
    if ours := _OURS.search(str(error)):
        return ours[1].strip().replace(*_OUR_WORDS)
    if outside := reason_from_outside(error):
        return outside
    if is_of_store(error):
        return reason_of_store(error)
    said = _CALLING.sub("", str(error).replace("\\n", "\n"))  # Java's answer may come as one line
    raised = _RAISED.findall(said)
    return f"{raised[-1][0]}: {raised[-1][1]}" if raised else (said.strip().splitlines() or ["?"])[0]
