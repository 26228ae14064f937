"""What writers add to streams on a real server."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from reaper.pipeline.redis_stream import RedisStreamError
from reaper.pipeline.redis_stream.cluster import key_of_packed
from reaper.pipeline.redis_stream.once import BYTES_AT_ONCE, ROWS_AT_ONCE, Row, calls, notes_of
from reaper.pipeline.redis_stream.source import RedisStreamSource
from reaper.pipeline.redis_stream.writing import WRITE_BYTES, Writer, chunks, pack_command
from tests.pipeline.streams import JOURNAL, connected, parse
from tests.support.processes import Processes
from tests.support.servers import RedisServer
from tests.support.tiers import in_matrix
from tests.support.waiting import wait_until_here
from workers.protocol.slots import slot_of

pytestmark = pytest.mark.contract

Fields = list[list[bytes]]


def write(server: RedisServer, table: pa.Table, **given: Any) -> None:
    Writer(parse(server, **given), from_arrow_schema(table.schema)).write(iter(table.to_batches()))


def fields(server: RedisServer, stream: str = JOURNAL) -> Fields:
    with connected(server) as client:
        reply: Any = client.xrange(stream)
        return [flat for _, flat in reply]


def test_each_column_becomes_a_field(server: RedisServer) -> None:
    write(server, pa.table({"name": ["a", "€"], "raw": [b"\xff\r\n", b""]}))
    assert fields(server) == [[b"name", b"a", b"raw", b"\xff\r\n"], [b"name", "€".encode(), b"raw", b""]]


def test_null_is_no_field(server: RedisServer) -> None:
    write(server, pa.table({"a": ["1", None, "3"], "b": ["4", "5", None]}))
    assert fields(server) == [[b"a", b"1", b"b", b"4"], [b"b", b"5"], [b"a", b"3"]]


def test_numbers_dates_and_truth_are_written_as_text(server: RedisServer) -> None:
    day = pa.array(["2026-01-02"]).cast(pa.date32())
    write(server, pa.table({"n": [7], "x": [0.5], "yes": [True], "day": day}))
    assert fields(server) == [[b"n", b"7", b"x", b"0.5", b"yes", b"true", b"day", b"2026-01-02"]]


def test_a_name_may_hold_a_percent_sign(server: RedisServer) -> None:
    write(server, pa.table({"100%d": ["1"]}), stream="50%b")
    assert fields(server, "50%b") == [[b"100%d", b"1"]]


def test_a_column_can_name_the_stream(server: RedisServer) -> None:
    write(
        server,
        pa.table({"to": ["a", "b", "a"], "n": ["1", "2", None], "m": ["3", "4", "5"]}),
        stream="",
        streamColumn="to",
    )
    assert fields(server, "a") == [[b"n", b"1", b"m", b"3"], [b"m", b"5"]]
    assert fields(server, "b") == [[b"n", b"2", b"m", b"4"]]


def test_the_column_that_names_the_stream_is_named_in_any_case(server: RedisServer) -> None:
    write(server, pa.table({"To": ["a"], "n": ["1"]}), stream="", streamColumn="to")
    assert fields(server, "a") == [[b"n", b"1"]]


def test_a_map_is_written_as_its_fields(server: RedisServer) -> None:
    maps = pa.array([[("a", "1"), ("b", None)], [("c", "2")]], pa.map_(pa.string(), pa.string()))
    write(server, pa.table({"stream": ["old", "old"], "id": ["1-0", "2-0"], "fields": maps}))
    assert fields(server) == [[b"a", b"1"], [b"c", b"2"]]


def test_a_map_can_go_to_streams_that_a_column_names(server: RedisServer) -> None:
    maps = pa.array([[("a", "1")]], pa.map_(pa.string(), pa.binary()))
    write(server, pa.table({"stream": ["s"], "fields": maps}), stream="", streamColumn="stream")
    assert fields(server, "s") == [[b"a", b"1"]]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"n": pa.array([None], pa.string())}),
        pa.table({"f": pa.array([[]], pa.map_(pa.string(), pa.string()))}),
    ],
)
def test_a_row_without_fields_is_refused(server: RedisServer, table: pa.Table) -> None:
    with pytest.raises(RedisStreamError, match="an entry without fields cannot be added"):
        write(server, table)


def test_a_row_without_a_stream_is_refused(server: RedisServer) -> None:
    with pytest.raises(RedisStreamError, match="column to names no stream"):
        write(server, pa.table({"to": ["a", None], "n": ["1", "2"]}), stream="", streamColumn="to")


def test_streams_are_kept_short(server: RedisServer) -> None:
    write(server, pa.table({"n": [str(number) for number in range(50)]}), maxlen=7, approximate=False)
    assert [flat[1] for flat in fields(server)] == [b"%d" % number for number in range(43, 50)]


def test_streams_are_kept_about_so_short_by_default(server: RedisServer) -> None:
    write(server, pa.table({"n": [str(number) for number in range(1000)]}), maxlen=300)
    assert 300 <= len(fields(server)) < 1000


def test_more_rows_than_are_sent_at_once(server: RedisServer) -> None:
    write(server, pa.table({"n": [str(number) for number in range(2500)]}))
    assert [int(flat[1]) for flat in fields(server)] == list(range(2500))


def test_a_refusal_is_told_in_redis_words(server: RedisServer) -> None:
    server.command("SET", JOURNAL, "text")
    with pytest.raises(RedisStreamError, match="refused an XADD: WRONGTYPE"):
        write(server, pa.table({"n": ["1"]}))


# ---- once, however often

KEYED = pa.table({"key": ["a", "b", "c"], "n": ["1", None, "3"]})


def test_rows_with_keys_are_added_once_however_often_they_are_written(server: RedisServer) -> None:
    write(server, KEYED.slice(0, 2), dedupeColumn="KEY")
    write(server, KEYED, dedupeColumn="key")
    write(server, KEYED, dedupeColumn="key")
    assert fields(server) == [[b"key", b"a", b"n", b"1"], [b"key", b"b"], [b"key", b"c", b"n", b"3"]]


def test_a_key_counts_for_each_stream(server: RedisServer) -> None:
    streams = ["s", "{s}:t", "{s}"]
    table = pa.table({"to": [*streams, "s"], "key": ["a"] * 4})
    for _ in range(2):
        write(server, table, stream="", streamColumn="to", dedupeColumn="key")
    assert [fields(server, stream) for stream in streams] == [[[b"key", b"a"]]] * 3


def test_maps_may_have_keys_beside_them(server: RedisServer) -> None:
    maps = pa.array([[("a", "1")], [("a", "1")]], pa.map_(pa.string(), pa.string()))
    for _ in range(2):
        write(server, pa.table({"key": ["1", "2"], "fields": maps}), dedupeColumn="key", maxlen=9)
    assert fields(server) == [[b"a", b"1"]] * 2


def test_a_row_without_a_key_is_refused(server: RedisServer) -> None:
    with pytest.raises(RedisStreamError, match="column n is null in some row: every row needs a key"):
        write(server, KEYED, dedupeColumn="n")


def test_a_row_has_as_many_fields_as_a_script_can_hand_over(server: RedisServer) -> None:
    def table(number: int) -> pa.Table:
        one = [(f"f{place}", "v") for place in range(number)]
        return pa.table({"key": ["a"], "fields": pa.array([one], pa.map_(pa.string(), pa.string()))})

    with pytest.raises(RedisStreamError, match="a row of more than 3,950 fields cannot be written with dedupeColumn"):
        write(server, table(4_000), dedupeColumn="key")
    for _ in range(2):
        write(server, table(3_949), dedupeColumn="key")
    write(server, table(4_000).select(["fields"]))
    assert [len(flat) for flat in fields(server)] == [2 * 3_949, 2 * 4_000]


def test_a_row_that_redis_refuses_is_not_taken_for_written(server: RedisServer) -> None:
    server.command("SET", JOURNAL, "text")
    with pytest.raises(RedisStreamError, match="WRONGTYPE"):
        write(server, KEYED, dedupeColumn="key")
    server.command("DEL", JOURNAL)
    write(server, KEYED, dedupeColumn="key")
    assert len(fields(server)) == KEYED.num_rows


def test_notes_are_kept_for_as_long_as_is_said(server: RedisServer) -> None:
    notes = notes_of(JOURNAL.encode())
    server.command("ZADD", notes, *(word for at in range(1, 6) for word in (at, f"old {at}")))
    write(server, KEYED, dedupeColumn="key", dedupeFor="1h")
    assert server.command("ZRANGE", notes, 0, -1) == [b"a", b"b", b"c"]


def test_many_rows_are_written_in_their_order(server: RedisServer) -> None:
    numbers = [str(number) for number in range(2 * ROWS_AT_ONCE + 1)]
    for _ in range(2):
        write(server, pa.table({"n": numbers}), dedupeColumn="n")
    assert [flat[1].decode() for flat in fields(server)] == numbers


def test_calls_are_bounded_by_a_number_and_a_size() -> None:
    def sizes(rows: list[Row]) -> list[int]:
        return [call.count(b"*") for call in calls(rows, 1)]

    small: Row = (b"s", b"key", [b"*", b"n", b"1"])
    large: Row = (b"s", b"key", [b"*", b"n", b"x" * BYTES_AT_ONCE])
    assert sizes([small] * (2 * ROWS_AT_ONCE + 1)) == [ROWS_AT_ONCE, ROWS_AT_ONCE, 1]
    assert sizes([small, large, large, small]) == [2, 1, 1]


ODD_NAMES = (
    b"s", b"{a}:s", b"a{b}c{d}", b"with space", b"orders", b"{orders}", b"a}b", b"{a}b", b"{a}b}", b"{}", b"{}x",
    b"{}{x}", b"}{x}", b"a{", b"a{b", b"{a{b}", b"{{a}}", b"}", b"{", b"\xff}", b"redis-stream:written:{s}",
)  # fmt: skip


@pytest.mark.parametrize("stream", ODD_NAMES)
def test_notes_are_in_the_slot_of_their_stream(stream: bytes) -> None:
    assert slot_of(notes_of(stream)) == slot_of(stream)


def test_notes_are_of_one_stream() -> None:
    assert len(set(map(notes_of, ODD_NAMES))) == len(ODD_NAMES)


def test_the_key_of_a_packed_command_is_found() -> None:
    (call,) = calls([(b"{s}", b"key", [b"*", b"n", b"1"])], 1)
    assert key_of_packed(pack_command(call)) == b"{s}"
    assert key_of_packed(pack_command([b"XADD", b"s\r\n", b"*", b"n", b"1"])) == b"s\r\n"


WRITE_AND_WAIT = """
import sys
import pyarrow as pa
from tests.pipeline.test_redis_stream_writing import MANY, write_to

write_to(sys.argv[1], MANY)
sys.stdin.read()
"""
MANY = pa.table({"n": [str(number) for number in range(30_000)]})


def write_to(url: str, table: pa.Table) -> None:
    given = {"url": url, "stream": JOURNAL, "dedupeColumn": "n"}
    schema = from_arrow_schema(table.schema)
    Writer(RedisStreamSource(given).parsed, schema).write(iter(table.to_batches(max_chunksize=5_000)))


@pytest.mark.processes
@pytest.mark.parametrize("written", [in_matrix(1), 5_000, in_matrix(17_000)])
def test_a_task_that_is_killed_and_repeated_adds_nothing_twice(
    processes: Processes, server: RedisServer, written: int
) -> None:
    writer = processes.python("-c", WRITE_AND_WAIT, server.url, name="writer")
    wait_until_here(lambda: server.command("XLEN", JOURNAL) >= written, "it is at work")
    writer.kill()
    write_to(server.url, MANY)
    assert sorted(int(flat[1]) for flat in fields(server)) == list(range(MANY.num_rows))


# ---- how commands go


def test_commands_are_sent_in_chunks_of_a_number_and_a_size() -> None:
    small, large = b"x", b"x" * WRITE_BYTES
    assert [len(chunk) for chunk in chunks([small] * 2500)] == [1000, 1000, 500]
    assert [len(chunk) for chunk in chunks([small, large, large, small])] == [2, 1, 1]
    assert list(chunks([])) == []


def test_a_command_is_packed_as_the_wire_has_it() -> None:
    assert pack_command([b"XADD", b"s", b""]) == b"*3\r\n$4\r\nXADD\r\n$1\r\ns\r\n$0\r\n\r\n"
