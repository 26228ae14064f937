"""Streams to read, and the readers of `redis_stream` without Spark around them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import pytest
import redis

from reaper.pipeline.redis_stream import ranges
from reaper.pipeline.redis_stream.client import Client
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.ranges import StreamRange
from reaper.pipeline.redis_stream.source import RedisStreamSource, StreamReader
from tests.support.servers import RedisServer

JOURNAL = "journal"
FOR_EVER_S = 3_600
"""How long readers try to reach Redis, unless that is what is tested: longer than any test."""


def commands(server: RedisServer) -> redis.Redis:
    """Return a client whose replies are as they come."""
    client = redis.Redis(port=server.port, protocol=2)
    client.set_response_callback("XRANGE", lambda reply, **_: reply)
    return client


class HasUrl(Protocol):
    """A server, or all nodes of a cluster."""

    @property
    def url(self) -> str:
        """The address."""


@contextmanager
def connected(server: RedisServer) -> Iterator[redis.Redis]:
    """The same, closed at the end."""
    with commands(server) as client:
        yield client


def counts(server: RedisServer) -> bool:
    """Tell whether this server counts the entries added to a stream."""
    return server.version >= (7, 0)


def add(server: RedisServer, *numbers: int, stream: str = JOURNAL) -> None:
    """Add entry ``<number>-0`` with field n for each number."""
    add_at(server, [(number, 0) for number in numbers], stream=stream)


def add_at(server: RedisServer, ids: Iterable[tuple[int, int]], stream: str = JOURNAL) -> None:
    """Add an entry for each ID. Its field n is the first part."""
    with connected(server) as client, client.pipeline(transaction=False) as pipeline:
        for ms, seq in ids:
            pipeline.xadd(stream, {"n": ms}, id=f"{ms}-{seq}")
        pipeline.execute()


def trim(server: RedisServer, length: int, stream: str = JOURNAL) -> None:
    """Keep the newest ``length`` entries."""
    server.command("XTRIM", stream, "MAXLEN", "=", length)


def delete(server: RedisServer, *numbers: int, stream: str = JOURNAL) -> None:
    """Delete entries, one by one as XDEL does."""
    server.command("XDEL", stream, *(f"{number}-0" for number in numbers))


def set_options(server: HasUrl, **given: Any) -> dict[str, str]:
    """Return options in Spark's form. The stream is the journal by default."""
    values = {"url": server.url, "streamPattern": JOURNAL, "discoverSeconds": 0, "retrySeconds": FOR_EVER_S, **given}
    return {name: str(value) for name, value in values.items()}


def parse(server: HasUrl, **given: Any) -> Options:
    """Return options, parsed."""
    return RedisStreamSource(set_options(server, **given)).parsed


@contextmanager
def small_pages(page: int = ranges.PAGE_ENTRIES, part: int = 1) -> Iterator[None]:
    """Have at most so many entries in a page, and a task for each ``part`` of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "PAGE_ENTRIES", page)
        patch.setattr(ranges, "LEAST_ENTRIES_A_PART", part)
        yield


def pages_of(server: HasUrl, part: StreamRange, **given: Any) -> Iterator[list[int]]:
    """Yield the pages of a range, with the numbers in its entries."""
    client = Client(parse(server, **given))
    try:
        for page in ranges.RangeReader(client, part).pages():
            yield [int(fields[b"n"]) for _, fields in page]
    finally:
        client.close()


def rows(reader: StreamReader, partitions: Sequence[Any]) -> list[dict[str, Any]]:
    """Read partitions, one after the other."""
    found = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    return [{**row, "n": dict(row["fields"]).get("n")} for row in found]


def read_all(server: HasUrl, **given: Any) -> list[dict[str, Any]]:
    """Return what a query reads first."""
    with query(server, **given) as reading:
        reading.plan()
        return reading.read()


class Query:
    """A streaming query without Spark. It calls a reader as Spark does, in the same order."""

    def __init__(self, server: HasUrl, *, checkpoint: "Query | None" = None, **given: Any) -> None:
        self.reader = StreamReader(parse(server, **given))
        self.limit = self.reader.getDefaultReadLimit()
        self.offset: Any = checkpoint.offset if checkpoint else None
        self.planned: list[StreamRange] = []

    def start(self) -> None:
        """Take the initial offset, if there is no other."""
        if self.offset is None:
            self.offset = self.reader.initialOffset()

    def plan(self) -> Any:
        """Plan the next batch. Return its end."""
        self.start()
        end = self.reader.latestOffset(self.offset, self.limit)
        self.planned = list(self.reader.partitions(self.offset, end))  # type: ignore[arg-type]
        return end

    def read(self) -> list[dict[str, Any]]:
        """Read what was planned."""
        return rows(self.reader, self.planned)

    def batch(self) -> list[int]:
        """Run one batch. Return the numbers in it."""
        end = self.plan()
        found = self.read()
        self.offset = end
        return [int(row["n"]) for row in found]

    def close(self) -> None:
        """End it."""
        self.reader.stop()


@contextmanager
def query(server: HasUrl, *, checkpoint: Query | None = None, **given: Any) -> Iterator[Query]:
    """A query that is ended with the block."""
    opened = Query(server, checkpoint=checkpoint, **given)
    try:
        yield opened
    finally:
        opened.close()
