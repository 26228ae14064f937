"""Operations on one group. They create, find and forget it, and pause and resume its recovery.

The groups come from the operator's settings and from the registrations of the replicas. So an operator needs no
settings file.
"""

from collections.abc import Iterable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.operations.state import replica_of
from reaper.replicas import read_replicas, read_watched
from reaper.settings import WILDCARD, GroupSettings, ReaperSettings
from workers.protocol.calls import CALL_BYTES, GroupCalls
from workers.protocol.calls.group_moves import group_names
from workers.protocol.errors import ConfigurationError, NotPossibleError
from workers.protocol.events import DEFAULT_JOURNAL_MAXLEN
from workers.protocol.keys import GroupKeys, group_keys, namespace_keys, split_group
from workers.protocol.meaning import Meaning, meaning_of
from workers.protocol.messages import Redelivery, counted, entry_order, is_entry_id, text
from workers.protocol.scripts import load_script
from workers.runtime.clock import server_ms

# --- creating -----------------------------------------------------------------------------------------------

FROM_START, FROM_NOW = "0", "$"
"""A new group begins at the start of its stream, or with entries that are added from then on."""


async def create_group(client: Redis, keys: GroupKeys, start: str) -> bool:
    """Create the group, and a stream that is missing. Return False if the group existed.

    ``start`` is `FROM_NOW` or `FROM_START`. A group that was destroyed continues at its last known position instead of
    the start. Raises ConfigurationError for a pattern, and if the user lacks the permission. Raises redis-py's errors.
    """
    if WILDCARD in keys.stream:
        raise ConfigurationError(f"cannot create {keys.name!r}: it is a pattern. Write patterns in the settings file.")
    if start == FROM_START and await client.exists(keys.stream):
        last_id, info = text(await client.hget(keys.settings, "last_id") or b""), await client.xinfo_stream(keys.stream)
        if is_entry_id(last_id) and entry_order(last_id.encode()) <= entry_order(info["last-generated-id"]):
            start = last_id
    try:
        await client.xgroup_create(keys.stream, keys.group, start, mkstream=True)
    except RedisError as error:
        if str(error).startswith("BUSYGROUP"):
            return False
        if meaning_of(error) is Meaning.DENIED:
            raise ConfigurationError(
                f"cannot create group {keys.name!r}: permission denied. Ask an administrator to run "
                f"`XGROUP CREATE {keys.stream} {keys.group} {start} MKSTREAM`."
            ) from error
        raise
    return True


# --- finding ------------------------------------------------------------------------------------------------


def known_names(configured: Iterable[GroupSettings], watched: Iterable[Iterable[str]]) -> list[str]:
    """Return the groups of the settings and those that replicas watch (`read_watched`), each once, sorted."""
    names = {f"{group.stream}/{group.group}" for group in configured if not group.is_pattern}
    return sorted(names.union(name for watching in watched for name in watching if split_group(name)))


def keys_of(names: Iterable[str]) -> list[GroupKeys]:
    """Return the keys of the groups with these full names."""
    return [group_keys(*parts) for name in names if (parts := split_group(name))]


async def known_groups(client: Redis, settings: ReaperSettings) -> list[GroupKeys]:
    """Return the groups of the settings, and those that replicas watch. Raises redis-py's errors."""
    watched = await read_watched(client, settings.namespace_keys)
    return keys_of(known_names(settings.groups, watched.values()))


async def check_exists(client: Redis, keys: GroupKeys) -> None:
    """Raise NotPossibleError if Redis has neither the group nor a key of it, for example after a typing error."""
    if keys.group in await group_names(client, keys.stream):
        return
    if not await client.exists(keys.settings, keys.lease, keys.schedule, keys.retry, keys.dead):
        raise NotPossibleError(f"group {keys.name!r} does not exist. Check the names of the stream and of the group.")


# --- pause and resume ---------------------------------------------------------------------------------------


async def set_paused(client: Redis, keys: GroupKeys, paused: bool) -> bool:
    """Pause or resume recovery of the group. Return whether that changed it. Raises redis-py's errors."""
    script = load_script("reaper", "pause_group")
    return bool(await script.run_idempotent(client, [keys.settings], [int(paused)]))


# --- forget -------------------------------------------------------------------------------------------------


async def forget(client: Redis, keys: GroupKeys, *, namespace: str, journal_limit: int = DEFAULT_JOURNAL_MAXLEN) -> int:
    """Remove the keys of a group, except dead letters and the journal. Return how many scheduled jobs became ready.

    Raises NotPossibleError with the first step if that is not possible now, and then all keys stay. Raises redis-py's
    errors.
    """
    await _check_unserved(client, keys, namespace)
    words = GroupCalls(keys, journal_limit).spell(keys.stream, Redelivery.STREAM, CALL_BYTES, more_keys=(keys.lease,))
    script, code, detail, made_ready = load_script("reaper", "forget_group"), b"more", b"", 0
    while code == b"more":
        code, moved, detail = await script.run_idempotent(client, *words)
        made_ready += moved
    _check_done(keys, text(code), text(detail), made_ready)
    return made_ready


async def _check_unserved(client: Redis, keys: GroupKeys, namespace: str) -> None:
    """Raise NotPossibleError if a live replica watches the group. The script checks the lease."""
    now, of = await server_ms(client), namespace_keys(namespace)
    watched = await read_watched(client, of)
    for replica in await read_replicas(client, of):
        if replica.is_live(now) and keys.name in watched.get(replica.id, ()):
            raise NotPossibleError(
                f"cannot forget {keys.name}: replica {replica.id} of namespace {namespace!r} still watches it. Remove "
                "the group from its settings and restart it, or stop it."
            )


def _check_done(keys: GroupKeys, code: str, detail: str, made_ready: int) -> None:
    """Raise NotPossibleError if the script rejected the call with one of its codes."""
    reasons = {
        "served": f"its lease is held by {replica_of(detail)}. Stop this replica, wait until the lease expires",
        "embedded": f"worker {detail} and other embedded workers recover it. Stop them (a crashed one counts until its "
        "registration expires)",
        "no_group": f"jobs wait in {keys.schedule}, and stream {keys.stream!r} has no group {keys.group!r} to read "
        f"them. Create it (XGROUP CREATE {keys.stream} {keys.group} 0)",
        "held": f"a job in {keys.schedule} cannot be made ready ({detail}). Repair it",
        "retry_waiting": f"{keys.retry} has unsettled jobs ({detail}). Let workers settle them",
    }
    if code in reasons:
        ready = f" ({counted(made_ready, 'waiting job was', 'waiting jobs were')} made ready)" if made_ready else ""
        raise NotPossibleError(f"cannot forget {keys.name}: {reasons[code]}, and then forget it again{ready}.")
