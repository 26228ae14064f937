"""Reads the state of the groups from Redis, for ``reaper status``. Few round trips, and bounded counts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from redis.asyncio import Redis

from reaper.operations.groups import keys_of, known_names
from reaper.operations.state import Count, GroupState, Snapshot, SourceState, replica_of
from reaper.reasons import FEW_GROUPS, MOST_WORST, worst
from reaper.replicas import Replica, parse_replicas, read_watched
from reaper.settings import GroupSettings, is_observers
from workers.protocol.calls import CALL_BYTES
from workers.protocol.calls.declined import recovery_wait
from workers.protocol.calls.group_moves import QUARANTINE_SCORE
from workers.protocol.calls.membership import complaints
from workers.protocol.keys import OUR_CONSUMERS, GroupKeys, NamespaceKeys
from workers.protocol.meaning import is_missing_key, is_wrong_type
from workers.protocol.messages import CLAIM_READY_MS, Redelivery, entry_ms, text, whole_number
from workers.protocol.routing import RoutedClient
from workers.protocol.scripts import load_script
from workers.runtime.clock import time_ms

COUNTERS = (
    "token", "recovered", "fenced",
    "lost_payload", "lost_payload_ms", "lost_delivery", "groups_lost", "groups_lost_ms",
)  # fmt: skip
"""Fields of the group settings that `GroupState` has under the same name."""
MOST_COUNTED = 10_000
"""Ready jobs that are counted, one by one."""
COUNT_CALLS = 40
AT_A_TIME = 250
"""Groups that one pipeline reads."""
OLDEST_READ = 20
"""Pending entries in which the oldest one with an owner is searched. Others are ready in place."""


async def take_snapshot(
    client: Redis,
    keys: NamespaceKeys,
    configured: Iterable[GroupSettings] = (),
    server: str = "",
    asked: Iterable[GroupKeys] = (),
    *,
    glob: str = "",
) -> Snapshot:
    """Read the state of a namespace and of the groups that are in ``configured`` or that live replicas watch.

    Of more than `FEW_GROUPS`, only the worst are read. With ``glob``, only groups that match it are read. ``asked``
    are further groups, which need not be watched. A key of a foreign type reads as empty. Raises redis-py's errors
    without contact.
    """
    snapshot = await look_at_namespace(client, keys, server)
    watching = await read_watched(client, keys)
    replicas = snapshot.live or snapshot.replicas
    known = known_names(configured, (watching.get(replica.id, ()) for replica in replicas))
    chosen = [name for name in known if fnmatchcase(name, glob)] if glob else choose(known, replicas)
    names = dict.fromkeys((*chosen, *(keys.name for keys in asked)))
    snapshot = replace(snapshot, watching=watching, left_out=len(known) - len(chosen))
    return replace(snapshot, groups=await _read_groups(client, keys_of(names), snapshot))


def choose(known: Sequence[str], replicas: Sequence[Replica]) -> list[str]:
    """Return the groups to read. Of more than `FEW_GROUPS`, these are the ones that the replicas report as worst."""
    if len(known) <= FEW_GROUPS:
        return list(known)
    reports = {name: report for replica in replicas for name, report in replica.groups.items()}
    at_ms = max((replica.at_ms for replica in replicas), default=0)
    chosen = {report.group for report in worst((reports[name] for name in known if name in reports), at_ms)}
    return [name for name in known if name in chosen] or list(known[:MOST_WORST])


async def look_at_namespace(client: Redis, keys: NamespaceKeys, server: str = "") -> Snapshot:
    """Read the replicas, without groups. Raises as `take_snapshot`."""
    pipe = client.pipeline(transaction=False)
    pipe.time()
    pipe.hgetall(keys.replicas)
    pipe.zrange(keys.drained, 0, -1, withscores=True)
    time, heartbeats, drained = _readable(await pipe.execute(raise_on_error=False))
    now_ms = time_ms(time)
    return Snapshot(
        now_ms=now_ms,
        namespace=keys.namespace,
        server=server,
        replicas=parse_replicas((heartbeats or {}).values()),
        drained={text(name): int(until_ms) for name, until_ms in drained or () if until_ms > now_ms},
    )


def _readable(replies: Iterable[Any]) -> list[Any]:
    """Replace errors about missing keys and foreign types by None. Raises every other error."""
    readable = []
    for reply in replies:
        if isinstance(reply, Exception) and not is_missing_key(reply):
            raise reply
        readable.append(None if isinstance(reply, Exception) else reply)
    return readable


# --- groups -------------------------------------------------------------------------------------------------


async def _read_groups(client: Redis, groups: Sequence[GroupKeys], snapshot: Snapshot) -> tuple[GroupState, ...]:
    """Read the groups, many in one pipeline. From a cluster, one pipeline reads one group."""
    size = 1 if isinstance(client, RoutedClient) else AT_A_TIME
    states: list[GroupState] = []
    for first in range(0, len(groups), size):
        pipe = client.pipeline(transaction=False)
        for keys in groups[first : first + size]:
            pipe.get(keys.lease)
            pipe.hgetall(keys.settings)
            pipe.pttl(keys.lease)
            pipe.zcard(keys.schedule)
            pipe.zcount(keys.schedule, QUARANTINE_SCORE, "+inf")
            pipe.zcard(keys.stream_schedule)
            pipe.hlen(keys.quarantine)
            pipe.xlen(keys.dead)
        replies = iter(_readable(await pipe.execute(raise_on_error=False)))
        some = [_state_of(keys, list(islice(replies, 8)), snapshot) for keys in groups[first : first + size]]
        states += await _with_sources(client, some, snapshot.now_ms)
    return tuple(states)


def _state_of(keys: GroupKeys, replies: Sequence[Any], snapshot: Snapshot) -> GroupState:
    """Return all but the sources."""
    now_ms = snapshot.now_ms
    holder, fields = text(replies[0] or b""), replies[1] or {}
    left_ms, scheduled, quarantined, delayed, released, dead = (reply or 0 for reply in replies[2:])
    in_force = {text(name): text(value) for name, value in fields.items()}
    serving, reporting = _serving(snapshot, keys.name, holder)
    report = reporting.groups.get(keys.name) if reporting else None

    def number(name: str) -> int:
        return whole_number(in_force.get(name, "").encode(), 0)

    counters: dict[str, Any] = {name: number(name) for name in COUNTERS}
    return GroupState(
        group=keys.name,
        mode=in_force.get("recovery", ""),
        policy=in_force.get("policy") or (report.redelivery if report else ""),
        visibility_ms=number("visibility_ms") or (report.visibility_ms if report else 0),
        max_deliveries=number("max_deliveries") or (report.max_deliveries if report else 0),
        mismatches=find_mismatches(in_force, now_ms),
        paused=in_force.get("paused") == "1",
        recovery_wait=recovery_wait(in_force, now_ms),
        scheduled=scheduled - quarantined + delayed,
        quarantined=quarantined,
        released=released,
        dead_letters=dead,
        holder=holder,
        lease_left_ms=max(0, left_ms),
        served_by=serving.id if serving else "",
        report=report,
        reported_ms=reporting.at_ms if reporting else 0,
        **counters,
    )


def _serving(snapshot: Snapshot, name: str, holder: str) -> tuple[Replica | None, Replica | None]:
    """Return the live replica that serves the group, and the one whose report counts."""
    reporting = next((replica for replica in snapshot.live if name in replica.groups), None)
    if is_observers(snapshot.namespace):
        return reporting or next(iter(snapshot.watchers(name)), None), reporting
    serving = snapshot.replica(replica_of(holder))
    return serving, serving if holder else reporting


def find_mismatches(in_force: Mapping[str, str], now_ms: int) -> tuple[str, ...]:
    """Return how settings of live workers differ from the group settings, each difference with one worker."""
    found = (complaint.partition(": ") for complaint in sorted(complaints(in_force, now_ms), reverse=True))
    worker_of = {differs: worker for worker, _, differs in found if differs}
    return tuple(f"{worker}: {differs}" for differs, worker in sorted(worker_of.items()))


# --- streams and retry streams ------------------------------------------------------------------------------


async def _with_sources(client: Redis, states: Sequence[GroupState], now_ms: int) -> Sequence[GroupState]:
    """Add the stream and the retry stream to groups of one pipeline."""
    pipe = client.pipeline(transaction=False)
    for state in states:
        for key in (state.keys.stream, state.keys.retry):
            pipe.xlen(key)
            pipe.xinfo_groups(key)
            pipe.xinfo_consumers(key, state.keys.group)
            pipe.execute_command("XPENDING", key, state.keys.group)
            pipe.execute_command("XPENDING", key, state.keys.group, "-", "+", OLDEST_READ)
            if state.policy == Redelivery.IN_PLACE:
                pipe.execute_command("XPENDING", key, state.keys.group, "IDLE", CLAIM_READY_MS, "-", "+", MOST_COUNTED)
    replies = iter(await pipe.execute(raise_on_error=False))
    found = []
    for state in states:
        sources = []
        for key in (state.keys.stream, state.keys.retry):
            own = list(islice(replies, 6 if state.policy == Redelivery.IN_PLACE else 5))
            sources.append(await _read_source(client, key, state, own, now_ms))
        found.append(replace(state, main=sources[0], retry=sources[1]))
    return found


async def _read_source(client: Redis, key: str, state: GroupState, replies: Sequence[Any], now_ms: int) -> SourceState:
    entries, groups, consumers, summary, oldest, *given_back = _readable(replies)
    info = next((one for one in groups or () if text(one["name"]) == state.keys.group), None)
    if info is None:
        return SourceState(entries=entries or 0, is_foreign=is_wrong_type(replies[0]))
    readers = [one for one in consumers or () if text(one["name"]) not in OUR_CONSUMERS]
    pending = int(summary[0]) if summary else 0
    by_consumers = sum(int(held) for _, held in summary[3] or ()) if summary else 0
    made_old = sum(bool(row[1]) for rows in given_back for row in rows or ())
    ready_there = made_old + pending - by_consumers  # no consumer has entries that were given back by XNACK
    delivered = [row for row in oldest or () if row[1] and 0 <= row[2] < CLAIM_READY_MS]
    ready, first = await _count_ready(client, key, info)
    return SourceState(
        exists=True,
        entries=entries or 0,
        ready=replace(ready, number=ready.number + ready_there),
        oldest_ready_ms=max(0, now_ms - entry_ms(first)) if first else None,
        pending=by_consumers - made_old,
        oldest_pending_ms=int(delivered[0][2]) if delivered else None,
        consumers=len(readers),
        last_read_ms=min((int(one["idle"]) for one in readers), default=None),
    )


async def _count_ready(client: Redis, key: str, info: Mapping[str, Any]) -> tuple[Count, bytes]:
    """Return the number of entries behind the last delivered one, and the first of them (empty = none).

    The server's own count (``lag``) is not used, because Redis 7.0 counts wrong after an unread entry was deleted.
    """
    last, script = info["last-delivered-id"], load_script("reaper", "count_after")
    number, first = 0, b""
    for _ in range(COUNT_CALLS):
        counted, last, complete, oldest = await script.run(client, [key], [last, MOST_COUNTED - number, CALL_BYTES])
        number, first = number + counted, first or oldest
        if complete or number >= MOST_COUNTED:
            return Count(number, at_least=not complete), first
    return Count(number, at_least=True), first
