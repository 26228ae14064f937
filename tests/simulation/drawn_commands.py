"""Random commands of the kinds that we use: on few keys, groups, consumers and IDs, so that they meet."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.simulation.server import ModelServer
from tests.simulation.twin_sides import CLIENTS, LISTENER, START_US
from tests.simulation.twins import Twins
from tests.simulation.wire import Word

Draw = Callable[[st.SearchStrategy[Any]], Any]
Words = tuple[Word, ...]

STREAMS, HASHES, ZSETS, STRINGS = ("s1", "s2"), ("h1", "h2"), ("z1", "z2"), ("k1", "k2")
GROUPS, CONSUMERS = ("g1", "g2"), ("a", "b", "c")
START_MS = START_US // 1000


@dataclass(frozen=True)
class Step:
    """One thing that is done to both servers."""

    do: Callable[[Twins], None]
    told: str

    def __repr__(self) -> str:
        return self.told


def run(number: int, *words: Word) -> Step:
    """Return a step that runs a command."""
    return Step(lambda twins: twins.run(number, *words), f"{number}: {' '.join(map(str, words))}")


def change(told: str, real: Words, model: Callable[[ModelServer], None]) -> Step:
    """Return a step that changes the servers themselves."""
    return Step(lambda twins: twins.change(told, real, model), told)


def weighted(*strategies: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Draw from one of the strategies, by their weights."""
    return st.sampled_from([one for weight, one in strategies for _ in range(weight)]).flatmap(lambda one: one)


# ---- words
_streams = st.sampled_from((*("s1",) * 12, *("s2",) * 3, "k1"))
_groups = st.sampled_from((*("g1",) * 8, "g2", "g2", "nobody"))
_consumers = st.sampled_from(CONSUMERS)
_entry_ids = weighted(
    (3, st.integers(0, 9).map("?{}".format)),
    (1, st.builds("{}-{}".format, st.integers(START_MS - 1, START_MS + 4), st.integers(0, 2))),
)
_ids = _entry_ids | st.sampled_from(("0-0", "0", "5", str(START_MS), "x", "1-x", "-", "+", str(2**64), "1-1-1"))
_good_ids = st.lists(_entry_ids, min_size=1, max_size=4)
_bounds = (
    st.sampled_from(("-", "+", "-", "+", "(" + str(START_MS), str(START_MS + 1), "(-"))
    | _ids
    | _entry_ids.map("(".__add__)
)
_counts = st.integers(-1, 4)
_values = st.sampled_from(("", "1", "-3", "9223372036854775807", "v", "x" * 30, "y" * 700, "\x00\xff", "0012"))
_fields = st.sampled_from(("f", "g", "h", ""))
_entries = st.lists(st.tuples(_fields, _values), min_size=1, max_size=3).map(
    lambda rows: tuple(w for row in rows for w in row)
)


def _optional(strategy: st.SearchStrategy[Words]) -> st.SearchStrategy[Words]:
    return st.just(()) | strategy


def _words(*parts: Any) -> st.SearchStrategy[Words]:
    """Put words together: plain ones, drawn ones, and drawn tuples or lists of them."""
    drawn = [part if isinstance(part, st.SearchStrategy) else st.just(part) for part in parts]
    return st.tuples(*drawn).map(_flat)


def _flat(parts: tuple[Any, ...]) -> Words:
    flat: list[Word] = []
    for part in parts:
        flat.extend(part) if isinstance(part, tuple | list) else flat.append(part)
    return tuple(flat)


# ---- commands
_limit = _words(
    st.sampled_from(("MAXLEN", "MINID")), st.sampled_from(((), ("~",), ("=",))), st.integers(0, 4) | _ids,
    _optional(_words("LIMIT", st.integers(-1, 3))),
)  # fmt: skip
_count = _optional(_words("COUNT", _counts))
_xadd = _words(
    "XADD",
    _streams,
    _optional(st.just(("NOMKSTREAM",))),
    _optional(_limit),
    st.just("*") | st.just("*") | _ids,
    _entries,
)
_block = _optional(_words("BLOCK", st.sampled_from((0, 3, 50))))
_after = st.sampled_from((">", ">", ">", ">", "0", "$")) | _ids
_xreadgroup = _words(
    "XREADGROUP", "GROUP", _groups, _consumers, _count, _block, _optional(st.just(("NOACK",))), "STREAMS"
)
STREAM_COMMANDS = st.one_of(
    weighted((1, _xadd), (1, _words("XADD", st.sampled_from(STREAMS), "*", _entries))),
    _words("XADD", st.sampled_from(STREAMS), "*", _entries),
    _words("XRANGE", _streams, _bounds, _bounds, _count),
    _words("XREVRANGE", _streams, _bounds, _bounds, _count),
    _words("XLEN", _streams),
    _words("XDEL", _streams, _good_ids),
    _words("XTRIM", _streams, _limit),
    _words("XINFO", "STREAM", _streams, _optional(_words("FULL", _count))),
)  # fmt: skip
_xread = st.one_of(
    _words(_xreadgroup, _streams, _after),
    _words(_xreadgroup, _streams, ">"),
    _words(_xreadgroup, "s1", "s2", _after, _after),
    _words("XREAD", _count, _block, "STREAMS", _streams, st.just("$") | _ids),
    _words("XREAD", _count, _block, "STREAMS", "s1", "s2", st.just("$") | _ids, _ids),
)
_claim = st.one_of(
    st.just(()), st.just(()), st.just(("JUSTID",)), st.just(("FORCE",)), st.just(("FORCE", "JUSTID")),
    _words("IDLE", st.sampled_from((0, 3, 5000)), "FORCE", "RETRYCOUNT", st.integers(0, 3)),
    _words("RETRYCOUNT", st.integers(-1, 5), "JUSTID"),
    _words("TIME", st.sampled_from((START_MS, START_MS + 10**6, -5))),
    _words("LASTID", _ids), st.just(("FOO",)),
)  # fmt: skip
GROUP_COMMANDS = st.one_of(
    _words(
        "XGROUP", "CREATE", _streams, _groups, st.sampled_from(("0", "$", "0", str(START_MS), "-")) | _ids,
        _optional(st.just(("MKSTREAM",))), _optional(st.just(("ENTRIESREAD", 1))),
    ),
    _words("XGROUP", "CREATE", st.sampled_from(STREAMS), st.sampled_from(GROUPS), "0", "MKSTREAM"),
    _words("XGROUP", "SETID", _streams, _groups, st.sampled_from(("0", "$")) | _ids),
    _words("XGROUP", "DESTROY", _streams, _groups),
    _words("XGROUP", "DELCONSUMER", _streams, _groups, _consumers),
    _words("XGROUP", "CREATECONSUMER", _streams, _groups, _consumers),
    _words("XACK", _streams, _groups, _good_ids | st.lists(_ids, min_size=1, max_size=2)),
    _words("XPENDING", _streams, _groups),
    _words("XPENDING", _streams, _groups, _optional(_words("IDLE", st.sampled_from((0, 2)))), _bounds, _bounds, _counts,
           _optional(_words(_consumers))),
    _words("XCLAIM", _streams, _groups, _consumers, st.sampled_from((0, 0, 2, 100)), _good_ids, _claim),
    _words("XCLAIM", _streams, _groups, _consumers, st.sampled_from((0, 0, 2, 100)), _good_ids, _claim),
    _words("XAUTOCLAIM", _streams, _groups, _consumers, st.sampled_from((0, 0, 2, 100, "x")), _bounds,
           _optional(_words("COUNT", st.integers(0, 3))), _optional(st.just(("JUSTID",)))),
    _words("XINFO", "GROUPS", _streams),
    _words("XINFO", "CONSUMERS", _streams, _groups),
    weighted((1, _xread)), weighted((1, _xread)), weighted((1, _xread)), weighted((1, _xread)),
)  # fmt: skip
_hashes = st.sampled_from((*HASHES * 6, "s1"))
HASH_COMMANDS = st.one_of(
    _words("HSET", _hashes, _entries),
    _words("HSET", _hashes, _entries),
    _words("HSETNX", _hashes, _fields, _values),
    _words("HINCRBY", _hashes, _fields, st.sampled_from((1, -5, "x", 2**63 - 1))),
    _words("HDEL", _hashes, st.lists(_fields, min_size=1, max_size=3)),
    _words("HMGET", _hashes, st.lists(_fields, min_size=1, max_size=3)),
    _words(st.sampled_from(("HGET", "HEXISTS")), _hashes, _fields),
    _words(st.sampled_from(("HGETALL", "HLEN")), _hashes),
)
_zsets = st.sampled_from((*ZSETS * 6, "h1"))
_scores = st.sampled_from(
    ("0", "1", "-1.5", "2", "inf", "-inf", "4503599627370496", "1700000000000", "1e3", "x", "0.1")
)
_score_bounds = _scores | st.sampled_from(("(1", "(0", "-inf", "+inf"))
_members = st.sampled_from(("m", "n", "o", ""))
_rows = st.lists(st.tuples(_scores, _members), min_size=1, max_size=3).map(
    lambda rows: tuple(w for row in rows for w in row)
)
_zadd_options = st.sampled_from(((), (), ("XX",), ("NX",), ("CH",), ("GT",), ("XX", "LT", "CH"), ("NX", "GT")))
ZSET_COMMANDS = st.one_of(
    _words("ZADD", _zsets, _zadd_options, _rows),
    _words("ZADD", _zsets, _rows),
    _words("ZREM", _zsets, st.lists(_members, min_size=1, max_size=3)),
    _words("ZCARD", _zsets),
    _words("ZSCORE", _zsets, _members),
    _words("ZCOUNT", _zsets, _score_bounds, _score_bounds),
    _words("ZRANGE", _zsets, st.integers(-3, 3), st.integers(-3, 3), _optional(st.just(("WITHSCORES",)))),
    _words("ZRANGEBYSCORE", _zsets, _score_bounds, _score_bounds, _optional(st.just(("WITHSCORES",))),
           _optional(_words("LIMIT", st.integers(-1, 2), st.integers(-1, 2)))),
)  # fmt: skip
_strings = st.sampled_from((*STRINGS * 6, "h1"))
_any_key = st.sampled_from((*STREAMS, *HASHES, *ZSETS, *STRINGS))
_lifetimes = st.sampled_from((1, 3, 100, 0, -1, "x"))
KEY_COMMANDS = st.one_of(
    _words("SET", _strings, _values, st.sampled_from(((), (), ("NX",), ("XX",), ("KEEPTTL",), ("NX", "XX"))),
           _optional(_words("PX", _lifetimes))),
    _words("SET", _strings, _values),
    _words("GET", _strings),
    _words("INCR", _strings),
    _words(st.sampled_from(("DEL", "UNLINK", "EXISTS")), st.lists(_any_key, min_size=1, max_size=2)),
    _words(st.sampled_from(("TYPE", "PTTL")), _any_key),
    _words("PEXPIRE", _any_key, _lifetimes),
    _words("TIME"),
    st.just(("FLUSHALL",)),
)  # fmt: skip
LOOKS = st.one_of(
    _words("PING"),
    _words("PUBLISH", st.sampled_from(("ch", "other")), _values),
    st.just(("MULTI",)), st.just(("EXEC",)), st.just(("EXEC",)), st.just(("DISCARD",)),
    st.sampled_from((("FOO", "a"), ("XGROUP", "FOO", "a"), ("XADD", "s1"),
                     ("XACK", "s1", "g1"), ("XINFO", "FOO"), ("GET",))),
)  # fmt: skip

COMMANDS = weighted(
    (4, STREAM_COMMANDS), (5, GROUP_COMMANDS), (1, HASH_COMMANDS), (1, ZSET_COMMANDS), (1, KEY_COMMANDS), (1, LOOKS)
)  # fmt: skip
_runs = st.builds(lambda number, words: run(number, *words), st.integers(0, CLIENTS - 1), COMMANDS)
PASSES = st.sampled_from((1, 2, 4, 60)).map(lambda ms: Step(lambda twins: twins.pass_time(ms), f"{ms} ms pass"))

_REVOKED = ("xadd", "xack", "xclaim", "hset", "xreadgroup", "get")


def _fill(full: bool) -> Step:
    return change(
        f"full: {full}", ("CONFIG", "SET", "maxmemory", 1 if full else 0), lambda model: model.fill(full=full)
    )


def _turn(is_replica: bool) -> Step:
    master: Words = ("127.0.0.1", "1") if is_replica else ("NO", "ONE")
    return change(f"replica: {is_replica}", ("REPLICAOF", *master), lambda model: model.readonly(is_replica=is_replica))


def _revoke(command: str) -> Step:
    return change(
        f"no {command}", ("ACL", "SETUSER", "default", f"-{command}"), lambda model: model.denied.add(command)
    )


def _grant(command: str) -> Step:
    return change(
        f"{command} again", ("ACL", "SETUSER", "default", f"+{command}"), lambda model: model.denied.discard(command)
    )


FAULTS = st.one_of(
    st.booleans().map(_fill),
    st.booleans().map(_turn),
    st.sampled_from(_REVOKED).map(_revoke),
    st.sampled_from(_REVOKED).map(_grant),
    st.just(change("no scripts", ("SCRIPT", "FLUSH"), lambda model: model.script_flush())),
)
LISTENING = st.sampled_from(("ch", "other")).map(lambda channel: run(LISTENER, "SUBSCRIBE", channel)) | st.just(
    run(LISTENER, "UNSUBSCRIBE", "ch")
)


_BEGIN = (
    run(0, "XGROUP", "CREATE", "s1", "g1", "0", "MKSTREAM"),
    *(run(0, "XADD", "s1", "*", "n", number) for number in range(4)),
    run(0, "XREADGROUP", "GROUP", "g1", "a", "COUNT", 3, "STREAMS", "s1", ">"),
)


def command_stories(*, steps: int) -> st.SearchStrategy[list[Step]]:
    """Return stories of plain commands, about ``steps`` long."""
    step = weighted((80, _runs), (6, PASSES), (2, FAULTS), (2, LISTENING))
    return st.lists(step, min_size=steps // 2, max_size=steps).map(lambda story: [*_BEGIN, *story])


_claims = _words("CLAIM", st.sampled_from((1, 2, 5, 5, 1000, 10**9, -1, "x")))
CLAIMING = st.one_of(
    _words("XADD", "s1", "*", "n", st.integers(0, 9)),
    _words("XREADGROUP", "GROUP", "g1", _consumers, _count, _claims, "STREAMS", "s1", ">"),
    _words("XREADGROUP", "GROUP", "g1", _consumers, _count, _claims, "STREAMS", "s1", ">"),
    _words("XREADGROUP", "GROUP", "g1", _consumers, _count, _claims, "STREAMS", "s1", "s2", ">", ">"),
    _words("XREADGROUP", "GROUP", "g1", _consumers, _count, _claims, "STREAMS", "s1", "0"),
    _words("XCLAIM", "s1", "g1", _consumers, 0, _good_ids, "IDLE", st.sampled_from((0, 3, 4_000_000_000)),
           "RETRYCOUNT", st.integers(0, 5), "JUSTID"),
    _words("XACK", "s1", "g1", _good_ids),
    _words("XDEL", "s1", _good_ids),
    _words("XPENDING", "s1", "g1", "-", "+", 100),
    _words("XPENDING", "s1", "g1"),
)  # fmt: skip
_LAST_LOOKS = tuple(
    run(0, *words)
    for words in (("XPENDING", "s1", "g1", "-", "+", 100), ("XPENDING", "s1", "g1"), ("XRANGE", "s1", "-", "+"))
)


def claim_stories(*, steps: int) -> st.SearchStrategy[list[Step]]:
    """Return stories of reads that claim, about ``steps`` long; what they look at in the end is in them."""
    runs = st.builds(lambda number, words: run(number, *words), st.integers(0, CLIENTS - 1), CLAIMING)
    step = weighted((8, runs), (2, PASSES))
    begin = (*_BEGIN, run(0, "XGROUP", "CREATE", "s2", "g1", "0", "MKSTREAM"), run(0, "XADD", "s2", "*", "n", 1))
    return st.lists(step, min_size=steps // 2, max_size=steps).map(lambda story: [*begin, *story, *_LAST_LOOKS])


def undo(twins: Twins) -> None:
    """Leave the real server as it was."""
    for words in (
        ("CONFIG", "SET", "maxmemory", 0), ("REPLICAOF", "NO", "ONE"), ("ACL", "SETUSER", "default", "+@all"),
        ("SCRIPT", "FLUSH"),
    ):  # fmt: skip
        twins.real.ask(*(str(word).encode() for word in words))
