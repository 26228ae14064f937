"""What Spark calls: the data source, and the readers that plan batch and streaming queries.

A batch is ``(start, end]`` of each stream. Stream IDs only grow, so ``last-generated-id`` is a clean cut: nothing can
appear below it later.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import MapType, StringType, StructType

from reaper.pipeline.redis_stream.bounds import EARLIEST, LATEST
from reaper.pipeline.redis_stream.cluster import open_link
from reaper.pipeline.redis_stream.columns import Layout, read_range
from reaper.pipeline.redis_stream.errors import NAME, RedisStreamError
from reaper.pipeline.redis_stream.filters import Narrowed, narrow
from reaper.pipeline.redis_stream.kept import Keeper
from reaper.pipeline.redis_stream.link import Link, find_streams, key_of, look_at, printable, require_there
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.positions import (
    LAST_SEQUENCE,
    ZERO,
    Id,
    Position,
    State,
    before,
    find_loss,
    initial_position,
    parse_id,
    show_id,
)
from reaper.pipeline.redis_stream.ranges import StreamRange, plan_ranges, report_loss
from reaper.pipeline.redis_stream.shipping import Sealed, seal
from reaper.pipeline.redis_stream.walking import Backlog, Walk, cut_walk, walk_to
from reaper.pipeline.redis_stream.writing import BatchWriter, StreamWriter
from reaper.pipeline.spark.shipping import ship_by_value


def register(spark: SparkSession) -> None:
    """Make ``format("redis-stream")`` known to a session, a classic one or one of Spark Connect."""
    ship_by_value()
    spark.dataSource.register(seal(RedisStreamSource))


class RedisStreamSource(Sealed, DataSource):
    """``format("redis-stream")``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.parsed = Options.parse({name.lower(): value for name, value in options.items()})

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> StructType:
        """Return the schema where the user gives none."""
        options = self.parsed
        if options.fields_as == "columns":
            raise RedisStreamError("with fieldsAs=columns, give the columns by .schema(…): Redis does not know them.")
        fields = StringType() if options.fields_as == "json" else MapType(StringType(), StringType())
        stream, entry_id = options.metadata_columns
        return StructType().add(stream, StringType()).add(entry_id, StringType()).add("fields", fields)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return (FilteredReader if self.parsed.push_filters else BatchReader)(self.parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query."""
        return StreamReader(self.parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        """Return the writer of a batch query."""
        if overwrite:
            raise RedisStreamError('entries can only be appended: write with mode("append").')
        return BatchWriter(self.parsed, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802, ARG002
        """Return the writer of a streaming query; all output modes append."""
        return StreamWriter(self.parsed, schema)


class BatchReader(Sealed, DataSourceReader):
    """Reads what streams hold when the query is planned."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.require_streams()
        Layout(schema, options)
        self._options, self._schema = options, schema
        self._narrowed = Narrowed()

    def partitions(self) -> list[InputPartition]:
        """Plan the ranges of all streams."""
        link = open_link(self._options.url, self._options.retry_s)
        try:
            states = look_at(link, sorted(find_streams(link, self._options)))
            require_there(states, self._options)
            wanted = {stream: state for stream, state in states.items() if self._narrowed.allows(printable(stream))}
            ranges = [part for stream, state in wanted.items() if state for part in self._plan(link, stream, state)]
        finally:
            link.close()
        return ranges or [StreamRange("", ZERO, ZERO)]

    def _plan(self, link: Link, stream: str, state: State) -> list[InputPartition]:
        options = self._options
        start = initial_position(options.starting.of(stream), state)
        ending = options.ending.of(stream)
        until = state.last if ending == LATEST else min(state.last, _highest(ending))
        until = min(until, self._narrowed.high)
        if self._narrowed.low > start.id:
            start = initial_position(show_id(self._narrowed.low), state)
        if start.id >= until:
            return []
        found = link.ask_one("XRANGE", key_of(stream), f"({show_id(start.id)}", show_id(until), "COUNT", 1)
        if not found:
            return []
        first = parse_id(found[0][0].decode())
        parts = most_parts(options, state.length)
        first_range, *others = plan_ranges(link, stream, start, until, parts, first)
        return [replace(first_range, opens_with=first), *others]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one range."""
        assert hasattr(partition, "until")
        return read_range(partition, self._options, self._schema)  # type: ignore[arg-type]


class FilteredReader(BatchReader):
    """Reads less where filters say so. Spark refuses a reader with this method unless its session allows filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take note of filters, and return all of them: Spark looks at what is read."""
        self._narrowed = narrow(filters, self._schema, self._options)
        return filters


def _highest(bound: str) -> Id:
    """Return the highest ID that ``endingId`` allows: a time alone means all of its milliseconds."""
    if bound == EARLIEST:
        return ZERO
    entry_id = parse_id(bound.removeprefix("("))
    if bound.startswith("("):
        return before(entry_id)
    return entry_id if "-" in bound else (entry_id[0], LAST_SEQUENCE)


def most_parts(options: Options, entries: int | None) -> int:
    """Return how many ranges are worth making of so many entries: none shorter than a page."""
    return options.partitions if entries is None else min(options.partitions, -(-max(entries, 1) // options.page_size))


Offset = dict[str, dict[str, Any]]
"""By stream: `Position.to_json`, and ``since`` where the range that ends here does not begin at the offset before."""


class StreamReader(Sealed, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of a streaming query. One process does the planning for as long as the query runs."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.require_streams()
        Layout(schema, options)
        self._options, self._schema = options, schema
        self._link: Link | None = None
        self._streams: set[str] = set()
        self._discovered_at: float | None = None
        self._states: dict[str, State | None] = {}
        self._planned: Offset = {}
        self._targets: dict[str, State] | None = None
        self._walks: dict[str, tuple[Position, Walk]] = {}
        self._keeper = Keeper()
        """What the walks to the end of the batch have read."""
        self._newborn: set[str] = set()
        """Streams that have appeared while the query runs; the offset of a batch that waits does not tell of them."""
        self._told_at: float | None = None
        """When there last was a batch."""

    # -- where Spark asks how far to go

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return where to begin, by ``startingId``."""
        states = self._look({})
        require_there(states, self._options)
        starting = self._options.starting
        return {stream: initial_position(starting.of(stream), state).to_json() for stream, state in states.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return ``maxEntriesPerTrigger``."""
        limit = self._options.max_entries
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take note of what there is: nothing that comes later is read."""
        states = self._look({}, discover=True)
        self._targets = {stream: state for stream, state in states.items() if state is not None}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return how far the next batch goes; ``start`` where there is nothing to read. Raises DataLossError."""
        known = None if self._discovered_at is None else set(self._states)
        states = self._look(start)
        require_there({stream: state for stream, state in states.items() if stream not in start}, self._options)
        end: Offset = dict(start)
        backlogs = []
        for stream, state in states.items():
            if self._targets is not None and state is not None and stream not in self._targets:
                continue  # it came later
            entry = start.get(stream)
            if entry is None and known is not None and stream not in known:
                self._newborn.add(stream)
            position = Position.from_json(entry) if entry else _appeared(state, stream in self._newborn)
            end[stream] = entry or position.to_json()
            backlog = self._backlog(stream, position, state)
            if backlog:
                backlogs.append(backlog)
        if self._should_wait(backlogs):
            self._planned = dict(sorted(start.items()))
            return start
        if backlogs:
            self._told_at = time.monotonic()
        for backlog, reached in self._admit(backlogs, getattr(limit, "max_rows", None)):
            end[backlog.stream] = _ended(backlog.start, reached)
        self._planned = {stream: end[stream] for stream in sorted(end)}
        return self._planned

    def _should_wait(self, backlogs: Sequence[Backlog]) -> bool:
        """Tell whether there is less than ``minEntriesPerTrigger``, and ``maxTriggerDelay`` is not over.

        The first batch does not wait, and what ``availableNow`` reads does not grow. Where nobody counts entries
        (before Redis 7.0) nothing waits: it might be enough.
        """
        least = self._options.min_entries
        if least is None or self._told_at is None or self._targets is not None:
            return False
        if any(backlog.start.added is None or backlog.target.added is None for backlog in backlogs):
            return False
        left = self._told_at + self._options.max_delay_s - time.monotonic()
        return left > 0 and sum(backlog.at_most for backlog in backlogs) < least

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the ends of the streams, with the number of entries that are not yet planned (``behind``)."""
        ends = {stream: state.end for stream, state in sorted(self._states.items()) if state is not None}
        return {stream: {**end.to_json(), **self._behind(stream, end)} for stream, end in ends.items()} or None

    def _behind(self, stream: str, end: Position) -> dict[str, int]:
        added = self._planned.get(stream, {}).get("added")
        return {} if added is None or end.added is None else {"behind": max(0, end.added - added)}

    def _backlog(self, stream: str, position: Position, state: State | None) -> Backlog | None:
        loss = find_loss(position, state, ignore_deletes=self._options.ignore_deletes)
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
        """Share the limit out, small backlogs first, so that what they leave goes to the large ones."""
        self._walks = {}
        self._keeper.close()
        self._keeper = Keeper()
        if limit is None:
            yield from ((backlog, backlog.target) for backlog in backlogs)
            return
        for waiting, backlog in zip(
            range(len(backlogs), 0, -1), sorted(backlogs, key=lambda backlog: backlog.at_most), strict=True
        ):
            share = -(-limit // waiting)
            if backlog.at_most <= share:
                limit -= backlog.at_most
                yield backlog, backlog.target
            elif share:
                walk = walk_to(self._connected(), backlog, share, self._options.page_size, self._keeper)
                self._walks[backlog.stream] = backlog.start, walk
                limit -= walk.entries
                yield backlog, walk.end

    # -- where Spark asks for a batch's tasks

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan the ranges of a batch: the same ones, in substance, when it is planned again after a crash."""
        ranges: list[InputPartition] = []
        for stream, ended in end.items():
            begun = start.get(stream)
            if ended == begun:
                continue
            since = ended.get("since") or begun
            lower = Position.from_json(since) if since else Position(ZERO, initial=True)
            upper = Position.from_json(ended)
            if lower.id < upper.id:
                ranges += self._plan(stream, lower, upper)
        return ranges

    def _plan(self, stream: str, lower: Position, upper: Position) -> list[StreamRange]:
        counted = upper.added - lower.added if lower.added is not None and upper.added is not None else None
        parts = most_parts(self._options, counted)
        begun, walk = self._walks.get(stream, (None, None))
        if walk and begun == lower and walk.end.id == upper.id:
            return cut_walk(stream, lower, walk, parts, self._keeper)
        if parts == 1:
            return plan_ranges(self._connected(), stream, lower, upper.id, 1)
        state = look_at(self._connected(), [stream])[stream]
        return plan_ranges(self._connected(), stream, lower, upper.id, parts, state.first if state else None)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one range, in an executor."""
        return read_range(partition, self._options, self._schema)  # type: ignore[arg-type]

    def commit(self, end: Offset) -> None:
        """Do nothing: nothing on the server changes. Spark calls this a batch late, or never."""

    def stop(self) -> None:
        """Close the connection, and let go of what was kept."""
        self._keeper.close()
        if self._link:
            self._link.close()

    # -- Redis

    def _connected(self) -> Link:
        if self._link is None:
            self._link = open_link(self._options.url, self._options.retry_s)
        return self._link

    def _look(self, start: Mapping[str, Any], *, discover: bool = False) -> dict[str, State | None]:
        """Look at the streams asked for: all that there are, and all that have been read and match."""
        now = time.monotonic()
        due = self._discovered_at is None or now >= self._discovered_at + self._options.discover_s
        if discover or due:
            self._streams = find_streams(self._connected(), self._options)
            self._streams |= self._vanished(set(start) - self._streams)
            self._discovered_at = now
        self._states = look_at(self._connected(), sorted(self._streams))
        return self._states

    def _vanished(self, missing: set[str]) -> set[str]:
        """Return the streams that were read and are no more. Those that exist are merely not asked for any longer."""
        if not self._options.pattern:
            return set()
        return {stream for stream, state in look_at(self._connected(), sorted(missing)).items() if state is None}


def _appeared(state: State | None, newborn: bool) -> Position:
    """Return where a stream begins that no offset tells of: at its beginning.

    One that was not there at the last look has had no entries that could be missing; of another one, what was trimmed
    before we came is nobody's loss.
    """
    return Position(ZERO, 0, initial=True) if newborn else initial_position(EARLIEST, state)


def _ended(start: Position, reached: Position) -> dict[str, Any]:
    """Return a stream's part of the end of a batch.

    Spark asks for the initial offset again when it repeats the very first batch, and that may be another one by then:
    so the first batch of a stream carries its own start.
    """
    return {**reached.to_json(), **({"since": start.to_json()} if start.initial else {})}
