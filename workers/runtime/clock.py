"""The clocks that count: this process's monotonic one, also in the unit of timers, and the server's.

Everything here that asks what time it is asks this module or the event loop, which are one clock, so that a whole
process can be run on another one: the simulation runs hours in a moment.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
from redis.asyncio import Redis

_read: Callable[[], float] = time.monotonic


def monotonic() -> float:
    """Return seconds of this process's monotonic clock, in any thread: that of its event loop, too."""
    return _read()


@contextmanager
def going_by(read: Callable[[], float]) -> Iterator[None]:
    """Have `monotonic` return what ``read`` says while the block runs, in all threads; an event loop's own, say."""
    global _read  # noqa: PLW0603 - a process has one clock
    before, _read = _read, read
    try:
        yield
    finally:
        _read = before


def monotonic_ms() -> int:
    """Return milliseconds of the event loop's monotonic clock (virtual where the loop's is)."""
    return int(anyio.current_time() * 1000)


async def server_ms(client: Redis) -> int:
    """Return the server's time in milliseconds. Raises what redis-py raises."""
    return time_ms(await client.time())


def time_ms(reply: Any) -> int:
    """Return the milliseconds of what TIME answered."""
    seconds, microseconds = reply
    return int(seconds) * 1000 + int(microseconds) // 1000
