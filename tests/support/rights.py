"""The needs of scripts: the keys in their headers, and the commands in their text.

The table of `reaper acl` is compared with it (`tests/operator/test_acl_reach.py`).
"""

import re
from collections.abc import Iterable
from dataclasses import fields
from functools import cache

from reaper.operations.acl import Role
from workers.protocol.keys import GroupKeys, NamespaceKeys, StreamKeys, group_keys, namespace_keys, stream_keys
from workers.protocol.messages import RecoveryMode
from workers.protocol.scripts import COMMENT, put_together, script_text

PROTOCOL, REAPER = "workers.protocol", "reaper"
MOVES = [(PROTOCOL, name) for name in ("recover", "move_due", "maintain_group", "look_at_group")]
READS = [(REAPER, name) for name in ("count_after", "find_scheduled", "inspect_layout")]
SCRIPTS = {
    Role.PRODUCER: [(PROTOCOL, "enqueue")],
    Role.WORKER: [
        (PROTOCOL, name)
        for name in ("join_group", "adopt", "ack", "settle", "extend", "hold", "return_taken", "delete_consumer")
    ],
    Role.REAPER: [
        *MOVES,
        *((REAPER, name) for name in ("register", "lease_take", "tick", "lease_hand", "report_lost", "watch")),
        *READS,
    ],
    Role.READ_ONLY: READS,
    Role.OPERATOR: [
        *READS,
        *((REAPER, name) for name in ("pause_group", "forget_group", "ready_again", "watch")),
    ],
}
"""The scripts that each role runs. Embedded workers also run `MOVES`."""
READING = frozenset(
    {
        "exists", "type", "get", "pttl", "hgetall", "hscan", "hget", "hmget", "hlen", "zcard", "zcount", "zscore",
        "zrange", "xlen", "xrange", "xrevrange", "xpending", "xinfo|stream", "xinfo|groups", "xinfo|consumers",
    }
)  # fmt: skip
DIRECT = {
    Role.PRODUCER: frozenset({"xadd"}),
    Role.WORKER: frozenset({"xreadgroup", "hmget", "xinfo|consumers"}),
    Role.REAPER: READING | {"subscribe", "unsubscribe", "xread", "xreadgroup", "xadd", "hdel", "zrem"},
    Role.READ_ONLY: READING,
    Role.OPERATOR: READING | {"xdel", "hdel", "zadd", "zrem"},
}
"""Commands that each role runs outside of scripts. That they are all of them is seen with real users in test_acl.py."""
_DESCRIBED_KEY = re.compile(r"^-- KEYS\[\d+…?\](.*)$", re.MULTILINE)
_AS_IN_KEYS = re.compile(r"^-- KEYS\[1\] to KEYS\[8\] as in keys.lua.*$", re.MULTILINE)
_CALL = re.compile(r"(?:redis\.p?call|\btry)\((?:redis\.call, )?'([A-Z]+)'(?:,\s*'([A-Z]+)')?")
_WITH_SUBCOMMANDS = frozenset({"xinfo", "xgroup"})


def scripts_of(role: Role, mode: RecoveryMode) -> list[tuple[str, str]]:
    """Return package and name of the scripts that a role runs."""
    embedded = MOVES if role is Role.WORKER and mode is RecoveryMode.EMBEDDED else []
    return SCRIPTS[role] + embedded


def _names(keys: GroupKeys | StreamKeys | NamespaceKeys) -> set[str]:
    return {getattr(keys, one.name) for one in fields(keys) if one.name not in ("group", "namespace")}


KNOWN = {
    *_names(stream_keys("orders")),
    *_names(group_keys("orders", "billing")),
    *_names(namespace_keys("reaper")),
}
"""All keys, as headers spell them."""


@cache
def keys_in_order(package: str, name: str) -> tuple[frozenset[str], ...]:
    """Return the possible keys for each place of a script's KEYS, as its header spells them.

    Raises ValueError for a key that `workers.protocol.keys` does not have.
    """
    shared = "\n".join(line for line in script_text(PROTOCOL, "keys").splitlines() if line.startswith("-- KEYS["))
    places = []
    for line in _DESCRIBED_KEY.findall(_AS_IN_KEYS.sub(lambda _: shared, script_text(package, name))):
        places.append(frozenset(KNOWN.intersection(re.findall(r"[\w{}:*]+", line))))
        if not places[-1]:
            raise ValueError(f"{name}.lua: what key is this? {line.strip()}")
    return tuple(places)


def keys_of(package: str, name: str) -> frozenset[str]:
    """Return the keys that calls of a script name, as its header spells them."""
    return frozenset().union(*keys_in_order(package, name))


@cache
def commands_of(package: str, name: str) -> frozenset[str]:
    """Return the commands that a script may run, lower case."""
    source = put_together(script_text(package, name))
    return frozenset(_commands_in(COMMENT.sub("", source)))  # a comment is not run


def _commands_in(text: str) -> Iterable[str]:
    for command, second in _CALL.findall(text):
        name = command.lower()
        yield f"{name}|{second.lower()}" if name in _WITH_SUBCOMMANDS and second else name
