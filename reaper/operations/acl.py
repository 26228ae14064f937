"""Least-privilege ACL rules, derived from the scripts themselves, so that they cannot drift from what is run.

Redis checks the rights of its user for every command that a script runs. What a script may run is read from its text:
its own body, and those functions of the shared parts that it reaches.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files

from workers.protocol.keys import GroupKeys, NamespaceKeys, stream_keys
from workers.protocol.messages import RecoveryMode


class Role(StrEnum):
    """Who connects to Redis."""

    PRODUCER = "producer"
    WORKER = "worker"
    REAPER = "reaper"
    READ_ONLY = "read-only"
    """`reaper status`, `explain`, `top`, `doctor`, `dead-letters list|show`, and the status page without actions."""
    OPERATOR = "operator"
    """What is read-only, and `pause`, `resume`, `forget`, `leader step-down`, `dead-letters redrive|purge`."""


def roles_in(mode: RecoveryMode) -> list[Role]:
    """Return who connects where recovery is done that way."""
    return [role for role in Role if mode is RecoveryMode.REAPER or role is not Role.REAPER]


_PROTOCOL, _REAPER = "workers.protocol", "reaper"
_WORKER_SCRIPTS = [
    (_PROTOCOL, name)
    for name in ("join_group", "adopt", "settle", "extend_visibility", "hold_again", "delete_consumer", "write_events")
]
_EMBEDDED_SCRIPTS = [
    (_PROTOCOL, name) for name in ("autoclaim", "move_due", "release_suspects", "keep_house", "look_at_group")
]
_REAPER_SCRIPTS = [
    *((_PROTOCOL, name) for name in ("move_due", "release_suspects", "keep_house", "look_at_group")),
    *(
        (_REAPER, name)
        for name in (
            "acquire_lease", "renew_lease", "release_lease", "next_token", "raise_token", "register_replica",
            "take_over_group", "recover_entries", "inspect_layout", "tell_scan", "restore_group",
        )
    ),
]  # fmt: skip
_READ_SCRIPTS = [(_REAPER, name) for name in ("count_after", "find_scheduled", "inspect_layout")]
_OPERATOR_SCRIPTS = [
    (_REAPER, name) for name in ("pause_group", "forget_group", "redrive_dead_letters", "step_down")
]  # fmt: skip

_CONNECTION = frozenset({"ping", "info", "time"})
_SCRIPTING = frozenset({"eval", "evalsha"})
_READS = frozenset(
    {
        "exists", "type", "get", "pttl", "hgetall", "hget", "hlen", "zcard", "zcount", "zrange", "xlen", "xrange",
        "xrevrange", "xpending", "xinfo|stream", "xinfo|groups", "xinfo|consumers",
    }
)  # fmt: skip
_LISTENS = frozenset({"subscribe"})
_DIRECT: dict[Role, frozenset[str]] = {
    Role.PRODUCER: frozenset({"xadd"}),
    Role.WORKER: frozenset({"xreadgroup", "client|id", "client|unblock", "xinfo|consumers", "script|load"}),
    Role.REAPER: _READS | _LISTENS | {"xread", "xadd", "hdel"},
    Role.READ_ONLY: _READS,
    Role.OPERATOR: _READS | {"xdel"},
}
_ONLY_EMBEDDED = {"join_group": frozenset({"del"})}
"""What a script runs for embedded workers alone: they remove the fence of a leader that is gone."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What one user may do."""

    role: Role
    commands: tuple[str, ...]
    """Lower case, ``command`` or ``command|subcommand``, sorted."""
    keys: tuple[str, ...]
    channels: tuple[str, ...]

    def words(self) -> list[str]:
        """Return the rules as ``ACL SETUSER`` takes them."""
        return [
            "resetkeys",
            "resetchannels",
            "-@all",
            *(f"~{_escape(key)}" for key in self.keys),
            *(f"&{_escape(channel)}" for channel in self.channels),
            *(f"+{command}" for command in self.commands),
        ]

    def line(self, user: str) -> str:
        """Return the whole command, fit for redis-cli; the password is to be put in."""
        words = ["ACL", "SETUSER", user, "on", ">PASSWORD", *self.words()]
        return " ".join(_quote(word) for word in words)


def rules_of(
    role: Role, mode: RecoveryMode, pairs: Sequence[GroupKeys], namespaces: Sequence[NamespaceKeys], *, stream: str = ""
) -> Rules:
    """Return the rules of a role for ``pairs``.

    ``mode`` matters to workers: embedded ones recover, too. ``stream`` is for producers, who know no groups.
    """
    commands = _CONNECTION | _DIRECT[role]
    scripts = _scripts_of(role, mode)
    for package, name in scripts:
        found = commands_of(package, name)
        commands |= found if mode is RecoveryMode.EMBEDDED else found - _ONLY_EMBEDDED.get(name, frozenset())
    if scripts:
        commands |= _SCRIPTING
    if role is Role.WORKER and mode is RecoveryMode.EMBEDDED:
        commands |= _LISTENS
    streams = dict.fromkeys([*(keys.stream for keys in pairs), *([stream] if stream else [])])
    return Rules(
        role,
        tuple(sorted(commands)),
        tuple(dict.fromkeys(_keys_of(role, mode, pairs, namespaces, streams))),
        tuple(dict.fromkeys(_channels_of(role, pairs, streams))),
    )


def _scripts_of(role: Role, mode: RecoveryMode) -> list[tuple[str, str]]:
    embedded = _EMBEDDED_SCRIPTS if mode is RecoveryMode.EMBEDDED else []
    return {
        Role.PRODUCER: [(_PROTOCOL, "enqueue")],
        Role.WORKER: _WORKER_SCRIPTS + embedded,
        Role.REAPER: _REAPER_SCRIPTS + _READ_SCRIPTS,
        Role.READ_ONLY: _READ_SCRIPTS,
        Role.OPERATOR: _READ_SCRIPTS + _OPERATOR_SCRIPTS,
    }[role]


def _keys_of(
    role: Role,
    mode: RecoveryMode,
    pairs: Sequence[GroupKeys],
    namespaces: Sequence[NamespaceKeys],
    streams: Iterable[str],
) -> Iterable[str]:
    if role is Role.PRODUCER:
        for name in streams:
            producer = stream_keys(name)
            yield from (producer.stream, producer.schedule, producer.enqueued)
        return
    for keys in pairs:
        yield from (keys.stream, keys.retry, keys.dead, keys.schedule, keys.suspects, keys.agreement, keys.journal)
        yield keys.fence
        if role is not Role.WORKER or mode is RecoveryMode.EMBEDDED:
            yield keys.stream_schedule
    if role is not Role.WORKER:
        for namespace in namespaces:
            yield from (namespace.lease, namespace.token, namespace.replicas, namespace.journal, namespace.step_down)


def _channels_of(role: Role, pairs: Sequence[GroupKeys], streams: Iterable[str]) -> Iterable[str]:
    """Return the channels of notices: each schedule has the name of its key."""
    if role is Role.PRODUCER:
        yield from (stream_keys(name).schedule for name in streams)
    elif role in (Role.WORKER, Role.REAPER):
        for keys in pairs:
            yield from (keys.schedule, keys.stream_schedule)


def _escape(name: str) -> str:
    """Take the meaning off wildcards; a space cannot be written, so any character may stand in its place."""
    return re.sub(r"\s", "?", re.sub(r"([*?\[\]^\\])", r"\\\1", name))


def _quote(word: str) -> str:
    if re.fullmatch(r"[^\s\"'\\]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


# --- what a script runs -------------------------------------------------------------------------------------

_CALL = re.compile(r"(?:redis\.p?call|\btry)\('([A-Z]+)'(?:,\s*'([A-Z]+)')?")
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end$", re.MULTILINE | re.DOTALL)
_SHARED = re.compile(r"^--- @(\w+)$", re.MULTILINE)
_WITH_SUBCOMMANDS = frozenset({"xinfo", "xgroup"})


@cache
def commands_of(package: str, name: str) -> frozenset[str]:
    """Return the commands that a script may run, lower case."""
    body = _read(package, name)
    functions: dict[str, str] = {}
    for part in _SHARED.findall(body):
        functions |= {match[1]: match[0] for match in _FUNCTION.finditer(_read(_PROTOCOL, part))}
    reached: set[str] = set()
    texts = [body]
    while texts:
        words = set(re.findall(r"\w+", texts[-1]))
        texts.pop()
        for function in (functions.keys() & words) - reached:
            reached.add(function)
            texts.append(functions[function])
    text = "\n".join([body, *(functions[function] for function in reached)])
    return frozenset(_commands_in(text))


def _commands_in(text: str) -> Iterable[str]:
    for command, second in _CALL.findall(text):
        name = command.lower()
        yield f"{name}|{second.lower()}" if name in _WITH_SUBCOMMANDS and second else name


def _read(package: str, name: str) -> str:
    text = (files(package) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    return re.sub(r"(?m)(?<!-)--(?!- @).*$", "", text)  # what a comment names is not run
