"""Reads the facts that ``reaper doctor`` judges. A fact that the Redis user is not allowed to read is None."""

import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.layout import layout_refusal
from reaper.operations.acl import Role, rules_of
from reaper.operations.foreign_keys import foreign_keys
from reaper.operations.groups import keys_of
from reaper.operations.snapshot import take_snapshot
from reaper.operations.state import Snapshot
from reaper.operations.streams import events_in, newest_first
from reaper.reasons import MOST_WORST
from reaper.settings import ReaperSettings, WatchedGroup
from workers.protocol.calls.membership import DEFAULT_REDELIVERY
from workers.protocol.events import EventName
from workers.protocol.keys import GroupKeys
from workers.protocol.meaning import Meaning, is_contact_error, meaning_of
from workers.protocol.messages import RecoveryMode, entry_ms, entry_order, pair_up, text
from workers.protocol.server import knows_claim
from workers.runtime.clock import server_ms

EVENTS_READ, EVENTS_OF_GROUPS = 5_000, 10
"""Journal entries that run times are taken from, of each of so many groups. Of more groups, fewer are read."""
Look = TypeVar("Look")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Facts of the server."""

    release: str
    info: dict[str, Any]
    config: dict[str, str] | None
    """None if CONFIG GET is not allowed."""
    knows_claim: bool | None
    round_trip_ms: float
    ahead_ms: int
    """The server's clock minus ours."""
    user: str | None
    missing_rights: tuple[str, ...] | None
    """Commands that the user lacks for the work of a reaper. None if unknown."""

    def configured(self, name: str, default: str) -> str:
        """Return a value of the server's configuration; ``default`` where it cannot be asked."""
        return (self.config or {}).get(name, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """Facts of one group beyond its `GroupState`."""

    keys: GroupKeys
    seen: bool = True
    """False if the user may not read it. Then all other facts are unknown."""
    layout_refusal: str = ""
    """Why the agreed policy cannot work with the stream; '' = it can."""
    trimmed_pending: int = 0
    """Pending entries whose payload is gone (at least; the oldest ones were looked at)."""
    trimmed_unread: bool = False
    """Entries were deleted that the group had not been given yet."""
    ahead_ms: int = 0
    """How far the stream's last ID lies ahead of the server's clock."""
    run_times_ms: Sequence[int] = ()
    """Observed run times, and how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Everything that is judged."""

    settings: ReaperSettings
    """The settings of the operator."""
    wished: Mapping[str, WatchedGroup] = field(default_factory=dict)
    """What they say of each group that they name."""
    server: ServerFacts
    snapshot: Snapshot | None
    """None if the user may not read the registrations and group settings."""
    foreign: str | None = ""
    """A phrase about keys with a foreign type, or ''. None if unknown."""
    groups: Sequence[GroupFacts] = field(default_factory=tuple)


async def examine(client: Redis, settings: ReaperSettings, release: str) -> Examination:
    """Read all facts. Raises redis-py's errors if there is no contact."""
    wished = {f"{group.stream}/{group.group}": group for group in settings.watched}
    looked = take_snapshot(client, settings.namespace_keys, tuple(wished.values()), release)
    snapshot = await _seen(looked)
    pairs = [group.keys for group in snapshot.groups] if snapshot else keys_of(list(wished)[:MOST_WORST])
    patterns = [group.keys for group in settings.patterns]
    server = await _examine_server(client, settings, release, [*pairs, *patterns])
    foreign = await _seen(foreign_keys(client, [settings.namespace_keys, *pairs]))
    events = EVENTS_READ // max(1, len(pairs) // EVENTS_OF_GROUPS)
    groups = [
        await _seen(_examine_group(client, keys, snapshot, wished.get(keys.pair), events))
        or GroupFacts(keys=keys, seen=False)
        for keys in pairs
    ]
    return Examination(
        settings=settings, wished=wished, server=server, snapshot=snapshot, foreign=foreign, groups=groups
    )


async def _seen(look: Awaitable[Look]) -> Look | None:
    """Return the result of ``look``, or None if the user lacks the permission. Raises every other error."""
    try:
        return await look
    except RedisError as error:
        if meaning_of(error) is Meaning.DENIED:
            return None
        raise


async def _allowed(client: Redis, *words: Any) -> Any:
    """Run a command. Return None if Redis rejects it or does not know it. Raises errors of lost contact."""
    try:
        return await client.execute_command(*words)
    except RedisError as error:
        if is_contact_error(error):
            raise
        return None


# --- the server ---------------------------------------------------------------------------------------------


async def _examine_server(
    client: Redis, settings: ReaperSettings, release: str, pairs: Sequence[GroupKeys]
) -> ServerFacts:
    info: Any = await client.info()
    config: Any = await _allowed(client, "CONFIG", "GET", "*")
    began = time.perf_counter()
    at_ms = await server_ms(client)
    round_trip_ms = (time.perf_counter() - began) * 1000
    ahead_ms = at_ms - round(time.time() * 1000)
    user: Any = await _allowed(client, "ACL", "WHOAMI")
    claim = await knows_claim(client, f"{settings.namespace_keys.live}:absent")
    rules = rules_of(Role.REAPER, RecoveryMode.REAPER, pairs, [settings.namespace_keys], url=settings.redis_url)
    missing = await _missing_rights(client, text(user), rules.commands, pairs[0]) if user and pairs else None
    return ServerFacts(
        release=release,
        info=dict(info),
        config=None if config is None else {text(name): text(value) for name, value in pair_up(config)},
        knows_claim=claim,
        round_trip_ms=round_trip_ms,
        ahead_ms=ahead_ms,
        user=text(user) if user else None,
        missing_rights=missing,
    )


async def _missing_rights(client: Redis, user: str, commands: Sequence[str], keys: GroupKeys) -> tuple[str, ...] | None:
    """Return what the user may not run of ``commands``, by ACL DRYRUN (Redis 7)."""
    missing = []
    for command in commands:
        answer = await _allowed(client, "ACL", "DRYRUN", user, *sample_call(command, keys))
        if answer is None:
            return None
        if text(answer) != "OK":
            missing.append(command)
    return tuple(missing)


_SAMPLES: dict[str, Sequence[str]] = {
    "ping": (), "info": (), "time": (), "eval": ("return 1", "1", "KEY"), "evalsha": ("0" * 40, "1", "KEY"),
    "cluster|slots": (), "xread": ("STREAMS", "KEY", "0"), "subscribe": ("CHANNEL",), "publish": ("CHANNEL", "1"),
    "xinfo|consumers": ("KEY", "g"), "xnack": ("KEY", "g", "FAIL", "IDS", "1", "0-0"),
    "xgroup|create": ("KEY", "g", "0"), "xgroup|createconsumer": ("KEY", "g", "c"),
    "xgroup|delconsumer": ("KEY", "g", "c"), "xreadgroup": ("GROUP", "g", "c", "STREAMS", "KEY", ">"),
}  # fmt: skip
_ARGUMENTS = {
    "set": 1, "pexpire": 1, "hget": 1, "hexists": 1, "hdel": 1, "hmget": 1, "zrem": 1, "xdel": 1, "xpending": 1,
    "zscore": 1, "hscan": 1, "hsetnx": 2,
    "hset": 2, "hincrby": 2, "zadd": 2, "zrange": 2, "zrangebyscore": 2, "zremrangebyscore": 2, "zcount": 2, "xack": 2,
    "xrange": 2, "xrevrange": 2, "xadd": 3, "xclaim": 4,
}  # fmt: skip


def sample_call(command: str, keys: GroupKeys) -> list[str]:
    """Return a call of ``command`` on the stream with as many words as Redis wants before it judges rights."""
    name = [word.upper() for word in command.split("|")]
    words = _SAMPLES.get(command)
    if words is None:
        words = ["KEY", *["1"] * _ARGUMENTS.get(command, 0)]
    return name + [{"KEY": keys.stream, "CHANNEL": keys.schedule}.get(word, word) for word in words]


# --- groups -------------------------------------------------------------------------------------------------


async def _examine_group(
    client: Redis, keys: GroupKeys, snapshot: Snapshot | None, wished: WatchedGroup | None, events: int
) -> GroupFacts:
    if await client.type(keys.stream) != b"stream":
        return GroupFacts(keys=keys, run_times_ms=await run_times_ms(client, keys, events))
    state = snapshot.group(keys.pair) if snapshot else None
    policy = state.policy if state and state.policy else wished.redelivery if wished else DEFAULT_REDELIVERY
    info: Any = await client.xinfo_stream(keys.stream)
    groups: Any = await client.xinfo_groups(keys.stream)
    own = next((one for one in groups if text(one["name"]) == keys.group), None)
    return GroupFacts(
        keys=keys,
        layout_refusal=await layout_refusal(client, keys.stream, policy),
        trimmed_pending=await _trimmed_pending(client, keys) if own else 0,
        trimmed_unread=bool(own) and _lost_unread(info, own),
        ahead_ms=entry_ms(info["last-generated-id"]) - await server_ms(client),
        run_times_ms=await run_times_ms(client, keys, events),
    )


def _lost_unread(info: Any, group: Any) -> bool:
    """Tell whether the newest deleted entry lies behind what the group was given (Redis 7 remembers it)."""
    deleted = info.get("max-deleted-entry-id")
    return bool(deleted) and entry_order(deleted) > entry_order(group["last-delivered-id"])


async def _trimmed_pending(client: Redis, keys: GroupKeys, most: int = 100) -> int:
    """Count pending entries that the stream does not hold any more, among the oldest: trimming takes those first."""
    rows: Any = await client.execute_command("XPENDING", keys.stream, keys.group, "-", "+", most)
    pipe = client.pipeline(transaction=False)
    for row in rows:
        pipe.xrange(keys.stream, row[0], row[0])
    return sum(not entries for entries in await pipe.execute())


async def run_times_ms(client: Redis, keys: GroupKeys, most: int = EVENTS_READ) -> list[int]:
    """Return how long the latest jobs ran in ms, newest first, as workers journaled it."""
    found: list[int] = []
    read = 0
    async for event in events_in(newest_first(client, keys.journal, most)):
        read += 1
        if read > most:  # an entry may tell of many
            break
        run_ms = event.number("run_ms")
        if event.event == EventName.ACKED and event.data.get("group") == keys.group and run_ms is not None:
            found.append(run_ms)
    return found
