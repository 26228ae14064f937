"""Finds keys of stream-reaper that have another type. Redis reports ``WRONGTYPE`` without the name of the key."""

from collections.abc import Iterable
from dataclasses import fields

from redis.asyncio import Redis

from workers.protocol.keys import TYPES, GroupKeys, NamespaceKeys
from workers.protocol.messages import text

_MOST_NAMED = 3
_NONE = "none"
_IN_WORDS = {"zset": "sorted set"}


async def foreign_keys(client: Redis, places: Iterable[GroupKeys | NamespaceKeys]) -> str:
    """Return a phrase about the keys of ``places`` that have a foreign type, or ''. Raises redis-py's errors."""
    expected = {
        str(getattr(place, field.name)): TYPES[field.name]
        for place in places
        for field in fields(place)
        if field.name in TYPES
    }
    found = [
        f"{key} holds a {_IN_WORDS.get(kind, kind)}, where a {_IN_WORDS.get(wanted, wanted)} belongs"
        for key, wanted in expected.items()
        if (kind := text(await client.type(key))) not in (wanted, _NONE)
    ]
    others = len(found) - _MOST_NAMED
    return "; ".join(found[:_MOST_NAMED]) + (f" (and {others} more)" if others > 0 else "")
