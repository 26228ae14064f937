"""The data source that Spark calls. It plans batches, and its tasks read them.

A batch is ``(start, end]`` of each stream. Stream IDs only grow, so ``last-generated-id`` is a clean cut. No entry can
appear below it later.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from reaper.pipeline.redis_stream.client import Client, printable, text_of
from reaper.pipeline.redis_stream.errors import NAME
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.positions import ZERO, Position, State, find_loss, initial_position
from reaper.pipeline.redis_stream.ranges import RangeReader, plan_ranges, report_loss, walk_to
from reaper.pipeline.spark.shipping import ship_by_value

SCHEMA = "stream string, id string, fields map<string,string>"


def register(spark: SparkSession) -> None:
    """Make ``format("redis-stream")`` known to a session, a classic one or one of Spark Connect."""
    ship_by_value()
    spark.dataSource.register(RedisStreamSource)


class RedisStreamSource(DataSource):
    """``format("redis-stream")``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.parsed = Options.parse({name.lower(): value for name, value in options.items()})

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> str:
        """Return the one schema there is."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        """Return the reader of a streaming query."""
        return StreamReader(self.parsed)


Offset = dict[str, dict[str, Any]]
"""`Position.to_json` by stream, with ``since`` if its range does not begin at the offset before."""


class Backlog(NamedTuple):
    """The entries of one stream that can be read now."""

    stream: str
    start: Position
    state: State
    target: Position

    @property
    def at_most(self) -> int:
        """How many entries it can be at most."""
        if self.start.added is None or self.target.added is None:
            return self.state.length
        return max(0, min(self.target.added - self.start.added, self.state.length))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of a streaming query. One process does the planning for as long as the query runs."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._client: Client | None = None
        self._streams: set[str] = set()
        self._discovered_at: float | None = None
        self._states: dict[str, State | None] = {}
        self._planned: Offset = {}
        self._targets: dict[str, State] | None = None
        """The states that ``availableNow`` reads up to."""
        self._newborn: set[str] = set()
        """Streams that appeared while the query runs. Each of their entries can be read, or is lost."""

    # -- Spark asks how far the next batch goes

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the start, which is before the oldest entries."""
        return {stream: initial_position(state).to_json() for stream, state in self._look({}).items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return ``maxEntriesPerTrigger``."""
        limit = self._options.max_entries
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember the ends of the streams. Later entries are not read."""
        states = self._look({}, discover=True)
        self._targets = {stream: state for stream, state in states.items() if state is not None}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next batch, or ``start`` if it is empty. Raises DataLossError."""
        known = None if self._discovered_at is None else set(self._states)
        states = self._look(start)
        end: Offset = dict(start)
        backlogs = []
        for stream, state in states.items():
            if self._targets is not None and state is not None and stream not in self._targets:
                continue  # it appeared later
            stored = start.get(stream)
            if stored is None and known is not None and stream not in known:
                self._newborn.add(stream)
            newborn = Position(ZERO, 0, initial=True) if stream in self._newborn else initial_position(state)
            position = Position.from_json(stored) if stored else newborn
            end[stream] = stored or position.to_json()
            backlog = self._backlog(stream, position, state)
            if backlog:
                backlogs.append(backlog)
        for backlog, reached in self._admit(backlogs, getattr(limit, "max_rows", None)):
            # Spark asks for the initial offset again when it repeats the very first batch, and that may differ by then.
            since = {"since": backlog.start.to_json()} if backlog.start.initial else {}
            end[backlog.stream] = {**reached.to_json(), **since}
        self._planned = {stream: end[stream] for stream in sorted(end)}
        return self._planned

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the ends of the streams, with the number of entries that are not yet planned (``behind``)."""
        ends: Offset = {}
        for stream, state in sorted(self._states.items()):
            if state is not None:
                ends[stream] = state.end.to_json()
                planned = self._planned.get(stream, {}).get("added")
                if planned is not None and state.added is not None:
                    ends[stream]["behind"] = max(0, state.added - planned)
        return ends or None

    def _backlog(self, stream: str, position: Position, state: State | None) -> Backlog | None:
        loss = find_loss(position, state)
        if loss:
            report_loss(stream, loss, self._options)
        if state is None:
            return None
        target = state
        if self._targets is not None:
            target = min(self._targets[stream], state, key=lambda known: known.last)
        if target.last == position.id or (target.last < position.id and (position.initial or not loss)):
            return None
        return Backlog(stream, position, state, target.end)

    def _admit(self, backlogs: list[Backlog], limit: int | None) -> Iterator[tuple[Backlog, Position]]:
        """Share the limit out, small backlogs first, so that large ones get the rest."""
        if limit is None:
            yield from ((backlog, backlog.target) for backlog in backlogs)
            return
        ordered = sorted(backlogs, key=lambda backlog: backlog.at_most)
        for waiting, backlog in zip(range(len(ordered), 0, -1), ordered, strict=True):
            share = -(-limit // waiting)
            limit -= min(share, backlog.at_most)
            if backlog.at_most <= share:
                yield backlog, backlog.target
            elif share:
                yield (
                    backlog,
                    walk_to(self.client, backlog.stream, backlog.start, backlog.state, backlog.target, share),
                )

    # -- Spark asks for the tasks of a batch

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan the ranges of a batch. They hold the same entries when the batch is planned again after a crash."""
        ranges: list[InputPartition] = []
        for stream, ended in end.items():
            begun = start.get(stream)
            if ended == begun:
                continue
            since = ended.get("since") or begun
            lower = Position.from_json(since) if since else Position(ZERO, initial=True)
            upper = Position.from_json(ended)
            if lower.id < upper.id:
                ranges += plan_ranges(self.client, stream, lower, upper)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one range, in a task."""
        return _rows(partition, self._options)

    def stop(self) -> None:
        """Close the connections."""
        if self._client:
            self._client.close()

    # -- Redis

    @property
    def client(self) -> Client:
        """The planner's client. Readers are pickled before they need one."""
        if self._client is None:
            self._client = Client(self._options)
        return self._client

    def _look(self, start: Mapping[str, Any], *, discover: bool = False) -> dict[str, State | None]:
        """Read the states of the streams that match, and of those that were read and do not exist any more."""
        now = time.monotonic()
        due = self._discovered_at is None or now >= self._discovered_at + self._options.discover_s
        if discover or due:
            self._streams = self.client.find_streams()
            self._discovered_at = now
        missing = self.client.states(set(start) - self._streams)  # the first look of available-now knows no start
        self._streams |= {stream for stream, state in missing.items() if state is None}
        self._states = self.client.states(self._streams)
        return self._states


def _rows(part: Any, options: Options) -> Iterator[pa.RecordBatch]:
    client = Client(options)
    stream = printable(part.stream)
    kinds = pa.schema([("stream", pa.string()), ("id", pa.string()), ("fields", pa.map_(pa.string(), pa.string()))])
    try:
        for page in RangeReader(client, part).pages():
            fields = [[(text_of(name), text_of(value)) for name, value in each.items()] for _, each in page]
            columns = [[stream] * len(page), [text_of(entry_id) for entry_id, _ in page], fields]
            arrays = [pa.array(values, kind.type) for values, kind in zip(columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=kinds)
    finally:
        client.close()
