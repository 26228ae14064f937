"""Appends a row once, however often it is sent: by a key of its own, which is noted where its entry is added.

The note and the entry are made in one step, and lie in one slot of a cluster: replicas and files have both or neither.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from reaper.pipeline.redis_stream.errors import RedisStreamError
from workers.protocol.slots import slot_of, tag_in, tag_of

ROWS_AT_ONCE = 100
BYTES_AT_ONCE = 200_000
"""Rows of one call: so many, or so large in all. Redis serves nobody else meanwhile."""
MOST_WORDS = 7_900
"""Of an entry: Lua hands a function no more than some 8,000."""
NOTES = b"redis-stream:written:"
"""What keys begin with that hold the notes: sorted sets of the rows' keys, by the time in ms."""
ODD_NOTES = b"redis-stream:written-beside:"
"""The same for streams whose names no braces can be put around."""

# What may fail goes first: a note without its entry would lose a row. Each row takes up to two old notes away, so that
# there are never many more than were made in the time they are kept.
_SCRIPT = b"""
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local at, added = 2, 0
while at <= #ARGV do
  local key, last = ARGV[at], at + 1 + tonumber(ARGV[at + 1])
  if not redis.call('ZSCORE', KEYS[2], key) then
    redis.call('XADD', KEYS[1], unpack(ARGV, at + 2, last))
    redis.call('ZADD', KEYS[2], ms, key)
    local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. (ms - ARGV[1]), 'LIMIT', 0, 2)
    if #old > 0 then redis.call('ZREM', KEYS[2], unpack(old)) end
    added = added + 1
  end
  at = last + 1
end
return added
"""

Row = tuple[bytes, bytes, list[bytes]]
"""Stream, key of the row, and the words of its ``XADD`` after the stream's key."""


def notes_of(stream: bytes) -> bytes:
    """Return the key of the notes about a stream: in its slot, and no other stream's."""
    tag = tag_of(stream)
    if tag is None and b"}" not in stream:
        return NOTES + b"{%b}" % stream
    if tag is not None and stream != b"{%b}" % tag:
        return NOTES + stream
    # Those of `{orders}` would be those of `orders`; and a name like `a}b` is hashed as a whole, but inside of braces
    # it would not be: so it stands behind a tag of the same slot.
    return ODD_NOTES + b"{%b}" % (tag or tag_in(slot_of(stream))) + stream


def calls(rows: Sequence[Row], keep_s: float) -> Iterator[list[bytes]]:
    """Yield the commands that append rows, each stream's in their order, unless their keys are noted already.

    Raises RedisStreamError where a row has too many fields for a script.
    """
    for stream, of_stream in groupby(sorted(rows, key=lambda row: row[0]), key=lambda row: row[0]):
        head = [b"EVAL", _SCRIPT, b"2", stream, notes_of(stream), b"%d" % (1000 * keep_s)]
        words: list[bytes] = []
        count = size = 0
        for _, key, entry in of_stream:
            if len(entry) > MOST_WORDS:
                raise RedisStreamError(
                    f"a row of more than {MOST_WORDS // 2:,} fields cannot be written with dedupeColumn: a script "
                    "hands over no more."
                )
            words += [key, b"%d" % len(entry), *entry]
            count, size = count + 1, size + sum(map(len, entry))
            if count == ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
                yield head + words
                words, count, size = [], 0, 0
        if words:
            yield head + words
