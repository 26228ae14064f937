"""The nodes of a stream in a server's memory. It shows where a stream is cut *about* somewhere.

Only whole nodes are cut off then, and a node is as long as its bytes and entries let it be.
"""

from bisect import bisect_right
from collections.abc import Sequence

from tests.simulation.server.words import LAST_SEQUENCE, SEQUENCE_BITS, is_integer

NODE_ENTRIES, NODE_BYTES = 100, 4096  # stream-node-max-entries, stream-node-max-bytes
_EMPTY_BYTES = 7
_INTEGERS = (
    (0, 127, 1),
    (-4096, 4095, 2),
    (-32768, 32767, 3),
    (-(1 << 23), (1 << 23) - 1, 4),
    (-(1 << 31), (1 << 31) - 1, 5),
)


class Node:
    """Entries that lie together."""

    __slots__ = ("dead", "last", "live", "names", "size", "start")

    def __init__(self, start: int, names: Sequence[bytes]) -> None:
        self.start = self.last = start
        self.live = self.dead = 0
        self.names = names
        self.size = _EMPTY_BYTES + 2 + 2 + 2 + _of_integer(len(names)) + sum(map(_of_word, names))

    def has_room(self, more: int) -> bool:
        """Tell whether an entry with so many bytes of words still fits."""
        return self.size + more < NODE_BYTES and self.live + self.dead < NODE_ENTRIES

    def add(self, number: int, words: Sequence[bytes]) -> None:
        """Append an entry."""
        names, values = words[::2], words[1::2]
        count = 3 + len(values)
        ms = (number >> SEQUENCE_BITS) - (self.start >> SEQUENCE_BITS)
        sequence = (number & LAST_SEQUENCE) - (self.start & LAST_SEQUENCE)
        size = 2 + _of_integer(ms) + _of_integer(sequence) + sum(map(_of_word, values))
        if names != self.names:
            count += len(names) + 1
            size += _of_integer(len(names)) + sum(map(_of_word, names))
        self.size += size + _of_integer(count)
        self.live += 1
        self.last = number

    def copy(self) -> "Node":
        """Return the same again."""
        twin = Node(self.start, self.names)
        twin.last, twin.live, twin.dead, twin.size = self.last, self.live, self.dead, self.size
        return twin


def _of_integer(number: int) -> int:
    for low, high, size in _INTEGERS:
        if low <= number <= high:
            return size + 1
    return 10


def _of_word(word: bytes) -> int:
    if is_integer(word):
        return _of_integer(int(word))
    size = len(word)
    size += 1 if size < 64 else 2 if size < 4096 else 5
    return size + (1 if size <= 127 else 2 if size < 16383 else 3 if size < 2097151 else 4)


class Nodes:
    """The nodes of a stream."""

    __slots__ = ("_nodes", "_starts")

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._starts: list[int] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, number: int, words: Sequence[bytes]) -> None:
        """Append an entry."""
        if not self._nodes or not self._nodes[-1].has_room(sum(map(len, words))):
            self._nodes.append(Node(number, words[::2]))
            self._starts.append(number)
        self._nodes[-1].add(number, words)

    def delete(self, number: int) -> None:
        """Mark an entry as deleted."""
        at = bisect_right(self._starts, number) - 1
        node = self._nodes[at]
        node.live, node.dead = node.live - 1, node.dead + 1
        if not node.live:
            del self._nodes[at], self._starts[at]

    def cut(self, count: int) -> None:
        """Delete the first entries, in whole nodes, and then from the next one."""
        whole = 0
        while whole < len(self._nodes) and self._nodes[whole].live <= count:
            count -= self._nodes[whole].live
            whole += 1
        del self._nodes[:whole], self._starts[:whole]
        if count:
            self._nodes[0].live -= count
            self._nodes[0].dead += count

    def in_whole_nodes(self, excess: int, before: int | None, limit: int) -> int:
        """Return how many entries may go node by node, at most ``excess``, or all before an ID. ``limit`` 0 is none."""
        gone = 0
        for node in self._nodes:
            keeps = node.last >= before if before is not None else gone + node.live > excess
            if keeps or (limit and gone + node.live > limit):
                break
            gone += node.live
        return gone

    def copy(self) -> "Nodes":
        """Return the same again."""
        twin = Nodes()
        twin._nodes, twin._starts = [node.copy() for node in self._nodes], self._starts[:]
        return twin
