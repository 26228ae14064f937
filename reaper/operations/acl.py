"""Least-privilege ACL rules, derived from the scripts themselves, so that they always match the code.

Redis checks a user's rights for every key in a script call, used or not, and for every command of the script. The keys
are read from the script's header. A test compares it with the script's body and calls. The commands are read from the
script's text, with the functions of shared parts that it uses.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache

from redis.connection import parse_url

from reaper.settings import WILDCARD, observers_of, redis_pattern
from workers.protocol.address import Topology
from workers.protocol.connection import read_address
from workers.protocol.keys import GroupKeys, NamespaceKeys, StreamKeys, group_keys, namespace_keys, stream_keys
from workers.protocol.messages import RecoveryMode
from workers.protocol.scripts import COMMENT, put_together, script_text


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
    """Return who connects where recovery is done that way."""
    return [role for role in Role if mode is RecoveryMode.REAPER or role is not Role.REAPER]


# --- keys, as the headers of scripts spell them ---------------------------------------------------------------


def _samples(keys: GroupKeys | StreamKeys | NamespaceKeys) -> dict[str, str]:
    """Return the names of the keys' fields by how a header spells them."""
    return {getattr(keys, one.name): one.name for one in fields(keys) if one.name not in ("group", "namespace")}


_OF_STREAM = _samples(stream_keys("orders"))
_OF_GROUP = _samples(group_keys("orders", "billing"))
_OF_NAMESPACE = _samples(namespace_keys("reaper"))
OTHER_AGREEMENTS = "{orders}:group:*"
"""Agreements of all groups of the stream, also of those that nobody has named."""
_EVERYTHING = frozenset({*_OF_GROUP, *_OF_NAMESPACE})
"""What people look at, and replicas."""
_SCHEDULES = frozenset({"{orders}:scheduled", "{orders}:scheduled:billing"})
"""A notice about a job that falls due sooner is published under the name of its schedule."""
_LEASES = frozenset({"{orders}:lease:billing"})
"""A notice about a lease that was handed over is published under its name, among replicas."""
_NOTICES = frozenset({"publish", "subscribe"})

_DESCRIBED_KEY = re.compile(r"^-- KEYS\[\d+…?\](.*)$", re.MULTILINE)


_AS_IN_KEYS = re.compile(r"^-- KEYS\[1\] to KEYS\[8\] as in keys.lua.*$", re.MULTILINE)


def _shared_keys() -> str:
    """Return the header lines for the keys that all scripts that move jobs take."""
    lines = script_text("workers.protocol", "keys").splitlines()
    return "\n".join(line for line in lines if line.startswith("-- KEYS["))


@cache
def keys_in_order(package: str, name: str) -> tuple[frozenset[str], ...]:
    """Return the possible keys for each place of a script's KEYS, as its header spells them.

    Raises ValueError for a key that `workers.protocol.keys` does not have, because it could get no rights.
    """
    known = {*_OF_STREAM, *_OF_GROUP, *_OF_NAMESPACE, OTHER_AGREEMENTS}
    places = []
    text = _AS_IN_KEYS.sub(lambda _: _shared_keys(), script_text(package, name))
    for line in _DESCRIBED_KEY.findall(text):
        places.append(frozenset(known.intersection(re.findall(r"[\w{}:*]+", line))))
        if not places[-1]:
            raise ValueError(f"{name}.lua: what key is this? {line.strip()}")
    return tuple(places)


def keys_of(package: str, name: str) -> frozenset[str]:
    """Return the keys that calls of a script name, as its header spells them."""
    return frozenset().union(*keys_in_order(package, name))


# --- the scripts of a role, and its other commands

_PROTOCOL, _REAPER = "workers.protocol", "reaper"
_WORKER_SCRIPTS = [
    (_PROTOCOL, name)
    for name in (
        "join_group", "adopt", "ack", "settle", "extend", "hold", "return_taken", "delete_consumer",
    )
]  # fmt: skip
_EMBEDDED_SCRIPTS = [(_PROTOCOL, name) for name in ("recover", "move_due", "keep_house", "look_at_group")]
_REAPER_SCRIPTS = [
    *((_PROTOCOL, name) for name in ("recover", "move_due", "keep_house", "look_at_group")),
    *((_REAPER, name) for name in ("register", "lease_take", "tick", "lease_hand", "report_lost", "watch")),
]  # fmt: skip
_READ_SCRIPTS = [(_REAPER, name) for name in ("count_after", "find_scheduled", "inspect_layout")]
_OPERATOR_SCRIPTS = [
    (_REAPER, name) for name in ("pause_group", "forget_group", "redrive_dead_letters", "requeue", "watch")
]  # fmt: skip

_CONNECTION = frozenset({"ping", "info", "time"})
_SCRIPTING = frozenset({"eval", "evalsha"})
_READS = frozenset(
    {
        "exists", "type", "get", "pttl", "hgetall", "hscan", "hget", "hmget", "hlen", "zcard", "zcount", "zscore",
        "zrange", "xlen", "xrange", "xrevrange", "xpending", "xinfo|stream", "xinfo|groups", "xinfo|consumers",
    }
)  # fmt: skip
_LISTENS = frozenset({"subscribe"})
_DIRECT: dict[Role, frozenset[str]] = {
    Role.PRODUCER: frozenset({"xadd", "wait"}),
    Role.WORKER: frozenset({"xreadgroup", "hmget", "xinfo|consumers"}),
    Role.REAPER: _READS | _LISTENS | {"xread", "xreadgroup", "xadd", "hdel", "zrem"},  # xreadgroup: to ask for CLAIM
    Role.READ_ONLY: _READS,
    Role.OPERATOR: _READS | {"xdel", "hdel", "zadd", "zrem"},
}
_DIRECT_KEYS: dict[Role, frozenset[str]] = {
    Role.PRODUCER: frozenset({"orders"}),
    Role.WORKER: frozenset({"orders", "{orders}:retry:billing"}),
    Role.REAPER: _EVERYTHING,
    Role.READ_ONLY: _EVERYTHING,
    Role.OPERATOR: _EVERYTHING,
}
"""Keys of commands that are no scripts, as the headers of scripts spell keys."""
NEWER = frozenset({"xnack"})
"""Commands that only some servers know (Redis 8.8): others reject a rule that names one, and scripts do without."""
_ONLY_EMBEDDED = {"join_group": frozenset({"del"})}
"""What a script runs for embedded workers alone: they remove a lease of the reaper."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rights of one user."""

    role: Role
    commands: tuple[str, ...]
    """Lower case, ``command`` or ``command|subcommand``, sorted."""
    keys: tuple[str, ...]
    """Patterns, as ACL rules take them: wildcards in names are escaped."""
    channels: tuple[str, ...]
    """The same for Pub/Sub."""
    newer: tuple[str, ...] = ()
    """What is to be allowed besides where the server knows it (`NEWER`)."""

    def words(self) -> list[str]:
        """Return the rules as ``ACL SETUSER`` takes them."""
        return [
            "resetkeys",
            "resetchannels",
            "-@all",
            *(f"~{key}" for key in self.keys),
            *(f"&{channel}" for channel in self.channels),
            *(f"+{command}" for command in self.commands),
        ]

    def line(self, user: str) -> str:
        """Return the whole command for redis-cli, without the password."""
        return _line("ACL", "SETUSER", user, "on", ">PASSWORD", *self.words())

    def newer_line(self, user: str) -> str:
        """Return the command that adds the commands of some servers only, or ''."""
        return _line("ACL", "SETUSER", user, *self.newer_words()) if self.newer else ""

    def newer_words(self) -> list[str]:
        """Return the rules that only some servers take."""
        return [f"+{command}" for command in self.newer]


def rules_of(
    role: Role,
    mode: RecoveryMode,
    pairs: Sequence[GroupKeys],
    namespaces: Sequence[NamespaceKeys],
    *,
    stream: str = "",
    url: str = "",
) -> Rules:
    """Return the rules of a role for ``pairs``.

    ``mode`` matters to workers, because some recover, too. ``stream`` is for producers, which know no groups. ``url``
    is the address, which decides how a connection begins.
    """
    commands, keys = _CONNECTION | _DIRECT[role], _DIRECT_KEYS[role]
    commands |= _to_connect(url)
    if role is Role.WORKER and mode is RecoveryMode.EMBEDDED:
        commands |= _LISTENS
    if role is Role.REAPER and any(WILDCARD in pair.stream for pair in pairs):
        commands |= {"scan"}
    scripts = scripts_of(role, mode)
    for package, name in scripts:
        found = commands_of(package, name)
        commands |= found if mode is RecoveryMode.EMBEDDED else found - _ONLY_EMBEDDED.get(name, frozenset())
        keys |= keys_of(package, name)
    if scripts:
        commands |= _SCRIPTING
    streams = dict.fromkeys([*(keys.stream for keys in pairs), *([stream] if stream else [])])
    channels = keys & (_SCHEDULES | _LEASES if role is Role.REAPER else _SCHEDULES)
    return Rules(
        role,
        tuple(sorted(commands - NEWER)),
        tuple(dict.fromkeys([*_spelt(keys, pairs, namespaces, streams), *_of_observers(role, namespaces)])),
        tuple(dict.fromkeys(_spelt(channels if commands & _NOTICES else (), pairs, (), streams))),
        tuple(sorted(commands & NEWER)),
    )


def _to_connect(url: str) -> frozenset[str]:
    """Return the commands that connections to an address run besides those that all run."""
    if not url:
        return frozenset()
    address = read_address(url)
    options = parse_url(address.node)
    wanted = {
        "cluster|slots": address.topology is Topology.CLUSTER,  # nodes are asked who has what
        "select": options.get("db"),  # another database than 0
        "client|setname": options.get("client_name"),
    }
    return frozenset(command for command, is_run in wanted.items() if is_run)


def scripts_of(role: Role, mode: RecoveryMode) -> list[tuple[str, str]]:
    """Return package and name of the scripts that a role runs."""
    embedded = _EMBEDDED_SCRIPTS if mode is RecoveryMode.EMBEDDED else []
    return {
        Role.PRODUCER: [(_PROTOCOL, "enqueue")],
        Role.WORKER: _WORKER_SCRIPTS + embedded,
        Role.REAPER: _REAPER_SCRIPTS + _READ_SCRIPTS,
        Role.READ_ONLY: _READ_SCRIPTS,
        Role.OPERATOR: _READ_SCRIPTS + _OPERATOR_SCRIPTS,
    }[role]


def _spelt(
    keys: Iterable[str], pairs: Iterable[GroupKeys], namespaces: Iterable[NamespaceKeys], streams: Iterable[str]
) -> Iterable[str]:
    """Return patterns for ``keys``, which are spelt as in headers, for these pairs, namespaces and streams.

    A producer's streams have no group, so the keys are those of the stream alone.
    """
    wanted = set(keys)
    of_stream = [field for key, field in _OF_STREAM.items() if key in wanted]
    of_group = [field for key, field in _OF_GROUP.items() if key in wanted and key not in _OF_STREAM]
    of_namespace = [field for key, field in _OF_NAMESPACE.items() if key in wanted]
    for name in streams:
        own = stream_keys(name)
        yield from (_escape(getattr(own, field)) for field in of_stream)
    for pair in pairs:
        yield from (_escape(getattr(pair, field)) for field in of_group)
        if OTHER_AGREEMENTS in wanted:
            yield _escape(pair.agreement.removesuffix(pair.group)) + "*"
    for namespace in namespaces:
        yield from (_escape(getattr(namespace, field)) for field in of_namespace)


def _of_observers(role: Role, namespaces: Iterable[NamespaceKeys]) -> Iterable[str]:
    """Return patterns for the registrations of observers, because `reaper status` reads them, too."""
    if role in (Role.REAPER, Role.READ_ONLY, Role.OPERATOR):
        for namespace in namespaces:
            observing = namespace_keys(observers_of(namespace.namespace))
            yield from map(_escape, (observing.replicas, observing.groups))


def _escape(name: str) -> str:
    """Escape wildcards, but for those of a pattern. A space cannot be written, so any character may be in its place."""
    return re.sub(r"\s", "?", redis_pattern(name))


def _line(*words: str) -> str:
    return " ".join(_quote(word) for word in words)


def _quote(word: str) -> str:
    if re.fullmatch(r"[^\s\"'\\]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


# --- the commands of a script

_CALL = re.compile(r"(?:redis\.p?call|\btry)\((?:redis\.call, )?'([A-Z]+)'(?:,\s*'([A-Z]+)')?")
_WITH_SUBCOMMANDS = frozenset({"xinfo", "xgroup"})


@cache
def commands_of(package: str, name: str) -> frozenset[str]:
    """Return the commands that a script may run, lower case."""
    source = put_together(script_text(package, name))
    return frozenset(_commands_in(COMMENT.sub("", source)))  # a comment is not run


def _commands_in(text: str) -> Iterable[str]:
    for command, second in _CALL.findall(text):
        name = command.lower()
        yield f"{name}|{second.lower()}" if name in _WITH_SUBCOMMANDS and second else name
