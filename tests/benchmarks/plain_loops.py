"""What `redis_stream` is compared with: plain loops in redis-py, each in a process of its own.

``python -m tests.benchmarks.plain_loops COMMAND URL STREAM ENTRIES`` prints the seconds it took.
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis

PAGE = 1000
FIELDS = (b"event", b"job", b"data")
DATA = b'{"v":1,"group":"billing","consumer":"host.0123456789ab","delivery":1,"begun_ms":12,"run_ms":345}'


def values(numbers: range) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Return what the entries of a journal may hold."""
    return ((b"acked", b"job-%d" % number, DATA) for number in numbers)


def xrange(client: redis.Redis, stream: str) -> int:
    """Read as users do: ``xrange()`` page by page, which makes a dict of each entry."""
    lowest, entries = "-", 0
    while True:
        page: Any = client.xrange(stream, lowest, "+", count=PAGE)
        entries += len(page)
        if len(page) < PAGE:
            return entries
        lowest = "(" + page[-1][0].decode()


def raw_xrange(client: redis.Redis, stream: str) -> int:
    """Read as fast as redis-py can: replies stay the lists that the parser has made."""
    client.set_response_callback("XRANGE", lambda reply, **_: reply)
    lowest, entries = b"-", 0
    while True:
        page: Any = client.execute_command("XRANGE", stream, lowest, "+", "COUNT", PAGE)
        entries += len(page)
        if len(page) < PAGE:
            return entries
        lowest = b"(" + page[-1][0]


def pipeline(client: redis.Redis, stream: str, entries: int) -> int:
    """Add entries by pipelines of ``xadd()``."""
    for first in range(0, entries, PAGE):
        with client.pipeline(transaction=False) as commands:
            for row in values(range(first, min(entries, first + PAGE))):
                commands.xadd(stream, dict(zip(FIELDS, row, strict=True)))
            commands.execute()
    return entries


READERS: dict[str, Callable[[redis.Redis, str], int]] = {"xrange": xrange, "raw_xrange": raw_xrange}


def main() -> None:
    """Run one of them."""
    command, url, stream, expected = sys.argv[1:]
    with redis.Redis.from_url(url, protocol=2) as client:
        client.ping()
        started = time.perf_counter()
        reader = READERS.get(command)
        entries = reader(client, stream) if reader else pipeline(client, stream, int(expected))
        seconds = time.perf_counter() - started
    if entries != int(expected):
        raise SystemExit(f"{entries:,} entries instead of {expected}")
    print(seconds)


if __name__ == "__main__":
    main()
