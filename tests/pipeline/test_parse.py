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


def entry(seq: int = 0, event: str | None = "acked", /, **facts: str) -> Entry:
    fields = {"event": event} | facts
    return f"{MS}-{seq}".encode(), {
        name.encode(): value.encode() for name, value in fields.items() if value is not None
    }


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


def test_an_event_has_each_fact_in_a_column_of_its_own() -> None:
    facts = {"job": "j", "group": "g", "consumer": "w", "delivery": 2, "run_ms": 5, "token": 2**40, "error": "é"}
    row = only(read(entry(0, **{name: str(fact) for name, fact in facts.items()})), "events")
    assert row == {"id": f"{MS}-0", "stream": STREAM, "at": AT, "seq": 0, "event": "acked", "date": DAY, **facts}


def test_facts_without_a_column_are_kept_as_json() -> None:
    rows = [entry(0, new="[1,2.5]", also=""), entry(1), entry(2, deliveries="3", **{"": "5", "a b": "\x00"})]
    kept = [json.loads(row["extra"]) if "extra" in row else None for row in read(*rows)["events"]]
    assert kept == [{"new": "[1,2.5]"}, None, {"deliveries": 3, "": "5", "a b": "\x00"}]


def test_what_is_allowed_to_be_missing_or_huge_is_no_reason_to_keep_an_event_aside() -> None:
    rows = [entry(0, delivery=str(2**53)), entry(1, job="j"), entry(2, delivery="9" * 17, due_ms="1.5")]
    found = [(row.get("job"), row.get("delivery"), row.get("due_ms")) for row in read(*rows)["events"]]
    assert found == [(None, 2**31 - 1, None), ("j", None, None), (None, None, None)]


MANY = [
    {"consumer": "w", "new": "1", "entry": "7-0,8-1"},
    {"entry": "7-0,8-1", "job": ",é", "type": "a,", "run_ms": "1,"},
    {"entry": "7-0", "delivery": "900719925474099", "enqueued_ms": "3"},
    {"entry": "7-0", "generation": "1", "delivered_ms": "5", "begun_ms": "2"},
    {"entry": "7-0,8-1,9-0", "run_ms": "1,2,3", "rejected": "2,0,7"},
]


def test_an_entry_that_tells_of_many_jobs_is_a_row_for_each_as_the_reader_of_journals_reads_them() -> None:
    found = read(*(entry(seq, **fields) for seq, fields in enumerate(MANY)))["events"]
    expected = [
        {"id": event.entry_id, "job": event.job, "event": event.event, **event.data}
        for seq, fields in enumerate(MANY)
        for entry_id, told in [entry(seq, **fields)]
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
        (4, 0, "rejected"),
        (4, 1, "acked"),
        (4, 2, "rejected"),
    ]


def test_entries_of_one_job_and_of_many_are_told_apart_where_they_come_together() -> None:
    large = ",".join(f"{job}-0" for job in range(MOST_ROWS))  # more rows in all than are made at once
    numbers = ",".join(map(str, range(MOST_ROWS)))
    entries = [
        entry(0, **MANY[4]),
        entry(1, entry="3-0", run_ms="4"),
        entry(2, job="j", run_ms="5"),
        entry(3, entry="1-0", run_ms="1,2"),
        entry(4, entry="no time,5-0", begun_ms=",2"),
        *(entry(5 + n, entry=large, run_ms=numbers) for n in range(70)),
    ]
    told = ("seq", "row", "job", "entry", "enqueued_ms", "begun_ms", "run_ms")
    found = [tuple(row.get(name) for name in told) for row in read(*entries)["events"]]
    assert found == [
        (0, 0, "7-0", "7-0", 7, None, 1),
        (0, 1, "8-1", "8-1", 8, None, 2),
        (0, 2, "9-0", "9-0", 9, None, 3),
        (1, None, "3-0", "3-0", 3, None, 4),
        (2, None, "j", None, None, None, 5),
        (4, 0, "no time", "no time", None, None, None),
        (4, 1, "5-0", "5-0", 5, 2, None),
        *((seq, job, f"{job}-0", f"{job}-0", job, None, job) for seq in range(5, 75) for job in range(MOST_ROWS)),
    ]


_ORIGIN = {"stream", "at", "seq", "date", "row", "extra"}


NO_EVENT = "neither a lifecycle event nor a dead letter: it has no field 'event'"
MALFORMED_ENTRIES: list[tuple[Entry, str]] = [
    (entry(1, None), NO_EVENT),
    (entry(2, ""), NO_EVENT),
    (entry(3, entry="7-0", run_ms="1,2"), "its columns are not of one length"),
    (entry(4, entry="7-0," * MOST_ROWS), "it has no event, or too many rows"),
    (entry(5, None, **{"reaper.dead.stream": "s"}), "a dead letter that does not name its group"),
    ((f"{2**64 - 1}-{2**64 - 1}".encode(), entry()[1]), "its ID is no time"),
    ((f"{2**62}-1".encode(), entry()[1]), "its ID is no time"),
]


def test_malformed_entries_are_kept_aside_with_the_reason() -> None:
    found = read(*(raw for raw, _ in MALFORMED_ENTRIES))
    reasons = {row["id"]: row["reason"] for row in found["malformed"]}
    assert reasons == {raw[0].decode(): reason for raw, reason in MALFORMED_ENTRIES}
    assert len(found["malformed"]) == len(MALFORMED_ENTRIES)
    assert found["events"] == found["dead_letters"] == []


def test_a_malformed_entry_is_kept_as_it_was() -> None:
    raw = entry(3, None, job="j", a="1", b="é")
    kept = only(read(raw), "malformed")
    assert json.loads(kept.pop("raw")) == {"job": "j", "a": "1", "b": "é"}
    assert kept == {
        "id": f"{MS}-3",
        "stream": STREAM,
        "at": AT,
        "seq": 3,
        "date": DAY,
        "reason": NO_EVENT,
    }


@pytest.mark.parametrize("digits", ["x", "-1", "1234567890123456", "\u0661"])
def test_a_number_that_is_none_counts_as_absent(digits: str) -> None:
    rest = {"reaper.dead.stream": "s", "reaper.dead.group": "", "reaper.deliveries": digits, "reaper.first_ms": digits}
    letter = only(read(entry(0, None, **rest)), "dead_letters")
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
    raw = entry(4, "clicked", data="{", **known, amount="12")
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
    "", "1", "-0", "01", "1.0", "NaN", "9223372036854775808", "-1", "1" * 5_000, "\u0661", "\x00", "a\nb", "\\xff", ",",
    ",,", "1,2", "7-0", "7-0,8-0", "7-0,", "[]", "{}", "," * (MOST_ROWS + 1),
)  # fmt: skip
HOSTILE_NAMES = (*EVENTS.names, "rejected", "new", "", "V", "data")


def hostile(seed: int, number: int) -> Iterator[Entry]:
    """Make entries of which each is odd in a way of its own, and some are ordinary."""
    draw = random.Random(seed)
    for seq in range(number):
        facts = {name: draw.choice(HOSTILE_VALUES) for name in draw.choices(HOSTILE_NAMES, k=draw.randint(0, 5))}
        facts |= draw.choice(({}, {}, {"entry": "7-0,8-0"}, {"reaper.dead.stream": "s"}))
        ids = (f"{MS}-{seq}", f"{2**63}-{seq}", f"{MS}-{2**63 + seq}")
        fields = {"event": draw.choice(("acked", "acked", "acked", "")), **facts}
        encoded = {name.encode(): value.encode() for name, value in fields.items()}
        yield draw.choices(ids, weights=(20, 1, 1))[0].encode(), encoded


@pytest.mark.parametrize("seed", range(3))
def test_hostile_entries_belong_to_one_table_each_with_any_neighbors(seed: int) -> None:
    entries = list(hostile(seed, 500))
    together, alone = read(*entries), [read(raw) for raw in entries]
    for table in TABLES:
        assert together[table] == sorted((row for found in alone for row in found[table]), key=_place)
    for raw, found in zip(entries, alone, strict=True):
        assert len([table for table, rows in found.items() if rows]) == 1
        assert {row["id"] for rows in found.values() for row in rows} <= {raw[0].decode()}
