"""Looks at a group; nothing is written."""

from typing import Any, NamedTuple

from redis.asyncio import Redis

from workers.protocol.keys import GroupKeys
from workers.protocol.messages import text
from workers.protocol.scripts import load_script

LOOK_AT_GROUP = load_script("workers.protocol", "look_at_group")


class GroupLoad(NamedTuple):
    """What is seen of one group, in the order of ``look_at_group.lua``."""

    in_flight: int
    oldest_ready_ms: int
    """Age of the oldest job that waits to be read; 0 = none does."""
    oldest_pending_ms: int
    scheduled: int
    quarantined: int
    dead_letters: int
    paused: int
    """1 while an operator has paused recovery of the group, else 0."""
    recovery_waits_ms: int
    """For how long recovery waits after a gap in the heartbeats."""


async def look_at_group(client: Redis, keys: GroupKeys) -> GroupLoad:
    """Look at what the gauges of a group show (``look_at_group.lua``)."""
    places = (keys.stream, keys.retry, keys.schedule, keys.stream_schedule, keys.quarantine, keys.dead, keys.settings)
    return GroupLoad(*await LOOK_AT_GROUP.run(client, places, (keys.group,)))


async def group_names(client: Redis, stream: str) -> set[str]:
    """Return the names of a stream's consumer groups; none where there is no such stream."""
    if not await client.exists(stream):
        return set()
    groups: Any = await client.xinfo_groups(stream)
    return {text(group["name"]) for group in groups}
