"""Commands on sorted sets."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import inf

from tests.simulation.server.commands import command
from tests.simulation.server.core import Core
from tests.simulation.server.ranking import SortedSet
from tests.simulation.server.replies import Reply, ReplyError, syntax_error
from tests.simulation.server.words import double, integer

Row = tuple[float, bytes]


def score_text(core: Core, score: float) -> bytes:
    """Return a score as a reply has it."""
    if score in (inf, -inf):
        return b"inf" if score > 0 else b"-inf"
    if score.is_integer() and abs(score) < 1e17:
        return b"-0" if score == 0 and str(score)[0] == "-" else b"%d" % int(score)
    if core.capabilities.is_7_2:
        return repr(score).replace("e+0", "e+").replace("e-0", "e-").encode()
    return b"%.17g" % score


def _existing(core: Core, key: bytes) -> SortedSet:
    return core.keys.typed(key, SortedSet) or SortedSet()


def _told(core: Core, rows: Iterable[Row], *, with_scores: bool) -> Reply:
    if not with_scores:
        return [member for _, member in rows]
    return [part for score, member in rows for part in (member, score_text(core, score))]


@command("ZADD", -4, "grow")
def zadd(core: Core, words: list[bytes]) -> Reply:
    """ZADD key [NX|XX] [GT|LT] [CH] score member …"""
    at, options = 2, set[bytes]()
    while at < len(words) and words[at].upper() in (b"NX", b"XX", b"GT", b"LT", b"CH"):
        options.add(words[at].upper())
        at += 1
    rest = words[at:]
    if not rest or len(rest) % 2:
        raise syntax_error()
    if {b"NX", b"XX"} <= options:
        raise ReplyError("ERR XX and NX options at the same time are not compatible")
    if len(options & {b"NX", b"GT", b"LT"}) > 1:
        raise ReplyError("ERR GT, LT, and/or NX options at the same time are not compatible")
    scores = [double(word) for word in rest[::2]]
    found = core.keys.typed(words[1], SortedSet)
    if found is None:
        if b"XX" in options:
            return 0
        found = core.keys.values[words[1]] = SortedSet()
    added = changed = 0
    for score, member in zip(scores, rest[1::2], strict=True):
        was = found.scores.get(member)
        if was is None:
            if b"XX" not in options:
                found.put(member, score)
                added += 1
        elif _may_move(options, was, score):
            found.put(member, score)
            changed += 1
    return added + changed if b"CH" in options else added


def _may_move(options: set[bytes], was: float, score: float) -> bool:
    if b"NX" in options or was == score:
        return False
    return not (b"GT" in options and score < was) and not (b"LT" in options and score > was)


@command("ZREM", -3, "write")
def zrem(core: Core, words: list[bytes]) -> Reply:
    """ZREM key member …"""
    found = _existing(core, words[1])
    removed = sum(found.remove(member) for member in words[2:])
    if removed and not len(found):
        core.keys.remove(words[1])
    return removed


@command("ZREMRANGEBYSCORE", 4, "write")
def zremrangebyscore(core: Core, words: list[bytes]) -> Reply:
    """ZREMRANGEBYSCORE key min max"""
    found = _existing(core, words[1])
    first, last = _bounds(found, words[2], words[3])
    removed = [member for _, member in found.rows[first:last]]
    for member in removed:
        found.remove(member)
    if removed and not len(found):
        core.keys.remove(words[1])
    return len(removed)


@command("ZCARD", 2, "read")
def zcard(core: Core, words: list[bytes]) -> Reply:
    """ZCARD key"""
    return len(_existing(core, words[1]))


@command("ZSCORE", 3, "read")
def zscore(core: Core, words: list[bytes]) -> Reply:
    """ZSCORE key member"""
    score = _existing(core, words[1]).scores.get(words[2])
    return None if score is None else score_text(core, score)


def _bounds(found: SortedSet, low: bytes, high: bytes) -> tuple[int, int]:
    """Return from where to where (exclusive) the rows lie whose scores are between two bounds."""
    said = "ERR min or max is not a float"
    is_open, bottom = low[:1] == b"(", double(low.lstrip(b"("), said)
    is_open_above, top = high[:1] == b"(", double(high.lstrip(b"("), said)
    key = lambda row: row[0]  # noqa: E731
    first = (bisect_right if is_open else bisect_left)(found.rows, bottom, key=key)
    last = (bisect_left if is_open_above else bisect_right)(found.rows, top, key=key)
    return first, max(first, last)


@command("ZCOUNT", 4, "read")
def zcount(core: Core, words: list[bytes]) -> Reply:
    """ZCOUNT key min max"""
    first, last = _bounds(_existing(core, words[1]), words[2], words[3])
    return last - first


@command("ZRANGE", -4, "read")
def zrange(core: Core, words: list[bytes]) -> Reply:
    """ZRANGE key start stop [WITHSCORES]"""
    if len(words) > 5 or (len(words) == 5 and words[4].upper() != b"WITHSCORES"):
        raise syntax_error()
    start, stop = integer(words[2]), integer(words[3])
    rows = _existing(core, words[1]).rows
    start = max(start + len(rows), 0) if start < 0 else start
    stop = stop + len(rows) if stop < 0 else stop
    return _told(core, rows[start : max(stop + 1, 0)], with_scores=len(words) == 5)


@command("ZRANGEBYSCORE", -4, "read")
def zrangebyscore(core: Core, words: list[bytes]) -> Reply:
    """ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]"""
    at, with_scores, offset, count = 4, False, 0, -1
    while at < len(words):
        option = words[at].upper()
        if option == b"WITHSCORES":
            with_scores, at = True, at + 1
        elif option == b"LIMIT" and at + 2 < len(words):
            offset, count, at = integer(words[at + 1]), integer(words[at + 2]), at + 3
        else:
            raise syntax_error()
    found = _existing(core, words[1])
    first, last = _bounds(found, words[2], words[3])
    if offset < 0:
        return []
    first += offset
    if count >= 0:
        last = min(last, first + count)
    return _told(core, found.rows[first : max(first, last)], with_scores=with_scores)
