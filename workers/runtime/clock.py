"""The clocks that count: this process's monotonic one, in the unit of timers, and the server's."""

from typing import Any

import anyio
from redis.asyncio import Redis


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
