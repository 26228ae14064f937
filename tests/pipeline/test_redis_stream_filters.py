"""What filters of a query spare: never an entry that they let through."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from reaper.pipeline.redis_stream.filters import Narrowed, narrow
from reaper.pipeline.redis_stream.positions import ZERO
from reaper.pipeline.redis_stream.source import FilteredReader
from tests.pipeline.streams import add_at, connected, parse, rows
from tests.support.servers import RedisServer

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = StructType().add("stream", "string").add("ID", "string").add("timestamp", "timestamp").add("n", "string")
INSTANTS = st.builds(lambda ms, more: 1_000 * ms + more, st.integers(-1, 8), st.sampled_from([0, 0, 1, 999]))
"""Microseconds: just at a ms, and beside it."""
COMPARE: dict[type[Filter], Any] = {
    EqualTo: lambda row, value: row == value,
    GreaterThan: lambda row, value: row > value,
    GreaterThanOrEqual: lambda row, value: row >= value,
    LessThan: lambda row, value: row < value,
    LessThanOrEqual: lambda row, value: row <= value,
}


def at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def read(server: RedisServer, *filters: Filter, **given: Any) -> list[dict[str, Any]]:
    reader = FilteredReader(parse(server, **given), SCHEMA)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark looks again"
    return rows(reader, reader.partitions())


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [row["ID"] for row in found]


@pytest.mark.contract
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(list(COMPARE)), min_size=1, max_size=2),
    instants=st.tuples(INSTANTS, INSTANTS),
    parts=st.integers(1, 3),
)
def test_no_entry_is_spared_that_passes_and_none_is_read_of_another_ms(
    server: RedisServer, kinds: list[type[Filter]], instants: tuple[int, int], parts: int
) -> None:
    server.command("DEL", "journal")
    places = [(ms, seq) for ms in range(1, 7) for seq in (0, 1)]
    add_at(server, places)
    values = [at(instant) for instant in instants[: len(kinds)]]
    filters = [kind(("timestamp",), value) for kind, value in zip(kinds, values, strict=True)]  # type: ignore[call-arg]
    passing = [
        f"{ms}-{seq}"
        for ms, seq in places
        if all(COMPARE[kind](at(1000 * ms), value) for kind, value in zip(kinds, values, strict=True))
    ]
    assert ids(read(server, *filters, partitions=parts, pageSize=2)) == passing


@pytest.mark.contract
def test_ids_are_looked_up(server: RedisServer) -> None:
    add_at(server, [(ms, 0) for ms in range(1, 20)])
    assert ids(read(server, EqualTo(("ID",), "9-0"))) == ["9-0"]
    assert ids(read(server, In(("ID",), ("9-0", "11-0", "x")))) == ["9-0", "10-0", "11-0"]
    for never in ("9", "09-0", "9-0 ", "earliest"):
        assert read(server, EqualTo(("ID",), never)) == []


@pytest.mark.contract
def test_streams_that_cannot_pass_are_not_read(server: RedisServer) -> None:
    for stream in ("a", "b", "c"):
        add_at(server, [(1, 0)], stream=stream)
    server.command("CONFIG", "RESETSTAT")
    found = read(server, In(("stream",), ("a", "c")), EqualTo(("stream",), "a"), stream="a,b,c")
    assert [row["stream"] for row in found] == ["a"]
    with connected(server) as client:
        assert client.info("commandstats")["cmdstat_xrange"]["calls"] <= 3, "of one stream alone"


@pytest.mark.contract
def test_filters_go_with_the_bounds_of_the_options(server: RedisServer) -> None:
    add_at(server, [(ms, 0) for ms in range(1, 9)])
    found = read(server, GreaterThan(("timestamp",), at(3_000)), startingId="2-0", endingId="6-0")
    assert ids(found) == ["4-0", "5-0", "6-0"]
    assert read(server, GreaterThan(("timestamp",), at(60_000))) == []


@pytest.mark.parametrize(
    "one",
    [
        GreaterThan(("ID",), "9-0"),
        StringStartsWith(("stream",), "a"),
        IsNotNull(("timestamp",)),
        Not(EqualTo(("ID",), "9-0")),
        EqualTo(("n",), "9-0"),
        EqualTo(("n", "ID"), "9-0"),
        EqualTo(("timestamp",), None),
    ],
)
def test_what_filters_say_otherwise_spares_nothing(one: Filter) -> None:
    options = parse(_Nowhere())
    assert narrow([one], SCHEMA, options) == Narrowed()


def test_instants_before_1970_and_of_other_zones() -> None:
    options = parse(_Nowhere())
    assert narrow([GreaterThan(("timestamp",), at(-5_000))], SCHEMA, options).low == ZERO
    assert narrow([LessThan(("timestamp",), at(-5_000))], SCHEMA, options).high == ZERO
    elsewhere = datetime(1970, 1, 1, 1, 0, 5, tzinfo=timezone(timedelta(hours=1)))
    assert narrow([GreaterThanOrEqual(("timestamp",), elsewhere)], SCHEMA, options).low == (5_000, 0)


class _Nowhere:
    url = "redis://127.0.0.1"
