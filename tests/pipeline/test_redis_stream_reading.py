"""Readers return the entries of streams on a real server, each once, with any cuts. The server does not change."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reaper.pipeline.redis_stream import RedisStreamError
from reaper.pipeline.redis_stream.positions import cuts_between, parse_id
from reaper.pipeline.redis_stream.ranges import PAGE_BYTES, PageSize
from tests.pipeline.streams import JOURNAL, add, add_at, connected, query, read_all, small_pages
from tests.support.servers import RedisServer

# The server is emptied by the test itself before each example.
pytestmark = pytest.mark.contract

EXAMPLES = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
PLACES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda id_: id_ > (0, 0)), max_size=30)


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [int(row["n"]) for row in found]


@given(
    st.tuples(st.integers(0, 9), st.integers(0, 9)), st.tuples(st.integers(0, 9), st.integers(0, 9)), st.integers(1, 5)
)
def test_cuts_lie_between_their_ends_in_order(one: tuple[int, int], other: tuple[int, int], parts: int) -> None:
    after, until = sorted((one, other))
    cuts = cuts_between(after, until, parts)
    assert cuts == sorted(set(cuts))
    assert len(cuts) < parts
    assert all(after < cut <= until for cut in cuts)


def test_entries_of_one_millisecond_are_cut_by_their_sequence() -> None:
    assert cuts_between((7, 0), (7, 100), 4) == [(7, 25), (7, 50), (7, 75)]


@EXAMPLES
@given(ids=PLACES, parts=st.integers(1, 5), page=st.integers(1, 7))
def test_the_ranges_of_a_batch_query_hold_what_xrange_returns(
    server: RedisServer, ids: list[tuple[int, int]], parts: int, page: int
) -> None:
    server.command("DEL", JOURNAL)
    add_at(server, sorted(set(ids)))
    with small_pages(page):
        found = read_all(server, partitions=parts)
    assert [row["id"] for row in found] == [f"{ms}-{seq}" for ms, seq in sorted(set(ids))]


@EXAMPLES
@given(ids=PLACES, parts=st.integers(1, 4), page=st.integers(1, 5), limit=st.integers(1, 9), again=st.booleans())
def test_the_batches_of_a_streaming_query_hold_what_xrange_returns(
    server: RedisServer, ids: list[tuple[int, int]], parts: int, page: int, limit: int, again: bool
) -> None:
    server.command("DEL", JOURNAL)
    expected = sorted(set(ids))
    add_at(server, expected)
    found: list[tuple[int, int]] = []
    with small_pages(page), query(server, maxEntriesPerTrigger=limit, partitions=parts) as running:
        running.start()
        while True:
            before = running.offset
            end = running.plan()
            if end == before:
                break
            read = running.read()
            if again:  # as after a crash: the same ends, in a process that has not planned them
                with query(server, checkpoint=running, partitions=parts) as other:
                    other.planned = list(other.reader.partitions(before, end))  # type: ignore[arg-type]
                    assert other.read() == read
            assert len(read) <= limit
            found += [parse_id(row["id"]) for row in read]
            running.offset = end
    assert found == expected


def test_a_batch_query_reads_the_streams_of_all_patterns(server: RedisServer) -> None:
    for stream in ("{a}:journal", "{b}:journal", "c", "d", "{a}:dead", "x,y"):
        add(server, 1, stream=stream)
    server.command("SET", "e:journal", "no stream")
    found = read_all(server, streamPattern="*:journal, *:dead, c, x?y")
    assert sorted(row["stream"] for row in found) == ["c", "x,y", "{a}:dead", "{a}:journal", "{b}:journal"]
    assert read_all(server, streamPattern="nothing:*") == []


def test_an_error_of_redis_is_a_sentence(server: RedisServer) -> None:
    add(server, 1)
    with query(server) as running:
        running.batch()
        server.command("DEL", JOURNAL)
        server.command("SET", JOURNAL, "text")
        with pytest.raises(RedisStreamError, match=f"Redis at {server.url} rejected a call: .*WRONGTYPE"):
            running.batch()


def test_pages_grow_with_what_is_known_of_the_entries() -> None:
    size, asked = PageSize(), []
    for large in (False,) * 4 + (True,) * 2:
        asked.append(size.entries)
        size.learn([(b"1-0", {b"load": b"x" * (50_000 if large else 100)})] * size.entries)
    assert asked == [1, 32, 1_000, 1_000, 1_000, 19]


def test_a_huge_entry_makes_pages_small_until_it_is_long_ago() -> None:
    small, large = (b"1-0", {b"load": b"x" * 100}), (b"1-0", {b"load": b"x" * 5_000_000})
    size, asked = PageSize(), []
    size.learn([large])
    for _ in range(20):
        asked.append(size.entries)
        size.learn([small] * size.entries)
    assert (asked[0], asked[1], asked[-1]) == (1, 1, 1_000)
    assert asked == sorted(asked)


def test_large_entries_are_read_and_walked_to_in_small_pages(server: RedisServer) -> None:
    with connected(server) as client:
        for number in range(1, 301):
            client.xadd(JOURNAL, {"n": number, "load": b"x" * 50_000}, id=f"{number}-0")
        client.config_resetstat()
        assert numbers(read_all(server)) == list(range(1, 301))
        assert client.info("commandstats")["cmdstat_xrange"]["calls"] >= 300 * 50_000 / PAGE_BYTES
        with query(server, maxEntriesPerTrigger=150) as running:
            running.start()
            client.config_resetstat()
            running.plan()
            assert client.info("commandstats")["cmdstat_xrange"]["calls"] >= 150 * 50_000 / PAGE_BYTES
            assert len(running.read()) == 150


def test_nothing_on_the_server_changes(server: RedisServer) -> None:
    add(server, *range(1, 50))
    before = server.command("DUMP", JOURNAL)
    server.command("CONFIG", "RESETSTAT")
    with small_pages(), query(server, maxEntriesPerTrigger=20, partitions=2, streamPattern="j*") as running:
        assert len(running.batch() + running.batch() + running.batch()) == 49
    with connected(server) as client:
        asked = {name.removeprefix("cmdstat_").partition("|")[0] for name in client.info("commandstats")}
    assert server.command("DUMP", JOURNAL) == before
    ours = {"config", "info", "dump", "client", "select", "hello"}
    assert asked - ours <= {"xrange", "xinfo", "scan", "multi", "exec"}


# ---- fields


def write_fields(server: RedisServer, *entries: list[bytes]) -> None:
    for entry in entries:
        server.command("XADD", JOURNAL, "*", *entry)


def test_entries_may_have_different_fields_and_of_one_name_the_last_counts(server: RedisServer) -> None:
    write_fields(server, [b"a", b"1"], [b"b", b"2", b"c", b"3"], [b"n", b"1", b"n", b"2"])
    assert [row["fields"] for row in read_all(server)] == [[("a", "1")], [("b", "2"), ("c", "3")], [("n", "2")]]


def test_bytes_that_are_no_text_are_escaped(server: RedisServer) -> None:
    write_fields(server, [b"n\xff", b"caf\xe9 \xe2\x82\xac"])
    assert read_all(server)[0]["fields"] == [("n\\xff", "caf\\xe9 €")]


def test_a_stream_whose_name_is_no_text_is_read(server: RedisServer) -> None:
    server.command("XADD", b"\xffs", "1-0", "n", "1")
    assert [row["stream"] for row in read_all(server, streamPattern="*s")] == ["\\xffs"]
    with query(server, streamPattern="*s") as running:
        assert running.batch() == [1]
        assert json.loads(json.dumps(running.offset)) == running.offset
