"""The checks of `reaper doctor`. It adds checks of the server and of entries to the findings of `reaper status`."""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from time import perf_counter
from typing import Any

from redis.asyncio import Redis

from reaper.lease import unsupported_layout
from reaper.operations.judgement import Finding, Level, judge, note, ok, remarks, warning, wrong
from reaper.operations.snapshot import take_snapshot
from reaper.settings import ReaperSettings
from workers.protocol.calls.declined import explained
from workers.protocol.calls.membership import DEFAULT_REDELIVERY
from workers.protocol.keys import TYPES, GroupKeys, NamespaceKeys
from workers.protocol.messages import counted, entry_order, text
from workers.protocol.server import knows_claim


async def diagnose(client: Redis, settings: ReaperSettings, release: str) -> list[Finding]:
    """Return the findings of every check, also of those that passed. Raises redis-py's errors."""
    found = await _check_server(client, f"{settings.namespace_keys.live}:absent", release)
    snapshot = await take_snapshot(client, settings.namespace_keys, settings.groups, release)
    found += [*judge(snapshot), *remarks(snapshot)]
    found += [ok("replicas", f"{replica.id} holds {counted(replica.held, 'group')}") for replica in snapshot.live]
    found += await _check_types(client, [settings.namespace_keys, *(group.keys for group in snapshot.groups)])
    policies = {group.keys.name: group.redelivery for group in settings.watched}
    for group in snapshot.groups:
        found += await _check_entries(client, group.keys, group.policy or policies.get(group.group, DEFAULT_REDELIVERY))
    bad = {finding.group for finding in found if finding.level is Level.WRONG}
    return [*found, *(ok("group", "no fault was found", one.group) for one in snapshot.groups if one.group not in bad)]


# --- the server ---------------------------------------------------------------------------------------------


async def _check_server(client: Redis, absent_key: str, release: str) -> list[Finding]:
    info: Any = await client.info()
    began = perf_counter()
    await client.ping()
    round_trip_ms = (perf_counter() - began) * 1000
    claim = {True: " (CLAIM)", False: "", None: " (CLAIM unknown)"}[await knows_claim(client, absent_key)]
    answers = ok("server", f"{release}{claim}, answers within {round_trip_ms:.1f} ms")
    return [answers, *_durability(info)]


def _durability(info: dict[str, Any]) -> Iterator[Finding]:
    replicas = counted(number := int(info.get("connected_slaves", 0)), "replica")
    if number and "min_slaves_good_slaves" not in info:  # Redis reports it only with min-replicas-to-write
        why = f"{replicas}, min-replicas-to-write 0: a failover can lose the last writes, so jobs run again."
        yield note("replication", f"{why} Set min-replicas-to-write 1.")
    else:
        yield ok("replication", f"primary with {replicas}")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        why = "when memory is full, Redis deletes keys, for example jobs or leases. Set noeviction."
        yield wrong("eviction", f"maxmemory-policy {policy}: {why}")
    else:
        yield ok("eviction", "maxmemory-policy noeviction")
    if not info.get("aof_enabled"):
        yield warning("persistence", "no append-only file: a restart loses accepted jobs. Set appendonly yes.")
    else:
        yield ok("persistence", "append-only file")


async def _check_types(client: Redis, places: Iterable[GroupKeys | NamespaceKeys]) -> list[Finding]:
    """Find keys of another type. Redis reports ``WRONGTYPE`` without the name of the key."""
    expected = {
        str(getattr(place, one.name)): TYPES[one.name] for place in places for one in fields(place) if one.name in TYPES
    }
    return [
        wrong("keys", f"{key} holds a {kind}, where a {wanted} belongs: another program uses this name. Rename one.")
        for key, wanted in expected.items()
        if (kind := text(await client.type(key))) not in (wanted, "none")
    ]


# --- one group ----------------------------------------------------------------------------------------------


async def _check_entries(client: Redis, keys: GroupKeys, policy: str) -> list[Finding]:
    """Find a policy that does not fit the stream, and entries that were deleted before the group has received them."""
    if await client.type(keys.stream) != b"stream":
        return []
    found = []
    if unsupported := await unsupported_layout(client, keys.stream, policy):
        found.append(wrong("layout", explained(unsupported), keys.name))
    info: Any = await client.xinfo_stream(keys.stream)
    groups: Any = await client.xinfo_groups(keys.stream)
    deleted = info.get("max-deleted-entry-id")  # since Redis 7
    for group in groups if deleted else ():
        if text(group["name"]) == keys.group and entry_order(deleted) > entry_order(group["last-delivered-id"]):
            why = "entries were trimmed or deleted before the group read them. Raise MAXLEN."
            found.append(wrong("trimming", why, keys.name))
    return found
