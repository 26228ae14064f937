"""The monotonic clock of this process, also in the unit of timers, and the clock of the server.

The whole program takes the time from this module or from the event loop, which are one clock. So the simulation can run
a whole process on another clock, hours in a moment.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis.asyncio import Redis

_read: Callable[[], float] = time.monotonic


def monotonic() -> float:
    """Return seconds of this process's monotonic clock, in any thread. It is also the clock of the event loop."""
    return _read()


@contextmanager
def going_by(read: Callable[[], float]) -> Iterator[None]:
    """Make ``read`` the clock of `monotonic` in all threads while the block runs. The simulation uses it."""
    global _read  # noqa: PLW0603 - a process has one clock
    before, _read = _read, read
    try:
        yield
    finally:
        _read = before


def monotonic_ms() -> int:
    """Return milliseconds of the same clock."""
    return int(_read() * 1000)


async def server_ms(client: Redis) -> int:
    """Return the server's time in milliseconds. Raises redis-py's errors."""
    return time_ms(await client.time())


def time_ms(reply: Any) -> int:
    """Return the milliseconds of a reply of TIME."""
    seconds, microseconds = reply
    return int(seconds) * 1000 + int(microseconds) // 1000
