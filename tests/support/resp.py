"""Frames RESP2 on asyncio streams: the ends of requests and replies, and the words of a request."""

import asyncio
from dataclasses import dataclass


class ProtocolError(Exception):
    """The bytes are no RESP2."""


@dataclass(frozen=True, slots=True)
class Request:
    """One command as it was on the wire, and its words."""

    raw: bytes
    words: tuple[bytes, ...]

    @property
    def command(self) -> bytes:
        """The command's name in upper case."""
        return self.words[0].upper() if self.words else b""


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Read one command. Raises IncompleteReadError at the stream's end, ProtocolError for other bytes."""
    head = await _read_line(reader)
    if head[:1] != b"*":
        raise ProtocolError(f"a request begins with {head!r}")
    raw, words = [head], []
    for _ in range(int(head[1:])):
        size = await _read_line(reader)
        if size[:1] != b"$":
            raise ProtocolError(f"a word of a request begins with {size!r}")
        word = await reader.readexactly(int(size[1:]) + 2)
        raw += size, word
        words.append(word[:-2])
    return Request(b"".join(raw), tuple(words))


async def read_reply(reader: asyncio.StreamReader) -> bytes:
    """Read one whole reply, nested arrays included. Raises as `read_request` does."""
    raw, missing = [], 1
    while missing:
        head = await _read_line(reader)
        raw.append(head)
        missing -= 1
        kind = head[:1]
        if kind == b"$" and head[1:2] != b"-":
            raw.append(await reader.readexactly(int(head[1:]) + 2))
        elif kind == b"*":
            missing += max(int(head[1:]), 0)
        elif kind not in b"+-:$":
            raise ProtocolError(f"a reply begins with {head!r}")
    return b"".join(raw)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\r\n"):
        raise asyncio.IncompleteReadError(line, None)
    return line
