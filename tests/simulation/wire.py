"""Requests and replies as they go over the wire, with their kinds."""

import re
from collections.abc import Sequence
from typing import Any

Word = bytes | str | int
_LINE = re.compile(rb"(user_script: ?)\d+")


class Simple(bytes):
    """A status, which is no bulk string."""


class Failure(bytes):
    """An error."""


NO_ARRAY = Simple(b"*-1")
Reply = Any


class Wire:
    """Takes bytes, and gives replies with their kinds."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Reply]:
        """Return the replies that are complete by now."""
        self._buffer += data
        replies, at = [], 0
        while at < len(self._buffer):
            try:
                reply, at = _parse(self._buffer, at)
            except EOFError:
                break
            replies.append(reply)
        self._buffer = self._buffer[at:]
        return replies


def _parse(data: bytes, at: int) -> tuple[Reply, int]:
    end = data.find(b"\r\n", at)
    if end < 0:
        raise EOFError
    kind, rest, at = data[at : at + 1], data[at + 1 : end], end + 2
    if kind in b"+-":
        return (Simple(rest) if kind == b"+" else Failure(_LINE.sub(rb"\1#", rest))), at
    number = int(rest)
    if kind == b":":
        return number, at
    if number < 0:
        return (None if kind == b"$" else NO_ARRAY), at
    if kind == b"$":
        if len(data) < at + number + 2:
            raise EOFError
        return data[at : at + number], at + number + 2
    items = []
    for _ in range(number):
        item, at = _parse(data, at)
        items.append(item)
    return items, at


def packed(words: Sequence[bytes]) -> bytes:
    """Return a request as it goes over the wire."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def as_bytes(word: Word) -> bytes:
    """Return a word of a command."""
    return word if isinstance(word, bytes) else str(word).encode()
