"""Entries become rows: events, dead letters, and malformed entries with the reason."""

import json
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import chain
from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from reaper.pipeline.lake.parse import Entry, parse
from reaper.pipeline.lake.schema import EVENTS, TABLES
from workers.protocol.events import MOST_ROWS, decode_entry

MS = 1_700_000_000_000
AT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
DAY = date(2023, 11, 14)
STREAM = "{s}:journal"

Row = dict[str, Any]


def entry(
    data: str | None,
    seq: int = 0,
    *,
    event: str | None = "acked",
    job: str | None = "j",
    rest: dict[str, str] | None = None,
) -> Entry:
    named = {"event": event, "job": job, "data": data, **(rest or {})}
    fields = {name.encode(): value.encode() for name, value in named.items() if value is not None}
    return f"{MS}-{seq}".encode(), fields


def read(*entries: Entry) -> dict[str, list[Row]]:
    """Return the rows of each table, without what is null, in the order of IDs."""
    found: dict[str, list[Row]] = {table: [] for table in TABLES}
    for table, batch in parse(STREAM, entries):
        assert batch.schema == to_arrow_schema(TABLES[table], timezone="UTC")
        batch.validate(full=True)
        found[table] += [_told(row) for row in batch.to_pylist()]
    return {table: sorted(rows, key=_place) for table, rows in found.items()}


def _told(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


def _place(row: Row) -> Any:
    return row.get("seq", -1), row["id"], row.get("row", -1)


def only(found: dict[str, list[Row]], table: str) -> Row:
    """Return the one row there is, which is of this table."""
    assert {name: len(rows) for name, rows in found.items()} == {name: int(name == table) for name in TABLES}
    return found[table][0]


def test_an_event_has_each_key_of_its_data_in_a_column_of_its_own() -> None:
    data = {"v": 1, "group": "g", "delivery": 2, "counts": False, "run_ms": 5, "token": 2**40, "error": "é"}
    assert only(read(entry(json.dumps(data))), "events") == {
        "id": f"{MS}-0",
        "stream": STREAM,
        "at": AT,
        "seq": 0,
        "event": "acked",
        "job": "j",
        "date": DAY,
        **data,
    }


def test_what_data_holds_beside_the_columns_is_kept_as_json() -> None:
    rows = [
        entry('{"v":1,"new":{"a":[1,2.5]},"also":true}', 0),
        entry('{"v":1}', 1),
        entry('{ "v" : 1 , "spaced" : 2 }', 3),
        entry('{"error":"no key,\\"x\\":1","v":1,"group":"a,\\"b"}', 4),
        entry('{"\\u0076":1,"\\u0077":2,"":3}', 5),
        entry('{"v":1,"twice":1,"twice":2}', 2),
    ]
    kept = [json.loads(row["extra"]) if "extra" in row else None for row in read(*rows)["events"]]
    assert kept == [
        {"new": {"a": [1, 2.5]}, "also": True},
        None,
        {"twice": 2},
        {"spaced": 2},
        None,
        {"w": 2, "": 3},
    ]


def test_what_is_allowed_to_be_missing_or_huge_is_no_reason_to_keep_an_event_aside() -> None:
    rows = [entry('{"delivery":9007199254740992}', 0, job=""), entry("{}", 1, rest={"more": "fields"})]
    found = [(row.get("job"), row.get("delivery")) for row in read(*rows)["events"]]
    assert found == [(None, 2**31 - 1), ("j", None)]


def many(seq: int = 0, **fields: str) -> Entry:
    flat = {"event": "acked", "group": "g", **fields}
    return f"{MS}-{seq}".encode(), {name.encode(): value.encode() for name, value in flat.items()}


MANY = [
    {"consumer": "w", "new": "1", "entry": "7-0,8-1"},
    {"entry": "7-0,8-1", "job": ",é", "type": "a,", "run_ms": "1,"},
    {"entry": "7-0", "delivery": "900719925474099", "enqueued_ms": "3"},
    {"entry": "7-0", "generation": "1", "delivered_ms": "5", "begun_ms": "2"},
    {"entry": "7-0,8-1,9-0", "run_ms": "1,2,3", "rejected": "2,0,7"},
]


def test_an_entry_that_tells_of_many_jobs_is_a_row_for_each_as_the_reader_of_journals_reads_them() -> None:
    found = read(*(many(seq, **fields) for seq, fields in enumerate(MANY)))["events"]
    expected = [
        {"id": event.entry_id, "job": event.job, "event": event.event, **event.data}
        for seq, fields in enumerate(MANY)
        for entry_id, told in [many(seq, **fields)]
        for event in decode_entry(entry_id, list(chain.from_iterable(told.items())))
    ]
    shown = []
    for row in found:
        extra = json.loads(row.get("extra", "{}"))
        shown.append({name: value for name, value in {**row, **extra}.items() if name not in _ORIGIN})
    assert shown == [one | {"delivery": 2**31 - 1} if "delivery" in one else one for one in expected]
    places = [(row["seq"], row.get("row"), row["event"]) for row in found]
    assert places == [
        (0, 0, "acked"),
        (0, 1, "acked"),
        (1, 0, "acked"),
        (1, 1, "acked"),
        (2, None, "acked"),
        (3, None, "acked"),
        (4, 0, "refused"),
        (4, 1, "acked"),
        (4, 2, "refused"),
    ]


def test_entries_of_one_job_and_of_many_are_told_apart_where_they_come_together() -> None:
    large = ",".join(f"{job}-0" for job in range(MOST_ROWS))  # more rows in all than are made at once
    numbers = ",".join(map(str, range(MOST_ROWS)))
    entries = [
        many(0, **MANY[4]),
        entry('{"v":1,"entry":"3-0","run_ms":4}', 1, job=""),
        entry('{"v":1,"run_ms":5}', 2),
        entry("nope", 3),
        many(4, entry="no time,5-0", begun_ms=",2"),
        *(many(5 + n, entry=large, run_ms=numbers) for n in range(70)),
    ]
    told = ("seq", "row", "job", "entry", "enqueued_ms", "begun_ms", "run_ms")
    found = [tuple(row.get(name) for name in told) for row in read(*entries)["events"]]
    assert found == [
        (0, 0, "7-0", "7-0", 7, None, 1),
        (0, 1, "8-1", "8-1", 8, None, 2),
        (0, 2, "9-0", "9-0", 9, None, 3),
        (1, None, None, "3-0", None, None, 4),
        (2, None, "j", None, None, None, 5),
        (4, 0, "no time", "no time", None, None, None),
        (4, 1, "5-0", "5-0", 5, 2, None),
        *((seq, job, f"{job}-0", f"{job}-0", job, None, job) for seq in range(5, 75) for job in range(MOST_ROWS)),
    ]


_ORIGIN = {"stream", "at", "seq", "date", "row", "extra"}


def test_an_event_by_itself_may_have_data_that_is_named_like_the_rows_of_many() -> None:
    row = only(read(entry('{"v":1,"rows":[1],"columns":{"entry":["7-0"]}}')), "events")
    assert json.loads(row["extra"]) == {"rows": [1], "columns": {"entry": ["7-0"]}}


NO_JSON = "its data is no JSON object"
WRONG_TYPE = "its data holds a value of a wrong type"
MALFORMED_ENTRIES: list[tuple[Entry, str]] = [
    (entry("nope", 1), NO_JSON),
    (entry("[1]", 2), NO_JSON),
    (entry('{"v":1', 3), NO_JSON),
    (entry('{"v":' + "[" * 100_000, 4), NO_JSON),
    (entry('{"run_ms":"long"}', 5), WRONG_TYPE),
    (entry('{"run_ms":1.5}', 6), WRONG_TYPE),
    (entry(f'{{"run_ms":{2**66}}}', 7), WRONG_TYPE),
    (entry('{"group":5}', 8), WRONG_TYPE),
    (entry('{"counts":1}', 9), WRONG_TYPE),
    (entry(None, 10), "it has no event, or no group"),
    (entry("{}", 11, event=None), "neither a lifecycle event nor a dead letter: it has no field 'event'"),
    (entry("{}", 12, event=""), "neither a lifecycle event nor a dead letter: it has no field 'event'"),
    (entry("{}", 13, job=None), "it has no field 'job'"),
    (entry('{"v":2,"run_ms":5}', 14), "its data is of version 2, which is not known"),
    (entry('{"v":0}', 15), "its data is of version 0, which is not known"),
    (many(18, entry="7-0", run_ms="1,2"), "its columns are not of one length"),
    (many(19, entry="7-0", run_ms="long"), WRONG_TYPE),
    (entry(None, 20, rest={"reaper.dead.stream": "s"}), "a dead letter that does not name its group"),
    ((f"{2**64 - 1}-{2**64 - 1}".encode(), entry("{}")[1]), "its ID is no time"),
    ((f"{2**62}-1".encode(), entry("{}")[1]), "its ID is no time"),
]


def test_malformed_entries_are_kept_aside_with_the_reason() -> None:
    found = read(*(raw for raw, _ in MALFORMED_ENTRIES))
    reasons = {row["id"]: row["reason"] for row in found["malformed"]}
    assert reasons == {raw[0].decode(): reason for raw, reason in MALFORMED_ENTRIES}
    assert len(found["malformed"]) == len(MALFORMED_ENTRIES)
    assert found["events"] == found["dead_letters"] == []


def test_a_malformed_entry_is_kept_as_it_was() -> None:
    raw = entry(None, 3, event=None, job="j", rest={"a": "1", "b": "é"})
    kept = only(read(raw), "malformed")
    assert json.loads(kept.pop("raw")) == {"job": "j", "a": "1", "b": "é"}
    assert kept == {
        "id": f"{MS}-3",
        "stream": STREAM,
        "at": AT,
        "seq": 3,
        "date": DAY,
        "reason": "neither a lifecycle event nor a dead letter: it has no field 'event'",
    }


@pytest.mark.parametrize("digits", ["x", "-1", "1234567890123456", "\u0661"])
def test_a_number_that_is_none_counts_as_absent(digits: str) -> None:
    rest = {"reaper.dead.stream": "s", "reaper.dead.group": "", "reaper.deliveries": digits, "reaper.first_ms": digits}
    letter = only(read(entry(None, event=None, job=None, rest=rest)), "dead_letters")
    assert "deliveries" not in letter
    assert "first_ms" not in letter


def test_a_dead_letter_has_its_payload_apart_from_what_is_known_of_its_end() -> None:
    known = {
        "reaper.job": "j",
        "reaper.deliveries": "3",
        "reaper.generation": "1",
        "reaper.first_ms": "7",
        "reaper.consumers": "a,b",
        "reaper.dead.stream": "s",
        "reaper.dead.group": "g",
        "reaper.dead.entry": "1-1",
        "reaper.dead.reason": "rejected",
        "reaper.dead.error": "no",
        "reaper.dead.last_ms": "8",
        "reaper.dead.at_ms": "9",
        "reaper.dead.traceback": "File …",
    }
    # A payload may have the names of a journal entry's fields.
    raw = entry("{", 4, event="clicked", job=None, rest={**known, "amount": "12"})
    letter = only(read(raw), "dead_letters")
    assert letter | {"payload": dict(letter["payload"])} == {
        "id": f"{MS}-4",
        "stream": STREAM,
        "at": AT,
        "seq": 4,
        "date": DAY,
        "job": "j",
        "group": "g",
        "source_stream": "s",
        "entry": "1-1",
        "reason": "rejected",
        "error": "no",
        "traceback": "File …",
        "deliveries": 3,
        "generation": 1,
        "consumers": "a,b",
        "first_ms": 7,
        "last_ms": 8,
        "dead_at_ms": 9,
        "payload": {"event": "clicked", "data": "{", "amount": "12"},
    }


# ---- hostile entries: none is lost, and none disturbs its neighbors

HOSTILE_VALUES = (
    "1", "-0", "01", "1.0", "1e3", "1e999", "-1e999", "NaN", "Infinity", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "1" * 5_000, "true", "null", '"2"', '""', '"\\u0000"', '"\\ud800"',
    '"\\ud83d\\ude00"', '"a\nb"', '"\\xff"', "[]", "{}", "[1,null]", '["7-0"]', '["7-0",null]', "[[[[1]]]]",
    "[" * 100_000, '{"a":' * 100_000, '{"entry":["7-0"]}', '{"entry":["7-0"],"run_ms":[1]}', '{"entry":"7-0"}',
    '{"entry":["7-0"],"run_ms":[1.5]}', '{"entry":["7-0","8-0"],"run_ms":[1]}', '{"entry":[7]}',
    '{"entry":["7-0"],"new":1}',
    '{"entry":["7-0"],"job":[7]}', '{"entry":["7-0"],"type":[7]}', '{"entry":["7-0"],"entry":["8-0"]}',
    '{"entry":["7-0"],"job":[""],"delivery":[9007199254740992],"generation":[-9007199254740992]}',
)  # fmt: skip
HOSTILE_NAMES = (*EVENTS.names, "columns", "rows", "new", "", "V", "\\u0076")
HOSTILE_DATA = (
    "", " ", "null", "[]", "1", "{", "}", '{"v":1', '{"v":1}}', '{"v":1}\n', "\ufeff{}", "{'v':1}", '{"v":1,}', "\x00",
    '{"v":1}\x00', '{"v":1}{"v":1}', '{"v":1}}\n{"ms":1,"seq":0,"data":{}', '{"v":1},"ms":7', '{"v":1},"data":{"v":1}',
    '{"v":1,"error":"', '{"columns":{"entry":[', '{"v":1}//', "\t{ }\r\n",
)  # fmt: skip


def hostile(seed: int, number: int) -> Iterator[Entry]:
    """Make entries of which each is odd in a way of its own, and some are ordinary."""
    draw = random.Random(seed)
    for seq in range(number):
        names = draw.choices(HOSTILE_NAMES, k=draw.randint(0, 2))
        pairs = [f'"{name}":{_value(draw, name)}' for name in names]
        versions = draw.choices(("1", "2", "3", '"2"', "2.0", "null"), weights=(5, 5, 1, 1, 1, 1))
        data = "{" + ",".join([*(f'"v":{version}' for version in versions), *pairs]) + "}"
        if draw.random() < 0.2:
            data = draw.choice(HOSTILE_DATA)
        if draw.random() < 0.1:
            pairs = [*pairs, '"columns":{"entry":["7-0","8-0"],"begun_ms":[1,2]}', '"rows":[1]']
            data = '{"v":2,' + ",".join(pairs) + "}"
        ids = (f"{MS}-{seq}", f"{2**63}-{seq}", f"{MS}-{2**63 + seq}")
        event, job = draw.choice(("acked", "acked", "", None)), draw.choice(("j", "j", "", None, None))
        rest = draw.choice(({}, {}, {}, {}, {"more": "x"}, {"reaper.dead.stream": "s"}))
        said = draw.choice((data,) * 9 + (None,))
        fields = entry(said, event=event, job=job, rest=rest)[1]
        yield draw.choices(ids, weights=(20, 1, 1))[0].encode(), fields


def _value(draw: random.Random, name: str) -> str:
    """Return a value, more often than not of the type that belongs there."""
    kind = EVENTS[name].dataType.typeName() if name in EVENTS.names else "new"
    good = {"string": '"é"', "long": "7", "integer": "2147483648", "boolean": "true"}.get(kind, "null")
    return draw.choice(HOSTILE_VALUES) if draw.random() < 0.4 else good


@pytest.mark.parametrize("seed", range(3))
def test_hostile_entries_belong_to_one_table_each_with_any_neighbors(seed: int) -> None:
    entries = list(hostile(seed, 500))
    together, alone = read(*entries), [read(raw) for raw in entries]
    for table in TABLES:
        assert together[table] == sorted((row for found in alone for row in found[table]), key=_place)
    for raw, found in zip(entries, alone, strict=True):
        tables = [table for table, rows in found.items() if rows]
        assert len(tables) == 1 or b'"rows":' in raw[1][b"data"]  # that may be about none of its jobs
        assert {row["id"] for rows in found.values() for row in rows} <= {raw[0].decode()}


def test_text_that_cannot_be_written_as_utf_8_is_shown_as_json_has_it() -> None:
    row = only(read(entry('{"error":"\\ud800","new":"\\udc00"}')), "events")
    assert (row["error"], json.loads(row["extra"])) == ("\\ud800", {"new": "\udc00"})
