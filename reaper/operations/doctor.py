"""The checks of `reaper doctor`: the findings of `reaper status`, and checks of the server and of single entries.

A check that the Redis user is not allowed to make is listed as unknown.
"""

from collections.abc import Awaitable, Iterator
from time import perf_counter
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.layout import layout_refusal
from reaper.operations.foreign_keys import foreign_keys
from reaper.operations.groups import keys_of
from reaper.operations.judgement import Finding, Level, judge, note, ok, remarks, unknown, warning, wrong
from reaper.operations.snapshot import take_snapshot
from reaper.operations.state import Snapshot
from reaper.reasons import MOST_WORST
from reaper.settings import ReaperSettings
from workers.protocol.calls.membership import DEFAULT_REDELIVERY
from workers.protocol.calls.refusals import explained
from workers.protocol.keys import GroupKeys
from workers.protocol.meaning import Meaning, meaning_of
from workers.protocol.messages import counted, entry_order, text
from workers.protocol.server import knows_claim

PENDING_READ = 100
NOT_SEEN = "the user lacks the permission. `reaper acl read-only` prints the rules to apply."
Result = TypeVar("Result")


async def diagnose(client: Redis, settings: ReaperSettings, release: str) -> list[Finding]:
    """Return the findings of every check, those that passed included. Raises redis-py's errors without contact."""
    found = await _check_server(client, f"{settings.namespace_keys.live}:absent", release)
    snapshot = await _if_allowed(take_snapshot(client, settings.namespace_keys, settings.groups, release))
    found += _check_service(snapshot) if snapshot else [unknown("replicas", NOT_SEEN)]
    policies: dict[str, str] = {group.keys.pair: group.redelivery for group in settings.watched}
    policies |= {group.group: group.policy for group in snapshot.groups if group.policy} if snapshot else {}
    groups = [group.keys for group in snapshot.groups] if snapshot else keys_of(list(policies)[:MOST_WORST])
    if foreign := await _if_allowed(foreign_keys(client, [settings.namespace_keys, *groups])):
        found.append(wrong("keys", f"{foreign}: another program uses this name. Rename one of them."))
    for keys in groups:
        of_entries = await _if_allowed(_check_entries(client, keys, policies.get(keys.pair, DEFAULT_REDELIVERY)))
        found += [unknown("group", NOT_SEEN, keys.pair)] if of_entries is None else of_entries
    bad = {finding.group for finding in found if finding.level in (Level.WRONG, Level.UNKNOWN)}
    return [*found, *(ok("group", "no fault was found", keys.pair) for keys in groups if keys.pair not in bad)]


async def _if_allowed(check: Awaitable[Result]) -> Result | None:
    """Return the result of ``check``, or None if the user lacks the permission. Raises every other error."""
    try:
        return await check
    except RedisError as error:
        if meaning_of(error) is Meaning.DENIED:
            return None
        raise


def _check_service(snapshot: Snapshot) -> Iterator[Finding]:
    yield from judge(snapshot)
    yield from remarks(snapshot)
    for replica in snapshot.live:
        yield ok("replicas", f"{replica.id} holds {counted(replica.held, 'group')}")


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


# --- one group ----------------------------------------------------------------------------------------------


async def _check_entries(client: Redis, keys: GroupKeys, policy: str) -> list[Finding]:
    if await client.type(keys.stream) != b"stream":
        return []
    found = []
    info: Any = await client.xinfo_stream(keys.stream)
    if refusal := await layout_refusal(client, keys.stream, policy):
        found.append(wrong("layout", explained(refusal), keys.pair))
    groups: Any = await client.xinfo_groups(keys.stream)
    own = next((one for one in groups if text(one["name"]) == keys.group), None)
    return [*found, *(await _trimming(client, keys, info, own) if own else ())]


async def _trimming(client: Redis, keys: GroupKeys, info: Any, group: Any) -> list[Finding]:
    """Find deleted entries among the oldest pending ones, and behind the last one that the group has received."""
    found = []
    rows: Any = await client.execute_command("XPENDING", keys.stream, keys.group, "-", "+", PENDING_READ)
    pipe = client.pipeline(transaction=False)
    for row in rows:
        pipe.xrange(keys.stream, row[0], row[0])
    if lost := sum(not entries for entries in await pipe.execute()):
        why = (
            f"{lost} pending entries were trimmed or deleted, so their payloads are lost. Trim by MINID below the "
            "oldest pending entry, or raise MAXLEN."
        )
        found.append(wrong("trimming", why, keys.pair))
    deleted = info.get("max-deleted-entry-id")  # since Redis 7
    if deleted and entry_order(deleted) > entry_order(group["last-delivered-id"]):
        why = "entries were trimmed or deleted before the group read them. Raise MAXLEN."
        found.append(wrong("trimming", why, keys.pair))
    return found
