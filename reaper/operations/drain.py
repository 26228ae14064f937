"""Drains a replica. It hands its groups over to other replicas, and takes none for a while.

The mark is in the sorted set ``{<namespace>}:drained``. Every replica reads it when it registers.
"""

import anyio
from redis.asyncio import Redis

from reaper.operations.snapshot import look_at_namespace
from reaper.operations.state import Snapshot
from reaper.replicas import Replica, read_replicas
from workers.protocol.errors import NotPossibleError
from workers.protocol.keys import NamespaceKeys

LOOK_S = 0.2


async def drain(client: Redis, keys: NamespaceKeys, replica_id: str, for_ms: int) -> Replica:
    """Mark a live replica as drained for ``for_ms``, and return its heartbeat.

    Raises NotPossibleError if it is not alive, or if no other replica could take its groups. Raises redis-py's errors.
    """
    seen, replica = await _find(client, keys, replica_id)
    if not any(one.id != replica_id and one.settings == replica.settings for one in seen.able):
        raise NotPossibleError(
            f"cannot drain {replica_id!r}: no other live replica with the same settings could take its groups. "
            "Start a second replica."
        )
    await client.zadd(keys.drained, {replica_id: seen.now_ms + for_ms})
    return replica


async def undo_drain(client: Redis, keys: NamespaceKeys, replica_id: str) -> bool:
    """Let a replica take groups again. Return whether it was drained. Raises as `drain` if it is not alive."""
    was_drained = bool(await client.zrem(keys.drained, replica_id))
    if not was_drained:
        await _find(client, keys, replica_id)
    return was_drained


async def _find(client: Redis, keys: NamespaceKeys, replica_id: str) -> tuple[Snapshot, Replica]:
    seen = await look_at_namespace(client, keys)
    replica = seen.replica(replica_id)
    if replica is None:
        raise NotPossibleError(f"replica {replica_id!r} was not found: no live one has this ID. See `reaper replicas`.")
    return seen, replica


async def await_drained(client: Redis, keys: NamespaceKeys, replica: Replica, timeout_s: float) -> int:
    """Wait until the replica reports that it holds no lease. Return how many it still holds after ``timeout_s``."""
    held = replica.held
    with anyio.move_on_after(timeout_s):
        while held:
            await anyio.sleep(LOOK_S)
            held = sum(one.held for one in await read_replicas(client, keys) if one.id == replica.id)
    return held
