"""Lets a group look as if heartbeats had been served in it for long: recovery does not wait for its first timeout."""

from typing import Any

from redis.asyncio import Redis

from workers.protocol.keys import GroupKeys
from workers.runtime.clock import server_ms


async def served_for_long(client: Redis, keys: GroupKeys, visibility_s: float) -> None:
    """Write a visibility timeout and a beat into the group settings that was never broken."""
    fields: dict[str, Any] = {"visibility_ms": round(visibility_s * 1000), "beat": await server_ms(client), "unbroken": 1}
    await client.hset(keys.agreement, mapping=fields)  # type: ignore[misc]
