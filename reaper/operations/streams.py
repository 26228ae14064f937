"""Reads journals and dead letters backwards, because people ask for the newest entries."""

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Any

from redis.asyncio import Redis

from workers.protocol.events import LifecycleEvent, events_of
from workers.protocol.messages import text

PAGE = 500


async def newest_first(client: Redis, key: str, most: int, page: int = PAGE) -> AsyncIterator[Sequence[Any]]:
    """Yield at most ``most`` entries, page by page. A missing stream has none. Raises redis-py's errors."""
    if await client.type(key) != b"stream":
        return
    end = "+"
    while most > 0:
        rows: Any = await client.xrevrange(key, end, "-", min(page, most))
        for row in rows:
            yield row
        if len(rows) < min(page, most):
            return
        most -= len(rows)
        end = f"({text(rows[-1][0])}"


async def events_in(rows: AsyncIterable[Sequence[Any]]) -> AsyncIterator[LifecycleEvent]:
    """Yield the lifecycle events in a journal's entries, which come newest first, as they do."""
    async for row in rows:
        for event in reversed(events_of(*row)):
            yield event
