"""Entries are read defensively, in every shape of a reply."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.asyncio import Redis

from tests.support.servers import RedisServer
from workers.protocol.connection import reader_client
from workers.protocol.errors import UnexpectedReplyError
from workers.protocol.messages import (
    Metadata,
    entry_ms,
    entry_order,
    on_one_line,
    pair_up,
    parse_read_reply,
    read_metadata,
    text,
    whole_number,
)

ID = b"1700000000001-7"


def test_a_bare_entry_is_a_job_by_itself() -> None:
    assert read_metadata(ID, [(b"n", b"1")]) == Metadata(ID, 0, 0, 1_700_000_000_001, 0)


def test_reserved_fields_are_read_and_the_last_of_a_name_counts() -> None:
    pairs = [
        (b"reaper.job", b"A"),
        (b"reaper.deliveries", b"2"),
        (b"reaper.generation", b"1"),
        (b"reaper.first_ms", b"5"),
        (b"reaper.visibility_ms", b"9"),
        (b"reaper.job", b"B"),
    ]
    assert read_metadata(ID, pairs) == Metadata(b"B", 2, 1, 5, 9)


@pytest.mark.parametrize("job", [b"", b"x" * 257, b"a,b", b"a\n", b"\x00", b"\x7f"])
def test_a_job_id_that_cannot_be_one_is_replaced_by_the_entry_id(job: bytes) -> None:
    assert read_metadata(ID, [(b"reaper.job", job)]).job_id == ID
    for fine in (b"x", b"x" * 256):
        assert read_metadata(ID, [(b"reaper.job", fine)]).job_id == fine


NUMBERS = ("deliveries", "generation", "first_ms", "visibility_ms", "timeout_ms", "copies", "waits")


def test_each_number_is_read_from_the_field_of_its_name_and_is_absent_if_it_is_none() -> None:
    pairs = [(b"reaper." + name.encode(), b"%d" % value) for value, name in enumerate(NUMBERS, start=201)]
    assert [getattr(read_metadata(ID, pairs), name) for name in NUMBERS] == list(range(201, 208))
    pairs = [(b"reaper." + name.encode(), b"many") for name in NUMBERS]
    assert read_metadata(ID, pairs) == read_metadata(ID, [])


@pytest.mark.parametrize("value", [None, b"", b"-1", b"1.5", b"1e3", b" 1", b"0x1", b"\xc2\xb2", b"9" * 16])
def test_what_is_no_whole_number_reads_as_the_default(value: bytes | None) -> None:
    assert whole_number(value, 42) == 42
    assert whole_number(b"007", 0) == 7


@given(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)))
def test_the_time_of_an_entry_id_is_its_first_part(parts: tuple[int, int]) -> None:
    one = "{}-{}".format(*parts)
    assert entry_ms(one) == entry_ms(one.encode()) == parts[0]


ids = st.builds(b"%d-%d".__mod__, st.tuples(st.integers(0, 120), st.integers(0, 120)))


@given(st.lists(ids))
@example([b"1-10", b"2-0"])
def test_entry_ids_of_any_form_are_sorted_as_redis_sorts_them(some: list[bytes]) -> None:
    assert sorted(some, key=entry_order) == sorted(some, key=lambda one: [int(part) for part in one.split(b"-")])


@given(st.binary())
def test_text_never_fails_and_keeps_what_is_text(value: bytes) -> None:
    shown = text(value)
    assert (text(shown), text(7)) == (shown, "7")
    assert shown.isascii() or "\\x" in shown or shown.encode() == value


def test_a_log_line_shows_what_is_printable_and_escapes_the_rest() -> None:
    assert on_one_line("order 7 \u00e9") == on_one_line("order 7 \u00e9".encode()) == "order 7 \u00e9"
    assert on_one_line(b"a\nb\x1b[31m\xff") == "a\\nb\\x1b[31m\\xff"


def test_fields_pair_up_with_duplicates_in_order() -> None:
    assert pair_up([b"n", b"1", b"n", b"2"]) == [(b"n", b"1"), (b"n", b"2")]
    with pytest.raises(ValueError, match="shorter"):
        pair_up([b"n"])


FLAT = [b"n", b"1", b"n", b"2", b"\xff\x00", b""]
READ = [[b"orders", [[ID, FLAT], [b"1-1", None]]]]


def test_a_read_reply_keeps_every_field() -> None:
    assert parse_read_reply(READ) == [(b"orders", ID, FLAT, 0, 0), (b"orders", b"1-1", None, 0, 0)]


@pytest.mark.parametrize("reply", [None, [], [[b"orders", []]]])
def test_an_empty_reply_has_no_entries(reply: Any) -> None:
    assert parse_read_reply(reply) == []


@pytest.mark.parametrize("reply", [5, [b"orders"], [[b"orders", 7]], [[b"orders", [[ID]]]], b"text"])
def test_a_reply_that_no_server_gives_is_an_error(reply: Any) -> None:
    with pytest.raises(UnexpectedReplyError, match="unexpected reply to XREADGROUP"):
        parse_read_reply(reply)


@pytest.fixture
async def reader(server: RedisServer, _as_new: None) -> AsyncIterator[Redis]:
    """A reader of ours."""
    client = reader_client(server.url)
    yield client
    await client.aclose()


@pytest.mark.anyio
async def test_a_real_reply_keeps_every_field_and_marks_deleted_payloads(client: Redis, reader: Redis) -> None:
    await client.execute_command("XADD", "orders", ID, *FLAT)
    await client.execute_command("XADD", "orders", "1700000000002-0", "n", "1")
    await client.xgroup_create("orders", "billing", "0")
    reply = await reader.xreadgroup("billing", "w", {"orders": ">"}, block=100)
    assert parse_read_reply(reply)[0] == (b"orders", ID, FLAT, 0, 0)
    await client.xdel("orders", "1700000000002-0")
    history = await reader.xreadgroup("billing", "w", {"orders": "0"})
    assert [flat for _, _, flat, _, _ in parse_read_reply(history)] == [FLAT, None]
    assert parse_read_reply(await reader.xreadgroup("billing", "w", {"orders": ">"}, block=1)) == []
