"""The framing finds the end of requests and replies, however they are cut into packets."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.resp import ProtocolError, read_reply, read_request

ResultT = TypeVar("ResultT")

_scalars = (
    st.integers(-(2**63), 2**63 - 1).map(lambda number: b":%d\r\n" % number)
    | st.binary(max_size=20).map(lambda text: b"$%d\r\n%s\r\n" % (len(text), text))
    | st.sampled_from([b"+OK\r\n", b"-ERR no\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"$0\r\n\r\n"])
)
replies = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4).map(lambda parts: b"*%d\r\n" % len(parts) + b"".join(parts)),
    max_leaves=12,
)


def _read_all(
    read: Callable[[asyncio.StreamReader], Awaitable[ResultT]], packets: list[bytes], count: int
) -> list[ResultT]:
    async def main() -> list[ResultT]:
        reader = asyncio.StreamReader()

        async def feed() -> None:
            for packet in packets:
                reader.feed_data(packet)
                await asyncio.sleep(0)
            reader.feed_eof()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(feed())
            return [await read(reader) for _ in range(count)]

    with asyncio.Runner() as runner:
        return runner.run(main())


@given(expected=st.lists(replies, min_size=1, max_size=5), cut=st.integers(1, 40))
def test_replies_are_framed_one_by_one_however_they_arrive(expected: list[bytes], cut: int) -> None:
    wire = b"".join(expected)
    packets = [wire[i : i + cut] for i in range(0, len(wire), cut)]
    assert _read_all(read_reply, packets, len(expected)) == expected


@given(words=st.lists(st.binary(max_size=30), min_size=1, max_size=6), cut=st.integers(1, 40))
def test_a_request_is_read_with_its_words(words: list[bytes], cut: int) -> None:
    wire = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    (request,) = _read_all(read_request, [wire[i : i + cut] for i in range(0, len(wire), cut)], 1)
    assert (request.raw, request.words, request.command) == (wire, tuple(words), words[0].upper())


@pytest.mark.parametrize("wire", [b"GET key\r\n", b"*1\r\n:1\r\n", b"%1\r\n"])
def test_other_bytes_are_no_request(wire: bytes) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        _read_all(read_request, [wire], 1)
    assert caught.group_contains(ProtocolError)


def test_a_reply_that_ends_too_early_is_none() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        _read_all(read_reply, [b"*2\r\n:1\r\n$5\r\nab"], 1)
    assert caught.group_contains(asyncio.IncompleteReadError)
