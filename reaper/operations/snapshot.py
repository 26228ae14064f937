"""Gathers from Redis what ``reaper status`` shows. Reads only, in few round trips, bounded in what it counts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from reaper.operations.groups import keys_of, known_pairs
from reaper.operations.state import Count, GroupState, SilentConsumer, Snapshot, SourceState, replica_of
from reaper.reasons import FEW_GROUPS, MOST_WORST, worst
from reaper.replicas import GroupReport, Replica, parse_replicas, read_watched
from reaper.settings import WatchedGroup, is_observers, observers_of
from workers.protocol.calls import CALL_BYTES
from workers.protocol.calls.group_moves import QUARANTINE_SCORE
from workers.protocol.calls.membership import complaints
from workers.protocol.calls.refusals import recovery_wait
from workers.protocol.keys import (
    OUR_CONSUMERS,
    GroupKeys,
    NamespaceKeys,
    namespace_keys,
)
from workers.protocol.meaning import Meaning, is_nothing_there, is_wrong_type, meaning_of
from workers.protocol.messages import (
    CLAIM_READY_MS,
    LAST_ENTRY_ID,
    Redelivery,
    entry_ms,
    text,
    whole_number,
)
from workers.protocol.routing import RoutedClient
from workers.protocol.scripts import load_script
from workers.runtime.clock import time_ms
from workers.runtime.settings import to_ms

MOST_COUNTED = 10_000
"""Ready jobs that are counted, one by one."""
COUNT_CALLS = 40
AT_A_TIME = 250
"""Groups that one pipeline asks for."""
LOOKED_AT = 20
"""Pending entries, for the oldest that a worker has: others are ready in place."""


async def take_snapshot(
    client: Redis,
    keys: NamespaceKeys,
    configured: Sequence[WatchedGroup] = (),
    server: str = "",
    asked: Iterable[GroupKeys] = (),
    *,
    glob: str = "",
) -> Snapshot:
    """Read the state of a namespace and of the groups that are in ``configured`` or that live replicas watch.

    Of more than `FEW_GROUPS`, only the worst are looked at, or those that match ``glob``, if there is one. ``asked``:
    further groups, also if no replica watches them. A key of a foreign type reads as empty. Raises redis-py's errors if
    there is no contact.
    """
    snapshot = await look_at_namespace(client, keys, server)
    observing = namespace_keys(observers_of(keys.namespace))
    watching = await read_watched(client, keys)
    if not snapshot.live:
        snapshot = replace(snapshot, observers=await _look_for_observers(client, observing, snapshot.now_ms))
        if snapshot.observers:
            watching |= await read_watched(client, observing)
    replicas = snapshot.live or snapshot.observers or snapshot.replicas
    known = known_pairs(configured, (watching.get(replica.id, ()) for replica in replicas))
    chosen = [pair for pair in known if fnmatchcase(pair, glob)] if glob else choose(known, replicas)
    pairs = dict.fromkeys((*chosen, *(group.pair for group in asked)))
    settings = {f"{group.stream}/{group.group}": group for group in configured} if pairs else {}
    snapshot = replace(snapshot, watching=watching, left_out=len(known) - len(chosen))
    return replace(snapshot, groups=await _read_groups(client, keys_of(pairs), snapshot, settings))


def choose(known: Sequence[str], replicas: Iterable[Replica]) -> list[str]:
    """Return the groups to look at: all of a few, or those that the replicas say are worst."""
    if len(known) <= FEW_GROUPS:
        return list(known)
    reports = [(report, replica.at_ms) for replica in replicas for report in replica.groups.values()]
    at_ms = max((at_ms for _, at_ms in reports), default=0)
    first = [report.pair for report in worst((report for report, _ in reports), at_ms, len(reports))]
    there = set(known)
    chosen = [pair for pair in dict.fromkeys(first) if pair in there][:MOST_WORST]
    return sorted(chosen or known[:MOST_WORST])


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


async def _look_for_observers(client: Redis, observing: NamespaceKeys, now_ms: int) -> tuple[Replica, ...]:
    """Return live observers; none where our user may not look for them."""
    try:
        heartbeats: Any = await client.hgetall(observing.replicas)
    except ResponseError as error:
        if meaning_of(error) is Meaning.DENIED or is_nothing_there(error):
            return ()
        raise
    return tuple(one for one in parse_replicas(heartbeats.values()) if one.observe and one.is_live(now_ms))


def _readable(replies: Iterable[Any]) -> list[Any]:
    """Replace errors about missing keys and foreign types by None. Raises every other error."""
    readable = []
    for reply in replies:
        if isinstance(reply, Exception) and not is_nothing_there(reply):
            raise reply
        readable.append(None if isinstance(reply, Exception) else reply)
    return readable


async def _read_groups(
    client: Redis, groups: Sequence[GroupKeys], snapshot: Snapshot, settings: Mapping[str, WatchedGroup]
) -> tuple[GroupState, ...]:
    states = []
    for some in _in_one_pipeline(client, groups):
        pipe = client.pipeline(transaction=False)
        for keys in some:
            _ask_of_group(pipe, keys)
        replies = iter(_readable(await pipe.execute(raise_on_error=False)))
        found = [_state_of(keys, list(islice(replies, 8)), snapshot, settings.get(keys.pair)) for keys in some]
        states += await _with_sources(client, found, snapshot.now_ms)
    return tuple(states)


def _in_one_pipeline(client: Redis, groups: Sequence[GroupKeys]) -> Iterator[Sequence[GroupKeys]]:
    """Return the groups in parts that one node has."""
    if isinstance(client, RoutedClient):
        yield from ([keys] for keys in groups)
        return
    for first in range(0, len(groups), AT_A_TIME):
        yield groups[first : first + AT_A_TIME]


def _ask_of_group(pipe: Any, keys: GroupKeys) -> None:
    pipe.get(keys.lease)
    pipe.pttl(keys.lease)
    pipe.hgetall(keys.agreement)
    pipe.zcard(keys.schedule)
    pipe.zcount(keys.schedule, QUARANTINE_SCORE, "+inf")
    pipe.zcard(keys.stream_schedule)
    pipe.hlen(keys.quarantine)
    pipe.xlen(keys.dead)


def _state_of(
    keys: GroupKeys, replies: Sequence[Any], snapshot: Snapshot, configured: WatchedGroup | None
) -> GroupState:
    """Return all but the sources."""
    now_ms = snapshot.now_ms
    lease, left_ms, agreed, scheduled, quarantined, delayed, out, dead = replies
    holder = text(lease or b"")
    agreement = {text(name): text(value) for name, value in (agreed or {}).items()}
    serving, reporting = _who_serves(snapshot, keys.pair, holder)
    report = reporting.groups.get(keys.pair) if reporting else None
    visibility_ms = _first_number(
        agreement.get("visibility_ms"),
        report.visibility_ms if report else None,
        to_ms(configured.visibility_timeout) if configured else None,
    )
    max_deliveries = _first_number(
        agreement.get("max_deliveries"),
        report.max_deliveries if report else None,
        configured.max_deliveries if configured else None,
    )
    policy = agreement.get("policy") or (report.redelivery if report else "")
    return GroupState(
        stream=keys.stream,
        group=keys.group,
        mode=agreement.get("recovery", ""),
        policy=policy,
        visibility_ms=visibility_ms,
        max_deliveries=max_deliveries,
        mismatches=find_mismatches(agreement, None if reporting and reporting.observe else report, now_ms),
        paused=agreement.get("paused") == "1",
        recovery_wait=recovery_wait(agreement, now_ms),
        scheduled=(scheduled or 0) - (quarantined or 0) + (delayed or 0),
        quarantined=quarantined or 0,
        released=out or 0,
        dead_letters=dead or 0,
        recovered=_first_number(agreement.get("recovered")),
        stale_writes_refused=_first_number(agreement.get("refused")),
        lost_payload=_first_number(agreement.get("lost_payload")),
        lost_payload_ms=_first_number(agreement.get("lost_payload_ms")),
        lost_deliveries=_first_number(agreement.get("lost_delivery")),
        lost_deliveries_ms=_first_number(agreement.get("lost_delivery_ms")),
        groups_lost=_first_number(agreement.get("groups_lost")),
        groups_lost_ms=_first_number(agreement.get("groups_lost_ms")),
        holder=holder,
        lease_left_ms=max(0, left_ms or 0),
        token=_first_number(agreement.get("token")),
        served_by=serving.id if serving else "",
        report=report,
        reported_ms=reporting.at_ms if reporting else 0,
    )


def _who_serves(snapshot: Snapshot, pair: str, holder: str) -> tuple[Replica | None, Replica | None]:
    """Return the live replica that serves the group, and the one whose report counts."""
    reporting = next((replica for replica in snapshot.live if pair in replica.groups), None)
    if is_observers(snapshot.namespace):
        return reporting or next(iter(snapshot.watchers(pair)), None), reporting
    serving = snapshot.replica(replica_of(holder))
    return serving, serving if holder else reporting


def _first_number(*values: str | int | None) -> int:
    for value in values:
        number = whole_number(value.encode(), 0) if isinstance(value, str) else value
        if number:
            return number
    return 0


def find_mismatches(agreement: Mapping[str, str], report: GroupReport | None, now_ms: int) -> tuple[str, ...]:
    """Name the group settings that differ from those of the holder or of live workers.

    An observer (no ``report``) writes nothing, so it may have other values.
    """
    found = _complaints(agreement, now_ms)
    if report is not None:
        holds = {
            "recovery": "reaper",
            "policy": report.redelivery,
            "visibility_ms": str(report.visibility_ms),
            "max_deliveries": str(report.max_deliveries),
        }
        found += [
            f"{name} is {agreement[name]} in the group settings, and {value} in those of the holder. Give all "
            "processes the same value"
            for name, value in holds.items()
            if agreement.get(name) and agreement[name] != value
        ]
    return tuple(found)


def _complaints(agreement: Mapping[str, str], now_ms: int) -> list[str]:
    """Return in what the settings of live workers differ; the same of many once."""
    workers_of: dict[str, list[str]] = {}
    for complaint in complaints(agreement, now_ms):
        worker, _, differs = complaint.partition(": ")
        if differs:
            workers_of.setdefault(differs, []).append(worker)
    return [
        f"{min(workers)}{f' and {len(workers) - 1} more' if len(workers) > 1 else ''}: {differs}"
        for differs, workers in sorted(workers_of.items())
    ]


async def _with_sources(client: Redis, states: Sequence[GroupState], now_ms: int) -> list[GroupState]:
    """Add the stream and the retry stream to groups of one pipeline."""
    pipe = client.pipeline(transaction=False)
    for state in states:
        for key in (state.keys.stream, state.keys.retry):
            pipe.xlen(key)
            pipe.xinfo_groups(key)
            pipe.xinfo_consumers(key, state.group)
            pipe.execute_command("XPENDING", key, state.group)
            pipe.execute_command("XPENDING", key, state.group, "-", "+", LOOKED_AT)
            if state.policy == Redelivery.IN_PLACE:
                pipe.execute_command("XPENDING", key, state.group, "IDLE", CLAIM_READY_MS, "-", "+", MOST_COUNTED)
    replies = iter(await pipe.execute(raise_on_error=False))
    found = []
    for state in states:
        number = 6 if state.policy == Redelivery.IN_PLACE else 5
        main = await _read_source(client, state.keys.stream, state, list(islice(replies, number)), now_ms)
        retry = await _read_source(client, state.keys.retry, state, list(islice(replies, number)), now_ms)
        found.append(replace(state, main=main, retry=retry))
    return found


async def _read_source(client: Redis, key: str, state: GroupState, replies: Sequence[Any], now_ms: int) -> SourceState:
    group, visibility_ms = state.group, state.visibility_ms
    entries, groups, consumers, summary, oldest, *given_back = _readable(replies)
    readers = [one for one in consumers or () if text(one["name"]) not in OUR_CONSUMERS]
    pending = int(summary[0]) if summary else 0
    by_consumers = sum(int(held) for _, held in summary[3] or ()) if summary else 0
    made_old = sum(bool(row[1]) for rows in given_back for row in rows or ())
    ready_there = made_old + pending - by_consumers  # no consumer holds what was given back by XNACK
    delivered = [row for row in oldest or () if row[1] and 0 <= row[2] < CLAIM_READY_MS]
    info = next((one for one in groups or () if text(one["name"]) == group), None)
    if info is None:
        return SourceState(entries=entries or 0, is_foreign=is_wrong_type(replies[0]))
    ready, first = await _count_ready(client, key, info)
    return SourceState(
        exists=True,
        entries=entries or 0,
        ready=replace(ready, number=ready.number + ready_there),
        oldest_ready_ms=max(0, now_ms - entry_ms(first)) if first else None,
        pending=by_consumers - made_old,
        oldest_pending_ms=int(delivered[0][2]) if delivered else None,
        is_exhausted=info["last-delivered-id"] == LAST_ENTRY_ID,
        consumers=len(readers),
        last_read_ms=min((int(one["idle"]) for one in readers), default=None),
        silent=tuple(
            SilentConsumer(text(one["name"]), int(one["pending"]), int(one["idle"]))
            for one in readers
            if one["pending"] and visibility_ms and one["idle"] > visibility_ms
        ),
    )


async def _count_ready(client: Redis, key: str, info: Mapping[str, Any]) -> tuple[Count, bytes]:
    """Return how many entries wait behind the last delivered one, and the first of them (empty = none).

    The server's own count (``lag``) is not used: on 7.0 it is wrong once an unread entry was deleted.
    """
    last, script = info["last-delivered-id"], load_script("reaper", "count_after")
    number, first = 0, b""
    for _ in range(COUNT_CALLS):
        counted, last, complete, oldest = await script.run(client, [key], [last, MOST_COUNTED - number, CALL_BYTES])
        number, first = number + counted, first or oldest
        if complete or number >= MOST_COUNTED:
            return Count(number, at_least=not complete), first
    return Count(number, at_least=True), first
