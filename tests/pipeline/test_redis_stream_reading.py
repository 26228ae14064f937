"""What readers return of streams on a real server: everything, once, whatever the cuts; and nothing on it changes."""

import gc
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, MapType, StringType, StructType

from reaper.pipeline.redis_stream import RedisStreamError
from reaper.pipeline.redis_stream.columns import gc_paused
from reaper.pipeline.redis_stream.positions import cuts_between, parse_id
from reaper.pipeline.redis_stream.ranges import PAGE_BYTES, PageSize, StreamRange, split
from tests.pipeline.streams import JOURNAL, add, add_at, batch_reader, connected, query, read_all, rows
from tests.support.servers import RedisServer

# The server is emptied by the test itself before each example.
pytestmark = pytest.mark.contract

EXAMPLES = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
PLACES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda id_: id_ > (0, 0)), max_size=30)


def numbers(found: list[dict[str, str]]) -> list[int]:
    return [int(row["n"]) for row in found]


# ---- cuts


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


def test_a_range_is_split_before_the_entries_given() -> None:
    whole = StreamRange("s", (0, 0), (9, 0), added=0, initial=True)
    assert split(whole, [(4, 0), (7, 5)]) == [
        StreamRange("s", (0, 0), (3, 2**64 - 1), added=0, initial=True),
        StreamRange("s", (3, 2**64 - 1), (7, 4), opens_with=(4, 0)),
        StreamRange("s", (7, 4), (9, 0), opens_with=(7, 5)),
    ]


# ---- everything, once


@EXAMPLES
@given(ids=PLACES, parts=st.integers(1, 5), page=st.integers(1, 7), batch=st.integers(1, 9))
def test_the_ranges_of_a_batch_query_hold_what_xrange_returns(
    server: RedisServer, ids: list[tuple[int, int]], parts: int, page: int, batch: int
) -> None:
    server.command("DEL", JOURNAL)
    add_at(server, sorted(set(ids)))
    found = read_all(server, partitions=parts, pageSize=page, batchSize=batch, failOnMissing="false")
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
    given_to_both: dict[str, Any] = {"partitions": parts, "pageSize": page, "failOnMissing": "false"}
    with query(server, maxEntriesPerTrigger=limit, **given_to_both) as running:
        running.start()
        while True:
            before = running.offset
            end = running.plan()
            if end == before:
                break
            read = running.read()
            if again:  # as after a crash: the same ends, in a process that has not planned them
                with query(server, checkpoint=running, **given_to_both) as other:
                    other.planned = list(other.reader.partitions(before, end))  # type: ignore[arg-type]
                    assert other.read() == read
            assert len(read) <= limit
            found += [parse_id(row["id"]) for row in read]
            running.offset = end
    assert found == expected


def test_bounds_of_a_batch_query_are_those_of_xrange(server: RedisServer) -> None:
    add(server, 1, 2, 3, 4, 5)
    assert numbers(read_all(server, startingId="2-0", endingId="4-0")) == [2, 3, 4]
    assert numbers(read_all(server, startingId="(2-0", endingId="(4-0")) == [3]
    assert numbers(read_all(server, startingId="2", endingId="4")) == [2, 3, 4]
    assert numbers(read_all(server, startingId="latest")) == []
    assert numbers(read_all(server, startingId="6")) == []


def test_a_batch_query_ends_before_a_time(server: RedisServer) -> None:
    add_at(server, [(1, 0), (2, 0), (2, 7), (3, 0)])
    assert numbers(read_all(server, startingTimestamp=2, endingTimestamp=3)) == [2, 2]
    assert numbers(read_all(server, endingTimestamp=0)) == []


def test_each_stream_may_have_bounds_of_its_own(server: RedisServer) -> None:
    for stream in ("a", "b", "c"):
        add(server, 1, 2, 3, stream=stream)
    found = read_all(server, stream="a,b,c", startingId='{"a": "2-0", "b": "latest"}', endingTimestamp='{"c": 2}')
    assert [(row["stream"], row["n"]) for row in found] == [("a", "2"), ("a", "3"), ("c", "1")]


def test_a_batch_query_reads_all_streams_of_a_list_and_of_patterns(server: RedisServer) -> None:
    for stream in ("{a}:journal", "{b}:journal", "c", "d", "{a}:dead"):
        add(server, 1, stream=stream)
    server.command("SET", "e:journal", "no stream")
    found = read_all(server, stream="c", streamPattern="*:journal, *:dead")
    assert sorted(row["stream"] for row in found) == ["c", "{a}:dead", "{a}:journal", "{b}:journal"]


def test_there_may_be_no_stream(server: RedisServer) -> None:
    assert read_all(server, streamPattern="nothing:*") == []
    assert read_all(server, stream="nothing", failOnMissing="false") == []


def test_a_stream_that_is_named_and_not_there_is_an_error(server: RedisServer) -> None:
    add(server, 1, stream="a")
    add(server, 2, stream="x,y")
    with pytest.raises(RedisStreamError, match=r"there is no stream nothing\. Option failOnMissing=false"):
        read_all(server, stream="nothing")
    with pytest.raises(RedisStreamError, match=r"there is no stream b, c\. Names are separated by commas"):
        read_all(server, stream="b,a,c")
    with pytest.raises(RedisStreamError, match=r"one that has a comma itself is read by streamPattern, with \?"):
        read_all(server, stream="x,y")
    assert numbers(read_all(server, streamPattern="x?y")) == [2]
    assert numbers(read_all(server, stream="b,a,c", failOnMissing="false")) == [1]
    with (
        query(server, stream="nothing") as running,
        pytest.raises(RedisStreamError, match="there is no stream nothing"),
    ):
        running.start()


def test_reading_begins_at_a_time(server: RedisServer) -> None:
    noon_ms = 1_795_000_000_000  # 2026-11-18T11:06:40Z
    add_at(server, [(noon_ms - 1, 7), (noon_ms, 0), (noon_ms, 1), (noon_ms + 5, 0)])
    for noon in (str(noon_ms), "2026-11-18T11:06:40Z", "2026-11-18T12:06:40.000+01:00"):
        found = read_all(server, startingTimestamp=noon)
        assert [row["id"] for row in found] == [f"{noon_ms}-0", f"{noon_ms}-1", f"{noon_ms + 5}-0"]


def test_the_time_of_an_entry_is_a_column(server: RedisServer) -> None:
    add_at(server, [(1_795_000_000_123, 4), (300_000_000_000_000, 0)])
    schema = StructType().add("timestamp", "timestamp").add("n", "string").add("id", "string")
    first, last = read_all(server, schema)
    assert first["timestamp"] == datetime(2026, 11, 18, 11, 6, 40, 123_000, tzinfo=UTC)
    assert last["timestamp"] is None  # after the year 9999
    as_map = StructType().add("timestamp", "timestamp").add("fields", MapType(StringType(), StringType()))
    assert read_all(server, as_map)[0]["fields"] == [("n", "1795000000123")]


def test_a_field_called_timestamp_is_read_as_one(server: RedisServer) -> None:
    server.command("XADD", JOURNAL, "1-0", "timestamp", "noon")
    assert read_all(server, StructType().add("timestamp", "string")) == [{"timestamp": "noon"}]


def test_a_key_that_is_no_stream_is_named(server: RedisServer) -> None:
    server.command("SET", JOURNAL, "text")
    with pytest.raises(RedisStreamError, match=r"XINFO STREAM journal: WRONGTYPE"):
        read_all(server)


def test_pages_grow_with_what_is_known_of_the_entries() -> None:
    size, asked = PageSize(1_000), []
    for large in (False,) * 4 + (True,) * 2:
        asked.append(size.entries)
        size.learn([[b"1-0", [b"load", b"x" * (50_000 if large else 100)]]] * size.entries)
    assert asked == [1, 32, 1_000, 1_000, 1_000, 19]
    assert 40_000 < size.entry_bytes < 60_000


def test_pages_stay_small_where_some_entries_are_far_larger_than_others() -> None:
    """But for the first page with large ones: nobody knows before it has come."""
    small, large = [b"1-0", [b"load", b"x" * 100]], [b"1-0", [b"load", b"x" * 5_000_000]]
    waiting = ([small] * 99 + [large]) * 100
    size, pages = PageSize(1_000), []
    while waiting:
        page, waiting = waiting[: size.entries], waiting[size.entries :]
        pages.append(page)
        size.learn(page)
    held = [sum(entry is large for entry in page) for page in pages]
    assert sorted(held)[-2:] == [2, 10], "a page of 1,000, and then one or two at a time"
    assert len(pages) < 100 * 10, "and pages grow between them"
    for _ in range(20):
        size.learn([small] * size.entries)
    assert size.entries == 1_000, "what was long ago is forgotten"


def test_a_limited_batch_is_walked_to_in_small_pages_too(server: RedisServer) -> None:
    with connected(server) as client:
        for number in range(1, 201):
            client.xadd(JOURNAL, {"n": number, "load": b"x" * 50_000}, id=f"{number}-0")
        with query(server, maxEntriesPerTrigger=150) as running:
            running.start()
            client.config_resetstat()
            running.plan()
            calls = client.info("commandstats")["cmdstat_xrange"]["calls"]
            assert len(running.read()) == 150
    assert calls >= 150 * 50_000 / PAGE_BYTES


def test_large_entries_are_read_in_small_pages(server: RedisServer) -> None:
    with connected(server) as client:
        for number in range(1, 301):
            client.xadd(JOURNAL, {"n": number, "load": b"x" * 50_000}, id=f"{number}-0")
    server.command("CONFIG", "RESETSTAT")
    assert numbers(read_all(server)) == list(range(1, 301))
    with connected(server) as client:
        calls = client.info("commandstats")["cmdstat_xrange"]["calls"]
    assert calls >= 200 * 50_000 / PAGE_BYTES


def test_nothing_on_the_server_changes(server: RedisServer) -> None:
    add(server, *range(1, 50))
    before = server.command("DUMP", JOURNAL)
    server.command("CONFIG", "RESETSTAT")
    with query(server, maxEntriesPerTrigger=20, partitions=2, streamPattern="j*") as running:
        assert len(running.batch() + running.batch() + running.batch()) == 49
    with connected(server) as client:
        asked = {name.removeprefix("cmdstat_").partition("|")[0] for name in client.info("commandstats")}
    assert server.command("DUMP", JOURNAL) == before
    assert asked - {"config", "info", "dump", "client", "select", "hello"} <= {
        "xrange",
        "xinfo",
        "scan",
        "multi",
        "exec",
    }


# ---- columns

TEXT_AND_BYTES = StructType().add("n", "string").add("raw", "binary")


def write_fields(server: RedisServer, *entries: list[bytes]) -> None:
    for entry in entries:
        server.command("XADD", JOURNAL, "*", *entry)


def test_fields_that_an_entry_lacks_are_null(server: RedisServer) -> None:
    write_fields(server, [b"n", b"1"], [b"raw", b"2"], [b"n", b"3", b"raw", b"4", b"more", b"5"])
    assert read_all(server, TEXT_AND_BYTES) == [
        {"n": "1", "raw": None},
        {"n": None, "raw": b"2"},
        {"n": "3", "raw": b"4"},
    ]


def test_a_column_that_no_entry_has_is_null(server: RedisServer) -> None:
    write_fields(server, [b"other", b"1"], [b"other", b"2"])
    assert read_all(server, TEXT_AND_BYTES) == [{"n": None, "raw": None}] * 2


@pytest.mark.parametrize("entry", [[b"n", b"1", b"n", b"2"], [b"x", b"0", b"n", b"1", b"n", b"2"]])
def test_of_fields_of_one_name_the_last_counts(server: RedisServer, entry: list[bytes]) -> None:
    write_fields(server, entry)
    assert read_all(server, StructType().add("n", "string")) == [{"n": "2"}]
    as_map = StructType().add("fields", MapType(StringType(), StringType()))
    assert dict(read_all(server, as_map)[0]["fields"])["n"] == "2"
    assert json.loads(read_all(server, StructType().add("f", "string"), fieldsAs="json")[0]["f"])["n"] == "2"


@pytest.mark.parametrize("neighbour", [[b"n", b"fine", b"raw", b"1"], [b"only", b"this"]])
def test_bytes_that_are_no_text_are_escaped_and_kept_in_binary_columns(
    server: RedisServer, neighbour: list[bytes]
) -> None:
    write_fields(server, [b"n", b"caf\xe9 \xe2\x82\xac", b"raw", b"\xff\x00"], neighbour)
    assert read_all(server, TEXT_AND_BYTES)[0] == {"n": "caf\\xe9 €", "raw": b"\xff\x00"}
    escaped = StructType().add("fields", MapType(StringType(), StringType()))
    assert dict(read_all(server, escaped)[0]["fields"]) == {"n": "caf\\xe9 €", "raw": "\\xff\x00"}
    lossless = StructType().add("fields", MapType(StringType(), BinaryType()))
    assert dict(read_all(server, lossless)[0]["fields"]) == {"n": b"caf\xe9 \xe2\x82\xac", "raw": b"\xff\x00"}
    as_json = read_all(server, StructType().add("fields", "string"), fieldsAs="json")
    assert json.loads(as_json[0]["fields"]) == {"n": "caf\\xe9 €", "raw": "\\xff\x00"}


def test_a_stream_whose_name_is_no_text_is_read(server: RedisServer) -> None:
    server.command("XADD", b"\xffs", "1-0", "n", "1")
    found = read_all(server, streamPattern="*s")
    assert found == [{"stream": "\\xffs", "id": "1-0", "n": "1"}]
    with query(server, streamPattern="*s") as running:
        assert running.batch() == [1]
        assert json.loads(json.dumps(running.offset)) == running.offset


def test_maps_of_entries_with_different_fields(server: RedisServer) -> None:
    write_fields(server, [b"a", b"1"], [b"b", b"2", b"c", b"3"])
    as_map = StructType().add("id", "string").add("all", MapType(StringType(), StringType()))
    assert [row["all"] for row in read_all(server, as_map)] == [[("a", "1")], [("b", "2"), ("c", "3")]]


def test_the_garbage_collector_is_as_it_was(server: RedisServer) -> None:
    add(server, *range(1, 30))
    reader = batch_reader(server, batchSize=10, pageSize=10)
    batches = reader.read(reader.partitions()[0])
    next(batches)
    assert gc.isenabled()
    batches.close()  # type: ignore[attr-defined]
    assert gc.isenabled()
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
        assert len(rows(reader, reader.partitions())) == 29
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_one_map_among_the_columns_holds_the_other_fields(server: RedisServer) -> None:
    write_fields(server, [b"n", b"1", b"rest", b"2", b"x", b"3"], [b"n", b"4"], [b"y", b"5"])
    schema = StructType().add("n", "string").add("rest", MapType(StringType(), StringType()))
    assert [(row["n"], dict(row["rest"])) for row in read_all(server, schema)] == [
        ("1", {"rest": "2", "x": "3"}),
        ("4", {}),
        (None, {"y": "5"}),
    ]
    server.command("XTRIM", JOURNAL, "MAXLEN", "=", 0)
    write_fields(server, [b"n", b"1"], [b"n", b"2"])
    assert [(row["n"], row["rest"]) for row in read_all(server, schema)] == [("1", []), ("2", [])]


# ---- names by Spark's rules


@pytest.mark.parametrize("shapes", ["alike", "different"])
def test_names_of_columns_are_in_any_case_and_a_field_of_the_very_name_goes_first(
    server: RedisServer, shapes: str
) -> None:
    with connected(server) as client:
        client.xadd(JOURNAL, {"orderId": "1", "total": "3", "Total": "2"}, id="1-0")
        client.xadd(JOURNAL, {"orderId": "4", ("total" if shapes == "alike" else "x"): "6", "Total": "5"}, id="2-0")
    schema = StructType().add("ID", "string").add("Stream", "string").add("orderid", "string").add("total", "string")
    found = [tuple(row.values()) for row in read_all(server, schema)]
    assert found == [("1-0", JOURNAL, "1", "3"), ("2-0", JOURNAL, "4", "6" if shapes == "alike" else "5")]


def test_fields_that_differ_in_case_only_can_be_told_apart(server: RedisServer) -> None:
    with connected(server) as client:
        client.xadd(JOURNAL, {"ID": "7", "n": "1"}, id="1-0")
    schema = StructType().add("id", "string").add("ID", "string").add("n", "string").add("N", "string")
    assert [tuple(row.values()) for row in read_all(server, schema, caseSensitive="true")] == [("1-0", "7", "1", None)]


def test_the_map_of_other_fields_lacks_what_a_column_holds_in_whatever_case(server: RedisServer) -> None:
    with connected(server) as client:
        client.xadd(JOURNAL, {"Kind": "a", "kind": "b", "X": "1"})
        client.xadd(JOURNAL, {"Kind": "c"})
    schema = StructType().add("kind", "string").add("rest", MapType(StringType(), StringType()))
    assert [(row["kind"], dict(row["rest"])) for row in read_all(server, schema)] == [
        ("b", {"Kind": "a", "X": "1"}),
        ("c", {}),
    ]


# ---- types

TYPED = (
    StructType()
    .add("id", "string")
    .add("n", "integer")
    .add("price", "decimal(10,2)")
    .add("ratio", "double")
    .add("paid", "boolean")
    .add("day", "date")
    .add("at", "timestamp")
)


def test_fields_are_read_as_the_types_that_are_declared(server: RedisServer) -> None:
    with connected(server) as client:
        client.xadd(
            JOURNAL,
            {
                "n": "-7",
                "price": "12.50",
                "ratio": "1e-3",
                "paid": "true",
                "day": "2026-11-20",
                "at": "2026-11-20T16:04:00+01:00",
            },
            id="1-0",
        )
        client.xadd(JOURNAL, {"n": "8"}, id="2-0")
    assert [tuple(row.values()) for row in read_all(server, TYPED)] == [
        ("1-0", -7, Decimal("12.50"), 0.001, True, date(2026, 11, 20), datetime(2026, 11, 20, 15, 4, tzinfo=UTC)),
        ("2-0", 8, None, None, None, None, None),
    ]


MALFORMED = {3: "x", 6: "99999999999", 7: ""}


def add_some_malformed(server: RedisServer) -> None:
    with connected(server) as client, client.pipeline() as pipeline:
        for number in range(10):
            pipeline.xadd(JOURNAL, {"n": MALFORMED.get(number, str(number))}, id=f"1-{number + 1}")
        pipeline.execute()


def test_a_value_that_is_none_of_its_type_is_null(server: RedisServer) -> None:
    add_some_malformed(server)
    found = [row["n"] for row in read_all(server, StructType().add("n", "integer"))]
    assert found == [None if number in MALFORMED else number for number in range(10)]


def test_a_value_that_is_none_of_its_type_can_stop_a_query_and_is_not_quoted(server: RedisServer) -> None:
    add_some_malformed(server)
    with pytest.raises(RedisStreamError, match="field n of entry 1-4 in stream journal is no int"):
        read_all(server, StructType().add("n", "integer"), mode="failfast")
