"""A stream, its groups, and their pending entries, with the methods that change them. Commands are read elsewhere."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

from tests.simulation.server.nodes import Nodes
from tests.simulation.server.replies import Reply
from tests.simulation.server.words import LAST_ID, id_text

ValueT = TypeVar("ValueT")
UNKNOWN = None
"""Entries read, of a group that has lost count."""


class ById(Generic[ValueT]):
    """A mapping from ID to value that keeps its IDs in order."""

    __slots__ = ("ids", "values")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.values: dict[int, ValueT] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, number: int) -> bool:
        return number in self.values

    def get(self, number: int) -> ValueT | None:
        """Return the value of an ID, or None."""
        return self.values.get(number)

    def put(self, number: int, value: ValueT) -> None:
        """Set the value of an ID."""
        if number not in self.values:
            ids = self.ids
            if not ids or ids[-1] < number:
                ids.append(number)
            else:
                ids.insert(bisect_left(ids, number), number)
        self.values[number] = value

    def remove(self, number: int) -> ValueT | None:
        """Remove an ID, and return its value, or None if it is missing."""
        value = self.values.pop(number, None)
        if value is not None:
            del self.ids[bisect_left(self.ids, number)]
        return value

    def drop_first(self, count: int) -> None:
        """Forget the first ``count`` IDs."""
        for number in self.ids[:count]:
            del self.values[number]
        del self.ids[:count]

    def between(self, start: int, end: int = LAST_ID, count: int = -1) -> list[int]:
        """Return the IDs from ``start`` to ``end``, at most ``count`` (below 0 means all)."""
        ids = self.ids
        first = bisect_left(ids, start)
        last = len(ids) if end >= LAST_ID else bisect_right(ids, end, lo=first) if end >= start else first
        return ids[first : last if count < 0 else min(last, first + count)]


_TOUCHES = count()


class Pending:
    """One delivery that is not settled."""

    __slots__ = ("_delivered_ms", "consumer", "times", "touched")

    def __init__(self, consumer: "Consumer | None", delivered_ms: int, times: int) -> None:
        self.consumer = consumer
        self.delivered_ms = delivered_ms
        self.times = times

    @property
    def delivered_ms(self) -> int:
        """When it was handed out last, or was said to be."""
        return self._delivered_ms

    @delivered_ms.setter
    def delivered_ms(self, value: int) -> None:
        self._delivered_ms = value
        self.touched = next(_TOUCHES)
        """Of what was handed out at the same moment, what was touched first is claimed first."""


class Consumer:
    """One consumer of a group."""

    __slots__ = ("active_ms", "name", "pending", "seen_ms")

    def __init__(self, name: bytes, seen_ms: int) -> None:
        self.name = name
        self.seen_ms = seen_ms
        self.active_ms = -1
        self.pending: ById[Pending] = ById()


class Group:
    """A consumer group, and its pending entries list."""

    __slots__ = ("consumers", "entries_read", "last_id", "pending")

    def __init__(self, last_id: int, entries_read: int | None) -> None:
        self.last_id = last_id
        self.entries_read = entries_read
        self.consumers: dict[bytes, Consumer] = {}
        self.pending: ById[Pending] = ById()

    def consumer(self, name: bytes, now_ms: int) -> Consumer:
        """Return a consumer, and create it if it is missing. It is seen now."""
        consumer = self.consumers.get(name)
        if consumer is None:
            consumer = self.consumers[name] = Consumer(name, now_ms)
        consumer.seen_ms = now_ms
        return consumer

    def sorted_consumers(self) -> Iterator[Consumer]:
        """Return the consumers by name, in the order of Redis."""
        return (self.consumers[name] for name in sorted(self.consumers))

    def hand_out(self, number: int, consumer: Consumer, now_ms: int) -> None:
        """Make an entry pending for ``consumer``. It is taken from its former owner (the group was set back)."""
        self.give(
            number, Pending(None, now_ms, 1) if number not in self.pending else self.pending.values[number], consumer
        )
        row = self.pending.values[number]
        row.delivered_ms, row.times = now_ms, 1

    def give(self, number: int, row: Pending, consumer: Consumer) -> None:
        """Make ``consumer`` the owner of a row, which may be new."""
        if row.consumer is not consumer:
            if row.consumer is not None:
                row.consumer.pending.remove(number)
            row.consumer = consumer
            consumer.pending.put(number, row)
        self.pending.put(number, row)

    def disown(self, number: int, row: Pending) -> None:
        """Remove the owner of a row (8.8)."""
        if row.consumer is not None:
            row.consumer.pending.remove(number)
            row.consumer = None

    def release(self, number: int) -> bool:
        """Remove a pending entry. Return whether it was there."""
        row = self.pending.remove(number)
        if row is None:
            return False
        if row.consumer is not None:
            row.consumer.pending.remove(number)
        return True

    def delete_consumer(self, name: bytes) -> int:
        """Remove a consumer, and all its entries. Return their number."""
        consumer = self.consumers.pop(name, None)
        if consumer is None:
            return 0
        for number in consumer.pending.ids:
            self.pending.remove(number)
        return len(consumer.pending)

    def copy(self) -> "Group":
        """Return the same again."""
        twin = Group(self.last_id, self.entries_read)
        for name, consumer in self.consumers.items():
            twin.consumers[name] = other = Consumer(name, consumer.seen_ms)
            other.active_ms = consumer.active_ms
            for number, row in consumer.pending.values.items():
                other.pending.values[number] = Pending(other, row.delivered_ms, row.times)
            other.pending.ids = consumer.pending.ids[:]
        twin.pending.ids = self.pending.ids[:]
        for number, row in self.pending.values.items():
            holder = twin.consumers[row.consumer.name] if row.consumer is not None else None
            twin.pending.values[number] = (
                holder.pending.values[number] if holder is not None else Pending(None, row.delivered_ms, row.times)
            )
        return twin


class Stream:
    """A stream. An entry has the form of XRANGE's answer, ``[ID, fields]``."""

    __slots__ = ("entries", "entries_added", "first_id", "groups", "last_id", "max_deleted_id", "nodes")

    def __init__(self) -> None:
        self.entries: ById[list[Reply]] = ById()
        self.groups: dict[bytes, Group] = {}
        self.nodes = Nodes()
        self.last_id = self.first_id = self.max_deleted_id = 0
        self.entries_added = 0

    @property
    def length(self) -> int:
        """Return how many entries there are. An empty stream is one all the same, so it has no `len`."""
        return len(self.entries.ids)

    def add(self, number: int, fields: list[bytes]) -> bytes:
        """Append an entry with an ID behind all others. Return the ID as text."""
        text = id_text(number)
        self.entries.ids.append(number)
        self.entries.values[number] = [text, [*fields]]
        self.nodes.add(number, fields)
        self.last_id = number
        self.entries_added += 1
        if len(self.entries.ids) == 1:
            self.first_id = number
        return text

    def delete(self, number: int) -> bool:
        """Delete one entry. Return whether it was there."""
        if self.entries.remove(number) is None:
            return False
        self.nodes.delete(number)
        self.max_deleted_id = max(self.max_deleted_id, number)
        self._learn_first()
        return True

    def trim(self, count: int) -> int:
        """Delete the first ``count`` entries."""
        if count > 0:
            self.entries.drop_first(count)
            self.nodes.cut(count)
            self._learn_first()
        return max(count, 0)

    def _learn_first(self) -> None:
        self.first_id = self.entries.ids[0] if self.entries.ids else 0

    def last_valid_id(self) -> int:
        """Return the last entry's ID, or 0 without one."""
        return self.entries.ids[-1] if self.entries.ids else 0

    def rows(self, ids: list[int]) -> list[Reply]:
        """Return entries as replies."""
        values = self.entries.values
        return [values[number] for number in ids]

    # ---- how far a group has come (7.0)
    def has_deletions_from(self, start: int) -> bool:
        """Tell whether an entry behind ``start`` may have been deleted."""
        if not self.entries.ids or not self.max_deleted_id or self.first_id > self.max_deleted_id:
            return False
        return start <= self.max_deleted_id

    def entries_up_to(self, number: int) -> int | None:
        """Return how many entries there ever were up to ``number``, where that can be known."""
        if not self.entries_added:
            return 0
        if not self.entries.ids and number <= self.last_id:
            return self.entries_added
        if number and number < self.max_deleted_id:
            return UNKNOWN
        if number == self.last_id:
            return self.entries_added
        if number > self.last_id:
            return UNKNOWN
        if not self.max_deleted_id or self.max_deleted_id < self.first_id:
            if number < self.first_id:
                return self.entries_added - self.length
            if number == self.first_id:
                return self.entries_added - self.length + 1
        return UNKNOWN

    def has_read(self, group: Group, number: int) -> None:
        """Move a group on to an entry that it is given now."""
        if number <= group.last_id:
            return
        if group.entries_read is not UNKNOWN and not self.has_deletions_from(number):
            group.entries_read += 1
        elif self.entries_added:
            group.entries_read = self.entries_up_to(number)
        group.last_id = number

    def lag(self, group: Group) -> int | None:
        """Return how many entries the group has still to read, where that can be known."""
        if not self.entries_added:
            return 0
        if group.entries_read is not UNKNOWN and not self.has_deletions_from(group.last_id):
            return self.entries_added - group.entries_read
        read = self.entries_up_to(group.last_id)
        return None if read is UNKNOWN else self.entries_added - read

    def copy(self) -> "Stream":
        """Return a copy. Entries never change, and are shared."""
        twin = Stream()
        twin.entries.ids, twin.entries.values = self.entries.ids[:], dict(self.entries.values)
        twin.groups = {name: group.copy() for name, group in self.groups.items()}
        twin.last_id, twin.first_id, twin.max_deleted_id = self.last_id, self.first_id, self.max_deleted_id
        twin.entries_added, twin.nodes = self.entries_added, self.nodes.copy()
        return twin
