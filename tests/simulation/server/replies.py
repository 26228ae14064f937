"""The answers of commands, and their form on the wire (RESP2).

A reply is an `int`, `bytes` (a bulk string), None (the null bulk string), a list of replies, or one of the few classes
here. Errors are raised by commands, and stand in lists (``EXEC``) as replies.
"""

from typing import Final, TypeAlias


class Status:
    """A simple string, for example ``+OK``."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text


class NullArray:
    """The answer of a read that found no entry in time."""

    __slots__ = ()


class Raw:
    """A script's reply, which has the form of the wire already."""

    __slots__ = ("wire",)

    def __init__(self, wire: bytes) -> None:
        self.wire = wire


class NoReply:
    """No answer now, because the client is blocked, or gets its messages by push."""

    __slots__ = ()


class ReplyError(Exception):
    """An error reply. Its text begins with a code."""

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self.text = text.encode() if isinstance(text, str) else text


Reply: TypeAlias = "int | bytes | list[Reply] | Status | NullArray | Raw | NoReply | ReplyError | None"

OK: Final = Status(b"OK")
NULL_ARRAY: Final = NullArray()
NO_REPLY: Final = NoReply()


def syntax_error() -> ReplyError:
    """Return what a command says of words that it does not understand."""
    return ReplyError("ERR syntax error")


def encode(reply: Reply) -> bytes:
    """Return ``reply`` as it goes over the wire."""
    parts: list[bytes] = []
    _append(reply, parts)
    return b"".join(parts)


def _append(reply: Reply, parts: list[bytes]) -> None:
    if isinstance(reply, bytes):
        parts.append(b"$%d\r\n%b\r\n" % (len(reply), reply))
    elif isinstance(reply, int):
        parts.append(b":%d\r\n" % reply)
    elif isinstance(reply, list):
        parts.append(b"*%d\r\n" % len(reply))
        for item in reply:
            _append(item, parts)
    else:
        parts.append(_encode_rare(reply))


def _encode_rare(reply: "Status | NullArray | Raw | NoReply | ReplyError | None") -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, Status):
        return b"+%b\r\n" % reply.text
    if isinstance(reply, Raw):
        return reply.wire
    if isinstance(reply, ReplyError):
        return b"-%b\r\n" % reply.text.replace(b"\r", b" ").replace(b"\n", b" ")
    if isinstance(reply, NullArray):
        return b"*-1\r\n"
    return b""
