"""What one task reads: a range of one stream, page by page, with a proof that nothing of it was trimmed meanwhile."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from reaper.pipeline.redis_stream.errors import LOG, DataLossError
from reaper.pipeline.redis_stream.kept import KeptPages
from reaper.pipeline.redis_stream.link import Link, accepted, key_of, printable, state_of
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.positions import (
    Id,
    Position,
    State,
    another_stream,
    before,
    cuts_between,
    find_loss,
    parse_id,
    show_id,
)

PAGE_BYTES = 1_000_000
"""How much one ``XRANGE`` is meant to return: Redis serves nobody else meanwhile."""
WORST_PAGE_BYTES = 4_000_000
"""How much it may return where all entries are as large as the largest one of late."""
MOST_GROWTH = 32
"""So many times as many entries as the page before one may ask for. The first one asks for a single entry: nobody knows
how large they are."""
_EVERY = 7
"""Of a long page every seventh entry is looked at, from another one on each time; seven, since data like round numbers.
Looking at all of them takes a tenth of the time of reading."""
_SHORT = 64
_UNEVEN = 4
"""Where one entry is so many times as large as others, each entry of a page is looked at, not a sample."""

Entry = list[Any]
"""As the wire has it: ``[ID, [field, value, field, value, …]]``, bytes."""


class PageSize:
    """How many entries to ask for: as many as `PAGE_BYTES` hold, as far as the pages before tell.

    An entry far larger than the others makes the next pages small, and they grow as none like it comes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.entries = 1
        self.entry_bytes = 0.0
        """How large an entry of the last page is on average, judged by a sample where they are alike."""
        self._largest = 0.0
        self._turn = 0

    def learn(self, page: Sequence[Entry]) -> None:
        """Take note of a page, which is not empty."""
        self._turn = (self._turn + 1) % _EVERY
        sizes = _sizes(page) if len(page) <= _SHORT else _sizes_of_small(page[self._turn :: _EVERY])
        if max(*sizes, self._largest) > _UNEVEN * sum(sizes) / len(sizes):
            sizes = _sizes(page)
        self.entry_bytes = sum(sizes) / len(sizes)
        self._largest = max(*sizes, self._largest / 2)
        fit = min(PAGE_BYTES / self.entry_bytes, WORST_PAGE_BYTES / self._largest)
        self.entries = max(1, min(self._most, MOST_GROWTH * self.entries, int(fit)))


def _sizes(entries: Sequence[Entry]) -> list[int]:
    return [sum(map(len, flat)) + 1 for _, flat in entries]


def _sizes_of_small(entries: Sequence[Entry]) -> list[int]:
    """Return the same in a third of the time, by copying them."""
    return [len(b"".join(flat)) + 1 for _, flat in entries]


@dataclass(frozen=True)
class StreamRange(InputPartition):
    """The entries of one stream after one ID, up to another one. Spark pickles it."""

    stream: str
    after: Id
    until: Id
    added: int | None = None
    """As `Position.added`, at ``after``."""
    initial: bool = False
    """As `Position.initial`, at ``after``."""
    opens_with: Id | None = None
    """The oldest entry in the range when it was planned; None where ``after`` is an anchor, or nothing is known."""
    kept: KeptPages | None = None
    """The first pages of the range, which the planner has read, and proven to be whole."""


def plan_ranges(
    link: Link, stream: str, start: Position, until: Id, parts: int, first: Id | None = None
) -> list[StreamRange]:
    """Cut ``(start, until]`` into at most ``parts`` ranges, at entries that exist. ``first`` is the oldest entry."""
    whole = StreamRange(stream, start.id, until, start.added, start.initial)
    after = max(start.id, before(first)) if first else start.id
    cuts = cuts_between(after, until, parts) if parts > 1 and after < until else []
    if not cuts:
        return [whole]
    key = key_of(stream)
    replies = link.ask(*(("XRANGE", key, show_id(cut), show_id(until), "COUNT", 1) for cut in cuts))
    found = [accepted(reply, ("XRANGE", key)) for reply in replies]
    opening = sorted({parse_id(entries[0][0].decode()) for entries in found if entries} - {first})
    return split(whole, opening)


def split(whole: StreamRange, opening: Sequence[Id]) -> list[StreamRange]:
    """Split a range before each of some of its entries, given in order."""
    later = [StreamRange(whole.stream, before(entry), whole.until, opens_with=entry) for entry in opening]
    ranges = [whole, *later]
    ends = [*(part.after for part in later), whole.until]
    return [replace(part, until=end) for part, end in zip(ranges, ends, strict=True)]


class RangeReader:
    """Reads one range page by page, and makes sure that nothing of it was trimmed before it was read."""

    def __init__(self, link: Link, part: StreamRange, options: Options) -> None:
        self._link, self._part, self._options = link, part, options
        self.stream, self._key = part.stream, key_of(part.stream)
        self._position = Position(part.after, part.added, part.initial)
        self._opens_with = part.opens_with
        self._size = PageSize(options.page_size)

    @property
    def entry_bytes(self) -> float:
        """How large an entry is on average, judged by a sample of the last page."""
        return self._size.entry_bytes

    def pages(self) -> Iterator[list[Entry]]:
        """Yield the entries in order; no page is empty. Raises DataLossError."""
        part = self._part
        if part.after >= part.until:
            return
        for page in part.kept.read() if part.kept else ():
            self._move_to(page)
            yield page
        if self._position.id >= part.until:
            return
        self._link.start(*self._command())
        while True:
            asked = self._size.entries
            entries = self._whole(self._link.finish())
            full = len(entries) >= asked
            if not entries:
                return
            self._move_to(entries)
            more = full and self._position.id < part.until
            if more:
                self._link.start(*self._command())
            yield entries
            if not more:
                return

    def _command(self) -> tuple[Any, ...]:
        """Ask for a page, from the anchor on."""
        anchor = self._opens_with or (self._position.id if self._position.is_anchor else None)
        size = self._size.entries + (self._opens_with is None and anchor is not None)
        lowest = show_id(anchor) if anchor else f"({show_id(self._position.id)}"
        return "XRANGE", self._key, lowest, show_id(self._part.until), "COUNT", size

    def _whole(self, entries: list[Entry]) -> list[Entry]:
        """Return the unread entries of a page, after making sure that none is missing."""
        if self._opens_with is not None:
            proven = bool(entries) and entries[0][0] == show_id(self._opens_with).encode()
            unread = entries
        else:
            proven = self._position.is_anchor and bool(entries) and entries[0][0] == show_id(self._position.id).encode()
            unread = entries[1:] if proven else entries
        return unread if proven else self._checked()

    def _checked(self) -> list[Entry]:
        """Read the page again, together with the stream's state: the anchor is gone, or there is none."""
        lowest = show_id(self._opens_with) if self._opens_with else f"({show_id(self._position.id)}"
        page = ("XRANGE", self._key, lowest, show_id(self._part.until), "COUNT", self._size.entries)
        *_, replies = self._link.ask(("MULTI",), page, ("XINFO", "STREAM", self._key), ("EXEC",))
        entries, info = accepted(replies, ("EXEC",))
        loss = self._judge(state_of(info, self._part.stream))
        if loss:
            report_loss(self._part.stream, loss, self._options)
            self._position = replace(self._position, added=None)
        return list(accepted(entries, page))

    def _judge(self, state: State | None) -> str | None:
        ignore = self._options.ignore_deletes
        if self._opens_with is not None and state is not None:
            return self._judge_opening(self._opens_with, state, ignore)
        at, after = self._position, self._part.after
        counted = at.id == after or state is None or state.deleted is None or state.deleted <= after
        loss = find_loss(at if counted else replace(at, added=None), state, ignore_deletes=ignore)
        if loss or state is None or not at.is_anchor or state.first is None or state.deleted is None:
            return loss
        if state.first < at.id and state.deleted < at.id:
            return another_stream(f"{show_id(at.id)} had been read and is missing, although older entries are there")
        return None

    @staticmethod
    def _judge_opening(entry: Id, state: State, ignore_deletes: bool) -> str | None:
        if state.first is not None and state.first <= entry:
            return None  # deleted by itself: trimming would have taken the older ones first
        if ignore_deletes and (state.deleted is None or state.deleted >= entry):
            return None
        return f"entries from {show_id(entry)} on were trimmed before being read, after the read had begun"

    def _move_to(self, entries: list[Entry]) -> None:
        """Take note of a page: where the next one begins, and how large it may be."""
        added = self._position.added
        read = parse_id(entries[-1][0].decode())
        self._position = Position(read, None if added is None else added + len(entries))
        self._opens_with = None
        self._size.learn(entries)


def report_loss(stream: str, loss: str, options: Options) -> None:
    """Raise DataLossError, or log it once if ``failOnDataLoss`` is false."""
    sentence = f"stream {printable(stream)}: {loss}."
    if options.fail_on_data_loss:
        raise DataLossError(f"{sentence} Option failOnDataLoss=false goes on with what is there.")
    if sentence not in options.told:
        options.told.add(sentence)
        LOG.warning("data loss, and failOnDataLoss is false: %s", sentence)
