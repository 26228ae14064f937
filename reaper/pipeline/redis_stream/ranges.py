"""A task's part of the work. It reads a range of one stream page by page, and proves that it was not trimmed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from reaper.pipeline.redis_stream.client import Client, Entry, printable
from reaper.pipeline.redis_stream.errors import LOG, DataLossError
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.positions import (
    Id,
    Position,
    State,
    added_at,
    another_stream,
    before,
    cuts_between,
    find_loss,
    parse_id,
    show_id,
)
from workers.protocol.log_fields import fields

PAGE_ENTRIES = 1_000
PAGE_BYTES = 1_000_000
"""The most bytes of one ``XRANGE``, because Redis serves no other client meanwhile."""
MOST_GROWTH = 32
"""A page is at most this many times as long as the one before. The first one has one entry of unknown size."""
LEAST_ENTRIES_A_PART = 5_000
"""A task for fewer entries costs more than it saves."""


class PageSize:
    """The number of entries of the next page, which fit into `PAGE_BYTES` if they are as large as recent ones."""

    def __init__(self) -> None:
        self.entries = 1
        self._largest = 1.0

    def learn(self, page: Sequence[Entry]) -> None:
        """Take a page into account. One huge entry makes the next pages small, and they grow again."""
        largest = max(sum(map(len, fields)) + sum(map(len, fields.values())) for _, fields in page)
        self._largest = max(largest, self._largest / 2)
        fitting = int(PAGE_BYTES / self._largest)
        self.entries = max(1, min(PAGE_ENTRIES, MOST_GROWTH * self.entries, fitting))


@dataclass(frozen=True)
class StreamRange(InputPartition):
    """The entries of one stream after one ID, up to another one. Spark pickles it."""

    stream: str
    after: Position
    until: Id
    opens_with: Id | None = None
    """The first entry of the range when it was planned, if ``after`` is no anchor."""


def plan_ranges(client: Client, stream: str, after: Position, until: Position) -> list[StreamRange]:
    """Cut a range into parts of about equal time, one for each task that is worth it, before existing entries."""
    parts = client.options.partitions
    if after.added is not None and until.added is not None:
        parts = min(parts, -(-(until.added - after.added) // LEAST_ENTRIES_A_PART))
    whole = StreamRange(stream, after, until.id)
    if parts <= 1:
        return [whole]
    oldest = client.page(stream, f"({show_id(after.id)}", show_id(until.id), 1)
    if not oldest:
        return [whole]
    first = parse_id(oldest[0][0].decode())
    cuts = cuts_between(before(first), until.id, parts)
    at_cuts = [client.page(stream, show_id(cut), show_id(until.id), 1) for cut in cuts]
    opening = sorted({parse_id(page[0][0].decode()) for page in at_cuts if page} - {first})
    starts = [whole, *(StreamRange(stream, Position(before(entry)), until.id, entry) for entry in opening)]
    ends = [*(part.after.id for part in starts[1:]), until.id]
    return [replace(part, until=end) for part, end in zip(starts, ends, strict=True)]


class RangeReader:
    """Reads one range page by page, and makes sure that no entry was trimmed before it was read."""

    def __init__(self, client: Client, part: StreamRange) -> None:
        self._client, self._part = client, part
        self._position, self._opens_with = part.after, part.opens_with
        self._size = PageSize()

    def pages(self) -> Iterator[list[Entry]]:
        """Yield the entries in order. No page is empty. Raises DataLossError, RedisStreamError."""
        while self._position.id < self._part.until:
            asked = self._size.entries
            entries = self._next_page(asked)
            if entries:
                self._move_to(entries)
                yield entries
            if len(entries) < asked:
                return

    def _next_page(self, asked: int) -> list[Entry]:
        """Ask for a page from the anchor on. If it begins with another entry, find out why."""
        until, position = show_id(self._part.until), self._position
        anchor = self._opens_with or (position.id if position.is_anchor else None)
        if anchor is not None:
            unread_anchor = self._opens_with is not None
            page = self._client.page(self._part.stream, show_id(anchor), until, asked + (not unread_anchor))
            if page and page[0][0].decode() == show_id(anchor):
                return page if unread_anchor else page[1:]
        lowest = show_id(self._opens_with) if self._opens_with else f"({show_id(position.id)}"
        page, state = self._client.page_and_state(self._part.stream, lowest, until, asked)
        loss = self._loss(state)
        if loss:
            report_loss(self._part.stream, loss, self._client.options)
            self._position = replace(position, added=None)
        return page

    def _loss(self, state: State | None) -> str | None:
        if state is not None and self._opens_with is not None:
            return _loss_of_opening(self._opens_with, state)
        at, after = self._position, self._part.after.id
        counted = at.id == after or state is None or state.deleted is None or state.deleted <= after
        loss = find_loss(at if counted else replace(at, added=None), state)
        if loss or state is None or not at.is_anchor or state.first is None or state.deleted is None:
            return loss
        if state.first < at.id and state.deleted < at.id:
            return another_stream(f"{show_id(at.id)} had been read and is missing, although older entries exist")
        return None

    def _move_to(self, entries: list[Entry]) -> None:
        added = self._position.added
        self._position = Position(parse_id(entries[-1][0].decode()), None if added is None else added + len(entries))
        self._opens_with = None
        self._size.learn(entries)


def _loss_of_opening(entry: Id, state: State) -> str | None:
    """Judge a range whose first entry is missing, by the state of its stream."""
    if state.first is not None and state.first <= entry:
        return None  # deleted by itself, because trimming would have removed the older ones first
    if state.deleted is None or state.deleted >= entry:
        return None
    return f"entries from {show_id(entry)} on were trimmed before being read, after the read had begun"


def walk_to(client: Client, stream: str, start: Position, state: State, until: Position, limit: int) -> Position:
    """Return the position of the ``limit``-th entry after ``start``, or ``until`` if that is nearer.

    It reads the entries on its way, because Redis cannot look up an entry by its number.
    """
    at, walked, size = start, 0, PageSize()
    while walked < limit:
        asked = min(size.entries, limit - walked)
        page = client.page(stream, f"({show_id(at.id)}", show_id(until.id), asked)
        walked += len(page)
        if len(page) < asked:
            return until
        size.learn(page)
        at = Position(parse_id(page[-1][0].decode()), added_at(start, state, walked))
    return at


def report_loss(stream: str, loss: str, options: Options) -> None:
    """Raise DataLossError, or log it once if ``failOnDataLoss`` is false."""
    sentence = f"stream {printable(stream)}: {loss}."
    if options.fail_on_data_loss:
        raise DataLossError(f"{sentence} Option failOnDataLoss=false continues with the entries that exist.")
    if sentence not in options.logged:
        options.logged.add(sentence)
        LOG.warning("data loss, and failOnDataLoss is false: %s", fields(cause=sentence))
