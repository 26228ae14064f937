"""Commands on hashes."""

from tests.simulation.server.commands import command
from tests.simulation.server.core import Core
from tests.simulation.server.keyspace import Hash
from tests.simulation.server.replies import Reply, ReplyError
from tests.simulation.server.words import integer


def _existing(core: Core, key: bytes) -> Hash:
    return core.keys.typed(key, dict) or {}


def _made(core: Core, key: bytes) -> Hash:
    found = core.keys.typed(key, dict)
    if found is None:
        found = core.keys.values[key] = {}
    return found


@command("HGET", 3, "read")
def hget(core: Core, words: list[bytes]) -> Reply:
    """HGET key field"""
    return _existing(core, words[1]).get(words[2])


@command("HMGET", -3, "read")
def hmget(core: Core, words: list[bytes]) -> Reply:
    """HMGET key field …"""
    found = _existing(core, words[1])
    return [found.get(field) for field in words[2:]]


@command("HGETALL", 2, "read")
def hgetall(core: Core, words: list[bytes]) -> Reply:
    """HGETALL key"""
    return [part for pair in _existing(core, words[1]).items() for part in pair]


@command("HLEN", 2, "read")
def hlen(core: Core, words: list[bytes]) -> Reply:
    """HLEN key"""
    return len(_existing(core, words[1]))


@command("HEXISTS", 3, "read")
def hexists(core: Core, words: list[bytes]) -> Reply:
    """HEXISTS key field"""
    return int(words[2] in _existing(core, words[1]))


@command("HSET", -4, "grow")
def hset(core: Core, words: list[bytes]) -> Reply:
    """HSET key field value …"""
    if len(words) % 2:
        raise ReplyError(f"ERR wrong number of arguments for '{words[0].lower().decode()}' command")
    found = _made(core, words[1])
    before = len(found)
    for i in range(2, len(words), 2):
        found[words[i]] = words[i + 1]
    return len(found) - before


@command("HSETNX", 4, "grow")
def hsetnx(core: Core, words: list[bytes]) -> Reply:
    """HSETNX key field value"""
    found = _made(core, words[1])
    if words[2] in found:
        return 0
    found[words[2]] = words[3]
    return 1


@command("HDEL", -3, "write")
def hdel(core: Core, words: list[bytes]) -> Reply:
    """HDEL key field …"""
    found = _existing(core, words[1])
    deleted = sum(found.pop(field, None) is not None for field in words[2:])
    if deleted and not found:
        core.keys.remove(words[1])
    return deleted


@command("HINCRBY", 4, "grow")
def hincrby(core: Core, words: list[bytes]) -> Reply:
    """HINCRBY key field increment"""
    step = integer(words[3])
    value = integer(_existing(core, words[1]).get(words[2], b"0"), "ERR hash value is not an integer") + step
    if not -(1 << 63) <= value < 1 << 63:
        raise ReplyError("ERR increment or decrement would overflow")
    _made(core, words[1])[words[2]] = b"%d" % value
    return value


@command("HSCAN", -3, "read")
def hscan(core: Core, words: list[bytes]) -> Reply:
    """HSCAN key cursor [COUNT n], which returns a small hash in one piece."""
    cursor = integer(words[2], "ERR invalid cursor")
    rows = _existing(core, words[1]).items() if cursor == 0 else ()
    return [b"0", [word for row in rows for word in row]]
