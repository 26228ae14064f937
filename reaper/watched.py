"""The watched groups outside the settings. People add them, or replicas find them by patterns.

They are in the hash ``{<namespace>}:watched``. Each change writes a new version. Replicas get it when they register.
"""

from collections.abc import Collection, Mapping

from redis.asyncio import Redis

from workers.protocol.keys import NamespaceKeys
from workers.protocol.messages import text
from workers.protocol.scripts import load_script

WATCH = load_script("reaper", "watch")
PAGE = 1_000


async def read_found(client: Redis, keys: NamespaceKeys) -> dict[str, str]:
    """Return the pattern that found each group, or '' for an added one. Raises redis-py's errors."""
    fields = {text(name): text(pattern) async for name, pattern in client.hscan_iter(keys.watched, count=PAGE)}
    fields.pop("version", None)  # it has no slash, so it is no group
    return fields


async def change_watched(
    client: Redis,
    keys: NamespaceKeys,
    *,
    add: Mapping[str, str] | None = None,
    remove: Collection[str] = (),
    by_person: bool = False,
) -> int:
    """Add groups with the patterns that found them, and remove others. Return how many changed (``watch.lua``).

    Only a person removes a group that a person has added. Raises redis-py's errors.
    """
    changed, additions, removals = 0, list((add or {}).items()), list(remove)
    for first in range(0, max(len(additions), len(removals)), PAGE):
        added = additions[first : first + PAGE]
        words = [word for pair in added for word in pair] + removals[first : first + PAGE]
        changed += await WATCH.run(client, [keys.watched], [int(by_person), len(added), *words])
    return changed
