"""Commands on strings, and on keys of any type."""

import re
from fnmatch import translate

from tests.simulation.server.commands import command
from tests.simulation.server.core import Core
from tests.simulation.server.keyspace import TYPE_NAMES
from tests.simulation.server.replies import OK, Reply, ReplyError, Status, syntax_error
from tests.simulation.server.words import integer


@command("GET", 2, "read")
def get(core: Core, words: list[bytes]) -> Reply:
    """GET key"""
    return core.keys.typed(words[1], bytes)


@command("SET", -3, "grow")
def set_(core: Core, words: list[bytes]) -> Reply:
    """SET key value [NX|XX] [PX ms] [KEEPTTL]"""
    at, options = 3, set[bytes]()
    lifetime: bytes | None = None
    while at < len(words):
        option = words[at].upper()
        if option in (b"NX", b"XX", b"KEEPTTL"):
            options.add(option)
        elif option == b"PX" and at + 1 < len(words) and lifetime is None:
            at += 1
            lifetime = words[at]
        else:
            raise syntax_error()
        at += 1
    if {b"NX", b"XX"} <= options or (lifetime is not None and b"KEEPTTL" in options):
        raise syntax_error()
    expires_ms = core.now_ms + _lifetime_ms(core, lifetime) if lifetime is not None else None
    key, is_there = words[1], core.keys.find(words[1]) is not None
    if (b"NX" in options and is_there) or (b"XX" in options and not is_there):
        return None
    core.keys.values[key] = words[2]
    if b"KEEPTTL" not in options:
        core.keys.expires.pop(key, None)
    if expires_ms is not None:
        core.keys.expires[key] = expires_ms
    return OK


def _lifetime_ms(core: Core, word: bytes) -> int:
    lifetime = integer(word)
    if lifetime <= 0:
        raise ReplyError("ERR invalid expire time in " + ("'set' command" if core.is_7 else "set"))
    return lifetime


@command("INCR", 2, "grow")
def incr(core: Core, words: list[bytes]) -> Reply:
    """INCR key"""
    found = core.keys.typed(words[1], bytes)
    value = integer(b"0" if found is None else found) + 1
    if value >= 1 << 63:
        raise ReplyError("ERR increment or decrement would overflow")
    core.keys.values[words[1]] = b"%d" % value
    return value


def _delete(core: Core, words: list[bytes]) -> Reply:
    deleted = 0
    for key in words[1:]:
        if core.keys.find(key) is not None:
            core.keys.remove(key)
            core.signal_deleted(key)
            deleted += 1
    return deleted


@command("DEL", -2, "write")
def del_(core: Core, words: list[bytes]) -> Reply:
    """DEL key …"""
    return _delete(core, words)


@command("UNLINK", -2, "write")
def unlink(core: Core, words: list[bytes]) -> Reply:
    """UNLINK key …"""
    return _delete(core, words)


@command("EXISTS", -2, "read")
def exists(core: Core, words: list[bytes]) -> Reply:
    """EXISTS key …"""
    return sum(core.keys.find(key) is not None for key in words[1:])


@command("TYPE", 2, "read")
def type_(core: Core, words: list[bytes]) -> Reply:
    """TYPE key"""
    value = core.keys.find(words[1])
    return Status(b"none" if value is None else TYPE_NAMES[type(value)])


@command("PEXPIRE", 3, "write")
def pexpire(core: Core, words: list[bytes]) -> Reply:
    """PEXPIRE key ms"""
    key, at_ms = words[1], core.now_ms + integer(words[2])
    if core.keys.find(key) is None:
        return 0
    if at_ms <= core.now_ms:
        _delete(core, [b"DEL", key])
    else:
        core.keys.expires[key] = at_ms
    return 1


@command("PTTL", 2, "read")
def pttl(core: Core, words: list[bytes]) -> Reply:
    """PTTL key"""
    if core.keys.find(words[1]) is None:
        return -2
    at_ms = core.keys.expires.get(words[1])
    return -1 if at_ms is None else at_ms - core.now_ms


@command("SCAN", -2, "read")
def scan(core: Core, words: list[bytes]) -> Reply:
    """SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]: all keys are told in one piece."""
    pattern, kind = b"*", b""
    for option, value in zip(words[2::2], words[3::2], strict=False):
        if option.upper() == b"MATCH":
            pattern = value
        elif option.upper() == b"TYPE":
            kind = value.lower()
    matches = re.compile(translate(pattern.decode("latin-1"))).fullmatch
    found: list[Reply] = [
        key
        for key in (core.keys.all_keys() if integer(words[1], "ERR invalid cursor") == 0 else [])
        if matches(key.decode("latin-1")) and (not kind or TYPE_NAMES[type(core.keys.values[key])] == kind)
    ]
    return [b"0", found]


@command("FLUSHALL", -1, "write")
def flushall(core: Core, words: list[bytes]) -> Reply:
    """FLUSHALL [ASYNC|SYNC]"""
    del words
    for key in list(core.keys.values):
        core.signal_deleted(key)
    core.keys.clear()
    return OK
