"""MessagePack, as the cmsgpack of Redis writes and reads it."""

import struct
from collections.abc import Callable, Iterable
from typing import Any

MOST_NESTING = 16
Table = Any  # lupa's tables have no types


class BadMessageError(Exception):
    """The bytes are no MessagePack, or end too early."""


def pack(value: Any, items: Callable[[Table], Iterable[tuple[Any, Any]]], level: int = 0) -> bytes:
    """Return ``value``, a Lua value, packed. ``items`` gives a table's keys and values, in its order."""
    if isinstance(value, bytes):
        return _head(len(value), 0xA0, 32, b"\xd9", b"\xda", b"\xdb") + value
    if value is None or level == MOST_NESTING:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _double(value)
    pairs = list(items(value))
    if _is_array(pairs):
        by_index = dict(pairs)
        body = [pack(by_index[index], items, level + 1) for index in range(1, len(pairs) + 1)]
        return _head(len(body), 0x90, 16, None, b"\xdc", b"\xdd") + b"".join(body)
    parts = [pack(part, items, level + 1) for pair in pairs for part in pair]
    return _head(len(pairs), 0x80, 16, None, b"\xde", b"\xdf") + b"".join(parts)


def _is_array(pairs: list[tuple[Any, Any]]) -> bool:
    highest = 0
    for key, _ in pairs:
        if not isinstance(key, int) or isinstance(key, bool) or key <= 0:
            return False
        highest = max(highest, key)
    return highest == len(pairs)


def _head(size: int, short: int, limit: int, one: bytes | None, two: bytes, four: bytes) -> bytes:
    if size < limit:
        return bytes([short | size])
    if one is not None and size <= 0xFF:
        return one + bytes([size])
    return two + struct.pack(">H", size) if size <= 0xFFFF else four + struct.pack(">I", size)


def _integer(value: int) -> bytes:
    if -32 <= value <= 127:
        return struct.pack(">b", value)
    if value >= 0:
        for limit, head, kind in ((0xFF, b"\xcc", ">B"), (0xFFFF, b"\xcd", ">H"), (0xFFFFFFFF, b"\xce", ">I")):
            if value <= limit:
                return head + struct.pack(kind, value)
        return b"\xcf" + struct.pack(">Q", value) if value < 1 << 63 else _double(float(value))
    for limit, head, kind in ((1 << 7, b"\xd0", ">b"), (1 << 15, b"\xd1", ">h"), (1 << 31, b"\xd2", ">i")):
        if -limit <= value:
            return head + struct.pack(kind, value)
    return b"\xd3" + struct.pack(">q", value) if value >= -(1 << 63) else _double(float(value))


def _double(value: float) -> bytes:
    try:
        short = struct.pack(">f", value)
    except OverflowError:
        return b"\xcb" + struct.pack(">d", value)
    return b"\xca" + short if struct.unpack(">f", short)[0] == value else b"\xcb" + struct.pack(">d", value)


_FIXED: dict[int, tuple[str, int]] = {
    0xCC: (">B", 1), 0xCD: (">H", 2), 0xCE: (">I", 4), 0xCF: (">Q", 8),
    0xD0: (">b", 1), 0xD1: (">h", 2), 0xD2: (">i", 4), 0xD3: (">q", 8),
    0xCA: (">f", 4), 0xCB: (">d", 8),
}  # fmt: skip
_SIZED: dict[int, tuple[str, int, str]] = {
    0xD9: (">B", 1, "string"), 0xDA: (">H", 2, "string"), 0xDB: (">I", 4, "string"),
    0xC4: (">B", 1, "string"), 0xC5: (">H", 2, "string"), 0xC6: (">I", 4, "string"),
    0xDC: (">H", 2, "array"), 0xDD: (">I", 4, "array"),
    0xDE: (">H", 2, "map"), 0xDF: (">I", 4, "map"),
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


class Unpacker:
    """Reads values one after another."""

    def __init__(
        self,
        data: bytes,
        array: Callable[[list[Any]], Table],
        mapping: Callable[[list[tuple[Any, Any]]], Table],
    ) -> None:
        self._data = data
        self._at = 0
        self._array = array
        self._mapping = mapping

    def all_values(self) -> list[Any]:
        """Return everything. Raises BadMessageError."""
        values = []
        while self._at < len(self._data):
            values.append(self._value())
        return values

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise BadMessageError("Missing bytes in input.")
        self._at += count
        return taken

    def _number(self, kind: str, size: int) -> Any:
        return struct.unpack(kind, self._take(size))[0]

    def _value(self) -> Any:
        head = self._take(1)[0]
        if head <= 0x7F or head >= 0xE0:
            return head if head <= 0x7F else head - 0x100
        if head in _FIXED:
            return self._number(*_FIXED[head])
        if head in _CONSTANTS:
            return _CONSTANTS[head]
        if head in _SIZED:
            kind, size, what = _SIZED[head]
            return self._sized(what, self._number(kind, size))
        if head >= 0xC0:
            raise BadMessageError("Bad data format in input.")
        if head >= 0xA0:
            return self._take(head & 0x1F)
        return self._sized("array" if head >= 0x90 else "map", head & 0x0F)

    def _sized(self, what: str, size: int) -> Any:
        if what == "string":
            return self._take(size)
        if what == "array":
            return self._array([self._value() for _ in range(size)])
        return self._mapping([(self._value(), self._value()) for _ in range(size)])
