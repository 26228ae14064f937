"""ACL rules with the least commands and keys that each role needs.

Redis checks a user's rights for every key in a script call, used or not, and for every command of the script. A test
compares this table with the headers and the text of each role's scripts (``tests/operator/test_acl_reach.py``).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from reaper.settings import WILDCARD, observers_of, redis_pattern
from workers.protocol.keys import GroupKeys, NamespaceKeys, namespace_keys, stream_keys
from workers.protocol.messages import RecoveryMode


class Role(StrEnum):
    """The role of a client of Redis."""

    PRODUCER = "producer"
    WORKER = "worker"
    REAPER = "reaper"
    READ_ONLY = "read-only"
    """`reaper status`, `explain`, `doctor`, `dead-letters list|show`, `watch list`, and the status page."""
    OPERATOR = "operator"
    """The read-only commands, and `groups`, `watch`, `drain` and `dead-letters redrive|delete`."""


def roles_in(mode: RecoveryMode) -> list[Role]:
    """Return the roles of an installation with this recovery mode."""
    return [role for role in Role if mode is RecoveryMode.REAPER or role is not Role.REAPER]


# --- the table ----------------------------------------------------------------------------------------------

_EVERY_ROLE = "client|setname cluster|slots eval evalsha info ping select time"
"""Commands of all connections. The address can ask for a client name, a cluster or another database."""
_READS = (
    "exists get hget hgetall hlen hmget hscan pttl type xinfo|consumers xinfo|groups xinfo|stream xlen xpending xrange "
    "xrevrange zcard zcount zrange zscore"
)
_WORKER = (
    "exists hdel hget hincrby hmget hset hsetnx publish xack xadd xclaim xdel xgroup|create xgroup|createconsumer "
    "xgroup|delconsumer xinfo|consumers xinfo|groups xinfo|stream xpending xrange xreadgroup zadd zrange"
)
_COMMANDS = {
    Role.PRODUCER: "pexpire pttl publish xadd xlen zadd zcard zrange zrangebyscore zrem zscore",
    Role.WORKER: _WORKER,
    Role.REAPER: f"{_READS} {_WORKER} del hexists pexpire set subscribe unsubscribe xread "
    "zrangebyscore zrem zremrangebyscore",
    Role.READ_ONLY: _READS,
    Role.OPERATOR: f"{_READS} del hdel hset hsetnx unlink xack xadd xdel zadd zrem",
}
_EMBEDDED = "get hgetall hlen pttl subscribe xlen zcard zcount zrangebyscore zrem"
"""Further commands of embedded workers, because they recover."""
_NEWER = {Role.WORKER: ("+xnack",), Role.REAPER: ("+xnack",)}
"""Other servers reject a rule with a command that they do not know, and scripts do without it."""
_LOOKS_AT_ALL = (Role.REAPER, Role.READ_ONLY, Role.OPERATOR)
"""Roles that use the keys of the namespace, and keys of the stream that belong to no group."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rights of one user."""

    role: Role
    commands: tuple[str, ...]
    """Lower case, ``command`` or ``command|subcommand``, sorted."""
    keys: tuple[str, ...]
    """Patterns of ACL rules. Wildcards in names are escaped."""
    channels: tuple[str, ...]
    """Patterns of Pub/Sub channels."""
    newer: tuple[str, ...] = ()
    """Further rules that only Redis 8.8 and later accept."""

    @property
    def words(self) -> list[str]:
        """The rules as ``ACL SETUSER`` takes them."""
        keys, channels = (f"~{key}" for key in self.keys), (f"&{channel}" for channel in self.channels)
        return ["resetkeys", "resetchannels", "-@all", *keys, *channels, *(f"+{command}" for command in self.commands)]


def acl_line(user: str, words: Iterable[str]) -> str:
    """Return the whole command for redis-cli."""
    return " ".join(map(_quote, ("ACL", "SETUSER", user, *words)))


def rules_of(role: Role, mode: RecoveryMode, groups: Sequence[GroupKeys], namespaces: Sequence[NamespaceKeys]) -> Rules:
    """Return the rules of a role for ``groups``. In embedded ``mode``, workers need more, because they recover."""
    recovers = role is Role.WORKER and mode is RecoveryMode.EMBEDDED
    commands = {*_EVERY_ROLE.split(), *_COMMANDS[role].split()}
    commands.update(_EMBEDDED.split() if recovers else ())
    if role is Role.REAPER and any(WILDCARD in group.stream for group in groups):
        commands.add("scan")
    keys = [key for group in groups for key in _keys_in(role, group, recovers=recovers)]
    keys += [key for namespace in namespaces if role in _LOOKS_AT_ALL for key in _keys_of_namespace(namespace)]
    channels = [channel for group in groups for channel in _channels_in(role, group, recovers=recovers)]
    return Rules(
        role,
        commands=tuple(sorted(commands)),
        keys=tuple(dict.fromkeys(keys)),
        channels=tuple(dict.fromkeys(channels)),
        newer=_NEWER.get(role, ()),
    )


def _keys_in(role: Role, group: GroupKeys, *, recovers: bool) -> Iterable[str]:
    if role is Role.PRODUCER:
        of_stream = stream_keys(group.stream)
        yield from map(_escape, (of_stream.stream, of_stream.schedule, of_stream.enqueued))
        return
    spared = {"group"} if recovers or role in _LOOKS_AT_ALL else {"group", "stream_schedule"}
    yield from (_escape(getattr(group, one.name)) for one in fields(group) if one.name not in spared)


def _keys_of_namespace(namespace: NamespaceKeys) -> Iterable[str]:
    yield from (_escape(getattr(namespace, one.name)) for one in fields(namespace) if one.name != "namespace")
    observing = namespace_keys(observers_of(namespace.namespace))  # `reaper status` reads their registrations, too
    yield from map(_escape, (observing.replicas, observing.groups, observing.drained))


def _channels_in(role: Role, group: GroupKeys, *, recovers: bool) -> Iterable[str]:
    """Yield the channels of notices, which have the names of keys (a job falls due sooner, a lease was handed over)."""
    if role in (Role.PRODUCER, Role.REAPER) or recovers:
        yield _escape(group.stream_schedule)
    if role in (Role.WORKER, Role.REAPER):
        yield _escape(group.schedule)
    if role is Role.REAPER:
        yield _escape(group.lease)


def _escape(name: str) -> str:
    """Escape wildcards, but for those of a pattern. A space cannot be written, so any character may be in its place."""
    return re.sub(r"\s", "?", redis_pattern(name))


def _quote(word: str) -> str:
    if re.fullmatch(r"[^\s\"'\\]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
