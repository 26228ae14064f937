"""Which slot of a cluster a command belongs to, and which node has the slot. Pure."""

from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workers.protocol.address import Host

SLOTS = 16_384

_SECOND = frozenset({b"XINFO", b"XGROUP", b"OBJECT", b"MEMORY"})
"""Commands whose second word is a verb."""
_SCRIPTS = frozenset({b"EVAL", b"EVALSHA", b"EVAL_RO", b"EVALSHA_RO"})
_READS = frozenset({b"XREAD", b"XREADGROUP"})
_WITHOUT_KEY = frozenset({
    b"ACL", b"AUTH", b"CLIENT", b"CLUSTER", b"COMMAND", b"CONFIG", b"DBSIZE", b"HELLO", b"INFO", b"LATENCY", b"PING",
    b"PUBLISH", b"ROLE", b"SCAN", b"SCRIPT", b"SLOWLOG", b"SUBSCRIBE", b"TIME", b"WAIT",
})  # fmt: skip


def tag_of(key: bytes) -> bytes | None:
    """Return the hash tag of ``key``, between its first ``{`` and the next ``}``. None if that is empty."""
    _, brace, rest = key.partition(b"{")
    tag, closed, _ = rest.partition(b"}")
    return tag if brace and closed and tag else None


def slot_of(key: bytes) -> int:
    """Return the slot of ``key``, or of its hash tag."""
    return crc_hqx(tag_of(key) or key, 0) % SLOTS


def key_of(words: Sequence[Any]) -> bytes | None:
    """Return the first key of a command, or None. All keys of a call of ours share one slot."""
    said: list[Any] = [*_bytes(words[0]).split(), *words[1:]]
    command, rest = said[0].upper(), said[1:]
    if command in _WITHOUT_KEY:
        return None
    if command in _SCRIPTS:
        return _bytes(rest[2]) if int(rest[1]) else None
    if command in _READS:
        return _bytes(rest[next(at for at, word in enumerate(rest) if _bytes(word).upper() == b"STREAMS") + 1])
    at = 1 if command in _SECOND else 0
    return _bytes(rest[at]) if len(rest) > at else None


def _bytes(word: Any) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode(errors="surrogateescape")


@dataclass(frozen=True)
class SlotTable:
    """The owners of slots."""

    ranges: tuple[tuple[int, int, Host], ...] = ()
    """First and last slot, and the master that takes their writes."""
    nodes: frozenset[Host] = frozenset()
    """All that were named, replicas as well."""

    def owner(self, slot: int) -> Host | None:
        """Return the owner of ``slot``, or None."""
        return next((host for first, last, host in self.ranges if first <= slot <= last), None)

    @property
    def masters(self) -> frozenset[Host]:
        """All that have slots."""
        return frozenset(host for _, _, host in self.ranges)


def parse_slots(reply: Any, asked: Host) -> SlotTable:
    """Read what ``asked`` replied to CLUSTER SLOTS, in bytes. A node that does not know its own name leaves it out."""
    ranges, nodes = [], set()
    for first, last, *named in reply:
        hosts = [((host or b"").decode() or asked[0], int(port)) for host, port, *_ in named]
        ranges.append((int(first), int(last), hosts[0]))
        nodes.update(hosts)
    return SlotTable(tuple(ranges), frozenset(nodes))
