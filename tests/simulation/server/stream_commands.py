"""The commands on streams that need no group, which are XADD, XRANGE, XREVRANGE, XLEN, XDEL and XTRIM."""

from bisect import bisect_left
from dataclasses import dataclass

from tests.simulation.server.commands import command
from tests.simulation.server.core import Core
from tests.simulation.server.nodes import NODE_ENTRIES
from tests.simulation.server.replies import NULL_ARRAY, Reply, ReplyError, syntax_error
from tests.simulation.server.streams import Stream
from tests.simulation.server.words import (
    LAST_SEQUENCE,
    SEQUENCE_BITS,
    entry_id,
    integer,
    interval_end,
    interval_start,
)

TOO_SMALL = "ERR The ID specified in XADD is equal or smaller than the target stream top item"


@dataclass(slots=True)
class Limits:
    """The limit of XADD and XTRIM."""

    maxlen: int = -1
    minid: int = -1
    approximate: bool = False
    limit: int = 100 * NODE_ENTRIES
    """How many entries may go at once, where it is approximate; 0: any number."""

    @property
    def given(self) -> bool:
        """Tell whether there is anything to cut."""
        return self.maxlen >= 0 or self.minid >= 0

    def cut(self, stream: Stream) -> int:
        """Trim a stream. Return the number of deleted entries."""
        if not self.given:
            return 0
        ids = stream.entries.ids
        excess = len(ids) - self.maxlen if self.maxlen >= 0 else bisect_left(ids, self.minid)
        if self.approximate:
            excess = stream.nodes.in_whole_nodes(excess, self.minid if self.minid >= 0 else None, self.limit)
        return stream.trim(excess)


def read_limits(words: list[bytes], at: int) -> tuple[Limits, int]:
    """Read MAXLEN or MINID at ``words[at]``. Return it, and the place of the next word."""
    limits, name = Limits(), words[at].upper()
    at += 1
    if at < len(words) - 1 and words[at] in (b"~", b"="):
        limits.approximate = words[at] == b"~"
        at += 1
    if at >= len(words):
        raise syntax_error()
    if name == b"MAXLEN":
        limits.maxlen = integer(words[at])
        if limits.maxlen < 0:
            raise ReplyError("ERR The MAXLEN argument must be >= 0.")
    else:
        limits.minid = entry_id(words[at])
    at += 1
    if at + 1 < len(words) and words[at].upper() == b"LIMIT":
        limits.limit = integer(words[at + 1])
        if limits.limit < 0:
            raise ReplyError("ERR The LIMIT argument must be >= 0.")
        if not limits.approximate:
            raise ReplyError("ERR syntax error, LIMIT cannot be used without the special ~ option")
        at += 2
    return limits, at


@command("XADD", -5, "grow")
def xadd(core: Core, words: list[bytes]) -> Reply:
    """XADD key [NOMKSTREAM] [MAXLEN|MINID [=|~] threshold [LIMIT count]] *|id field value …"""
    at, limits, may_make = 2, None, True
    while at < len(words) and words[at] != b"*":
        option = words[at].upper()
        if option == b"NOMKSTREAM":
            may_make, at = False, at + 1
        elif option in (b"MAXLEN", b"MINID"):
            limits, at = read_limits(words, at)
        else:
            break
    if at >= len(words):
        raise syntax_error()
    wish = None if words[at] == b"*" else _wished_id(core, words[at])
    fields = words[at + 1 :]
    if not fields or len(fields) % 2:
        raise ReplyError("ERR wrong number of arguments for 'xadd' command")
    if wish == (0, 0):
        raise ReplyError("ERR The ID specified in XADD must be greater than 0-0")
    key = words[1]
    stream = core.keys.typed(key, Stream)
    if stream is None:
        if not may_make:
            return None
        stream = core.keys.values[key] = Stream()
    text = stream.add(_next_id(core, stream, wish), fields)
    if limits:
        limits.cut(stream)
    core.ready.append(key)
    return text


def _wished_id(core: Core, word: bytes) -> tuple[int, int | None]:
    if core.is_7 and word.endswith(b"-*"):
        return entry_id(word[:-2]) >> SEQUENCE_BITS, None
    number = entry_id(word)
    return number >> SEQUENCE_BITS, number & LAST_SEQUENCE


def _next_id(core: Core, stream: Stream, wish: tuple[int, int | None] | None) -> int:
    last = stream.last_id
    if wish is None:
        return max(core.now_ms << SEQUENCE_BITS, last + 1)
    ms, sequence = wish
    if sequence is None:
        number = max(ms << SEQUENCE_BITS, last + 1)
        if number >> SEQUENCE_BITS != ms:
            raise ReplyError(TOO_SMALL)
        return number
    number = ms << SEQUENCE_BITS | sequence
    if number <= last:
        raise ReplyError(TOO_SMALL)
    return number


def _range(core: Core, words: list[bytes], start: int, end: int) -> tuple[Stream | None, list[int] | None, int]:
    count = -1
    at = 4
    while at < len(words):
        if words[at].upper() != b"COUNT" or at + 1 >= len(words):
            raise syntax_error()
        count = max(integer(words[at + 1]), 0)
        at += 2
    stream = core.keys.typed(words[1], Stream)
    if stream is None:
        return None, [], count
    return stream, None if count == 0 else stream.entries.between(start, end), count


@command("XRANGE", -4, "read")
def xrange(core: Core, words: list[bytes]) -> Reply:
    """XRANGE key start end [COUNT count]"""
    start, end = interval_start(words[2]), interval_end(words[3])
    if start == end and len(words) == 4:  # one entry, the most frequent request of scripts
        stream = core.keys.typed(words[1], Stream)
        entry = stream.entries.get(start) if stream else None
        return [entry] if entry else []
    stream, ids, count = _range(core, words, start, end)
    if ids is None:
        return NULL_ARRAY
    return stream.rows(ids if count < 0 else ids[:count]) if stream else []


@command("XREVRANGE", -4, "read")
def xrevrange(core: Core, words: list[bytes]) -> Reply:
    """XREVRANGE key end start [COUNT count]"""
    end, start = interval_end(words[2]), interval_start(words[3])
    stream, ids, count = _range(core, words, start, end)
    if ids is None:
        return NULL_ARRAY
    ids.reverse()
    return stream.rows(ids if count < 0 else ids[:count]) if stream else []


@command("XLEN", 2, "read")
def xlen(core: Core, words: list[bytes]) -> Reply:
    """XLEN key"""
    stream = core.keys.typed(words[1], Stream)
    return stream.length if stream else 0


@command("XDEL", -3, "write")
def xdel(core: Core, words: list[bytes]) -> Reply:
    """XDEL key id …"""
    stream = core.keys.typed(words[1], Stream)
    if stream is None:
        return 0
    numbers = [entry_id(word) for word in words[2:]]
    return sum(stream.delete(number) for number in numbers)


@command("XTRIM", -4, "write")
def xtrim(core: Core, words: list[bytes]) -> Reply:
    """XTRIM key MAXLEN|MINID [=|~] threshold [LIMIT count]"""
    if words[2].upper() not in (b"MAXLEN", b"MINID"):
        raise syntax_error()
    limits, at = read_limits(words, 2)
    if at != len(words):
        raise syntax_error()
    stream = core.keys.typed(words[1], Stream)
    return limits.cut(stream) if stream else 0
