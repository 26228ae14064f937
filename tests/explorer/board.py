"""A stream and a group on a real server, with scripts over one blocking connection.

That suffices for thousands of plays.
"""

import socket
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import hiredis

from workers.protocol.keys import GroupKeys, group_keys
from workers.protocol.scripts import load_script

Word = str | bytes | int
Row = Any
V_MS = 30_000
"""The visibility timeout of every group here, in ms."""
READY_MS = 1_000_000_000
"""An entry that is idle for longer is ready where it is."""
LEASE = "L1"
EFFECTS = ("ack", "settle", "extend", "hold", "adopt")
GROUP_EFFECTS = ("recover", "move_due")
"""Scripts that act for the whole group: they are given the lease, too."""

_AGE = """
-- Time passes: what no live worker proves is idle for longer than the visibility timeout.
-- ARGV: group, ms, live consumers
local live = {}
for i = 3, #ARGV do live[ARGV[i]] = true end
for _, key in ipairs(KEYS) do
  for _, row in ipairs(redis.pcall('XPENDING', key, ARGV[1], '-', '+', 1000)) do
    if not live[row[2]] and row[3] < tonumber(ARGV[2]) then
      redis.call('XCLAIM', key, ARGV[1], row[2], 0, row[1], 'IDLE', ARGV[2], 'RETRYCOUNT', row[4], 'JUSTID')
    end
  end
end"""


_HAS_WORK = """
-- KEYS: stream, retry stream, schedule. ARGV: group, whether copies count
if redis.call('EXISTS', KEYS[3]) == 1 then return 1 end
if ARGV[2] == '1' and redis.call('XLEN', KEYS[2]) > 0 then return 1 end
for i = 1, 2 do
  if redis.call('XPENDING', KEYS[i], ARGV[1])[1] > 0 then return 1 end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[i])) do
    if #redis.call('XRANGE', KEYS[i], '(' .. group[8], '+', 'COUNT', 1) > 0 then return 1 end
  end
end
return 0"""


class Connection:
    """Send a command and wait for its reply. Errors of Redis are returned instead of raised."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def __call__(self, *words: Word) -> Any:
        return self.together(words)[0]

    def together(self, *commands: Sequence[Word]) -> list[Any]:
        """Send commands at once. Return all replies."""
        self._socket.sendall(b"".join(map(hiredis.pack_command, commands)))  # type: ignore[arg-type]
        return [self._reply() for _ in commands]

    def _reply(self) -> Any:
        while (reply := self._reader.gets()) is False:
            received = self._socket.recv(65_536)
            if not received:
                raise ConnectionError("the server has closed the connection")
            self._reader.feed(received)
        return reply

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class Board:
    """One group of one stream, with short ways to call the scripts."""

    def __init__(self, port: int, change: "Callable[[str, str], str] | None" = None) -> None:
        """``change`` turns the name and text of a script into the text to run, for example a mutant."""
        self.redis = Connection(port)
        self.keys: GroupKeys = group_keys("orders", "billing")
        self.lease = "{orders}:lease:billing"
        self.quarantine = "{orders}:quarantine:billing"
        self.journal_maxlen = 10_000
        self._change = change or (lambda _name, text: text)

    @cached_property
    def _digests(self) -> dict[str, bytes]:
        names = (*EFFECTS, *GROUP_EFFECTS)
        texts = {name: self._change(name, load_script("workers.protocol", name).source) for name in names}
        return {name: self.redis("SCRIPT", "LOAD", text) for name, text in texts.items()}

    @property
    def sources(self) -> tuple[str, str]:
        """The streams that entries are read from."""
        return self.keys.stream, self.keys.retry

    def prepare(self, policy: str, recovery: str, *, limit: int = 3) -> None:
        """Empty the server. Make the group with a steady beat and the lease `LEASE`."""
        seconds = int(self.redis("TIME")[0])
        self.redis.together(
            ("FLUSHALL",),
            *(("XGROUP", "CREATE", source, self.keys.group, "0", "MKSTREAM") for source in self.sources),
            ("HSET", self.keys.settings, "policy", policy, "visibility_ms", V_MS, "max_deliveries", limit,
             "recovery", recovery, "beat", (seconds - 1) * 1_000, "unbroken", (seconds - 3_600) * 1_000),
            ("SET", self.lease, LEASE),
        )  # fmt: skip

    def call(self, name: str, source: str, *argv: Word) -> Any:
        """Run a script. Return its reply or an error."""
        keys = self.keys
        names = [
            source,
            keys.stream,
            keys.retry,
            keys.dead,
            keys.settings,
            keys.schedule,
            self.quarantine,
            keys.journal,
        ]
        if name in GROUP_EFFECTS:
            names += [self.lease, keys.stream_schedule]
        digest = self._digests[name]
        return self.redis("EVALSHA", digest, len(names), *names, keys.group, self.journal_maxlen, *argv)

    def add(self, *fields: Word) -> bytes:
        """Append an entry. Return its ID."""
        added: bytes = self.redis("XADD", self.keys.stream, "*", *fields)
        return added

    def read(
        self, consumer: str, count: int = 10, *, claims: bool = False
    ) -> list[tuple[str, bytes, list[bytes], int]]:
        """Read new entries. Return source, entry ID, flat fields and times delivered of each.

        ``claims``: also those that are ready where they are, as a read with CLAIM does where the server knows it.
        """
        words = ("XREADGROUP", "GROUP", self.keys.group, consumer, "COUNT", count, "STREAMS", *self.sources, ">", ">")
        found = [
            (key.decode(), entry[0], entry[1], 1) for key, entries in self.redis(*words) or [] for entry in entries
        ]
        for source in self.sources if claims else ():
            for entry_id, _, idle_ms, times in self.pending(source)[:count]:
                if idle_ms >= READY_MS:
                    claimed = self.redis("XCLAIM", source, self.keys.group, consumer, 0, entry_id)
                    found += [(source, entry[0], entry[1], times + 1) for entry in claimed if entry]
        return found

    def pending(self, source: str, start: Word = "-", end: Word = "+") -> list[Row]:
        """Return rows of the pending entries list, as ID, consumer, idle ms and times delivered."""
        rows: list[Row] = self.redis("XPENDING", source, self.keys.group, start, end, 1_000)
        return rows

    def all_pending(self) -> list[list[Row]]:
        """Return the rows of each source."""
        return self.redis.together(*(("XPENDING", one, self.keys.group, "-", "+", 1_000) for one in self.sources))

    def age(self, live: Sequence[str] = (), ms: int = V_MS + 1) -> None:
        """Make entries overdue unless a live consumer holds them."""
        reply = self.redis("EVAL", _AGE, 2, *self.sources, self.keys.group, ms, *live)
        assert reply is None, reply

    def dead_letters(self) -> list[dict[bytes, bytes]]:
        """Return the fields of each dead letter."""
        return [fields_of(entry[1]) for entry in self.redis("XRANGE", self.keys.dead, "-", "+")]

    def scheduled(self, *, quarantined: bool) -> int:
        """Count what waits until it is due, or the quarantined jobs."""
        bounds = (2**52, "+inf") if quarantined else ("-inf", 2**52 - 1)
        count: int = self.redis("ZCOUNT", self.keys.schedule, *bounds)
        return count

    def has_work(self, *, with_copies: bool) -> bool:
        """Tell whether an entry is pending, scheduled or not yet delivered, or else a copy is left."""
        keys = self.keys
        reply = self.redis("EVAL", _HAS_WORK, 3, *self.sources, keys.schedule, keys.group, int(with_copies))
        assert isinstance(reply, int), reply
        return bool(reply)


def fields_of(flat: Sequence[Any]) -> dict[Any, Any]:
    """Return flat names and values as a dictionary."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
