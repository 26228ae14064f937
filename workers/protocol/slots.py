"""Which slot of a cluster a command belongs to, and which node has the slot. Pure."""

from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workers.protocol.address import Host
from workers.protocol.keys import hash_tag

SLOTS = 16_384

_SECOND = frozenset({b"XINFO", b"XGROUP", b"OBJECT", b"MEMORY"})
"""Commands whose second word is a verb."""
_SCRIPTS = frozenset({b"EVAL", b"EVALSHA", b"EVAL_RO", b"EVALSHA_RO"})
_READS = frozenset({b"XREAD", b"XREADGROUP"})
_WITHOUT_KEY = frozenset({
    b"ACL", b"AUTH", b"CLIENT", b"CLUSTER", b"COMMAND", b"CONFIG", b"DBSIZE", b"HELLO", b"INFO", b"LATENCY", b"PING",
    b"PUBLISH", b"ROLE", b"SCAN", b"SCRIPT", b"SLOWLOG", b"SUBSCRIBE", b"TIME", b"WAIT",
})  # fmt: skip


def slot_of(key: bytes) -> int:
    """Return the slot of ``key``, or of its hash tag."""
    tag = hash_tag(key.decode("latin-1"))
    return crc_hqx(tag.encode("latin-1") if tag else key, 0) % SLOTS


def key_of(words: Sequence[Any]) -> bytes | None:
    """Return the first key of a command, or None. All keys of a call of ours share one slot."""
    split: list[Any] = [*_bytes(words[0]).split(), *words[1:]]
    command, rest = split[0].upper(), split[1:]
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
    """The owners of slots. A master that Sentinels name owns all of them."""

    ranges: tuple[tuple[int, int, Host], ...] = ()
    """First and last slot, and the node that takes their writes."""
    nodes: frozenset[Host] = frozenset()
    """All nodes that were named, replicas as well."""

    def owner(self, slot: int) -> Host | None:
        """Return the owner of ``slot``, or None."""
        return next((host for first, last, host in self.ranges if first <= slot <= last), None)

    @property
    def masters(self) -> frozenset[Host]:
        """All nodes that have slots."""
        return frozenset(host for _, _, host in self.ranges)


def parse_slots(reply: Any, asked: Host) -> SlotTable:
    """Read the reply of ``asked`` to CLUSTER SLOTS, in bytes. A node that does not know its own name leaves it out."""
    ranges, nodes = [], set()
    for first, last, *named in reply:
        hosts = [((host or b"").decode() or asked[0], int(port)) for host, port, *_ in named]
        ranges.append((int(first), int(last), hosts[0]))
        nodes.update(hosts)
    return SlotTable(tuple(ranges), frozenset(nodes))
