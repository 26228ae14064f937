"""All keys, their types, and when they expire."""

from typing import TypeAlias, TypeVar

from tests.simulation.server.ranking import SortedSet
from tests.simulation.server.replies import ReplyError
from tests.simulation.server.streams import Stream

Hash = dict[bytes, bytes]
Value: TypeAlias = bytes | Hash | SortedSet | Stream
ValueT = TypeVar("ValueT", bytes, Hash, SortedSet, Stream)
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
TYPE_NAMES: dict[type, bytes] = {bytes: b"string", dict: b"hash", SortedSet: b"zset", Stream: b"stream"}


class Keyspace:
    """The data of a server. Expired keys are missing for every reader."""

    def __init__(self) -> None:
        self.values: dict[bytes, Value] = {}
        self.expires: dict[bytes, int] = {}
        self.now_ms = 0

    def find(self, key: bytes) -> Value | None:
        """Return what a key holds, or None."""
        value = self.values.get(key)
        if value is not None and self.expires and self.expires.get(key, self.now_ms + 1) <= self.now_ms:
            self.remove(key)
            return None
        return value

    def typed(self, key: bytes, kind: type[ValueT]) -> ValueT | None:
        """Return what a key holds, or None. Raises ReplyError where that is of another type."""
        value = self.find(key)
        if value is None:
            return None
        if not isinstance(value, kind):
            raise ReplyError(WRONG_TYPE)
        return value

    def remove(self, key: bytes) -> bool:
        """Delete a key; tell whether it was there."""
        self.expires.pop(key, None)
        return self.values.pop(key, None) is not None

    def all_keys(self) -> list[bytes]:
        """Return the keys that are there."""
        return [key for key in list(self.values) if self.find(key) is not None]

    def clear(self) -> None:
        """Delete everything."""
        self.values.clear()
        self.expires.clear()

    def copy(self) -> "Keyspace":
        """Return the same again."""
        twin = Keyspace()
        twin.values = {key: value if isinstance(value, bytes) else value.copy() for key, value in self.values.items()}
        twin.expires, twin.now_ms = dict(self.expires), self.now_ms
        return twin
