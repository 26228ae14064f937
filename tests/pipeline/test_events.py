"""Entries become rows: what is understood, and what is kept aside."""

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from reaper.pipeline.lake.events import RAW, classify, dead_letters, lifecycle_events, malformed
from reaper.pipeline.lake.schema import DEAD_LETTERS, EVENTS, MALFORMED, MOST_ROWS, ROW_COLUMNS
from workers.protocol import events as protocol
from workers.protocol.events import COLUMNS, decode_entry

MS = 1_700_000_000_000
AT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC).replace(tzinfo=None)
DAY = date(2023, 11, 14)

Raw = tuple[str, str, str | None, str | None, str | None, dict[str, str] | None]


def entry(
    data: str | None,
    seq: int = 0,
    *,
    event: str | None = "acked",
    job: str | None = "j",
    rest: dict[str, str] | None = None,
) -> Raw:
    return ("{s}:journal", f"{MS}-{seq}", event, job, data, rest)


def only(rows: list[Row]) -> dict[str, Any]:
    (row,) = rows
    return {name: value for name, value in row.asDict().items() if value is not None}


def test_an_event_has_each_key_of_its_data_in_a_column_of_its_own(spark: SparkSession) -> None:
    data = {"v": 1, "group": "g", "delivery": 2, "counts": False, "run_ms": 5, "token": 2**40, "error": "é"}
    frame = classify(spark.createDataFrame([entry(json.dumps(data))], RAW))
    events = lifecycle_events(frame)
    assert events.schema.simpleString() == EVENTS.simpleString()
    assert only(events.collect()) == {
        "id": f"{MS}-0",
        "stream": "{s}:journal",
        "at": AT,
        "seq": 0,
        "event": "acked",
        "job": "j",
        "date": DAY,
        **data,
    }
    assert dead_letters(frame).collect() == malformed(frame).collect() == []


def test_what_data_holds_beside_the_columns_is_kept_as_json(spark: SparkSession) -> None:
    rows = [
        entry('{"v":1,"new":{"a":[1,2.5]},"also":true}', 0),
        entry('{"v":1}', 1),
        entry('{ "v" : 1 , "spaced" : 2 }', 3),
        entry('{"error":"no key,\\"x\\":1","v":1,"group":"a,\\"b"}', 4),
        entry('{"\\u0076":1,"\\u0077":2,"":3}', 5),
        entry('{"v":1,"twice":1,"twice":2}', 2),
    ]
    events = lifecycle_events(classify(spark.createDataFrame(rows, RAW))).orderBy("seq").collect()
    kept = [json.loads(row.extra) if row.extra else None for row in events]
    assert kept == [
        {"new": {"a": [1, 2.5]}, "also": True},
        None,
        {"twice": 2},
        {"spaced": 2},
        None,
        {"w": 2, "": 3},
    ]


def test_what_is_allowed_to_be_missing_or_huge_is_no_reason_to_keep_an_event_aside(spark: SparkSession) -> None:
    rows = [entry('{"delivery":9007199254740992}', 0, job=""), entry("{}", 1, rest={"more": "fields"})]
    events = lifecycle_events(classify(spark.createDataFrame(rows, RAW))).orderBy("seq").collect()
    assert [(row.job, row.delivery) for row in events] == [(None, 2**31 - 1), ("j", None)]


def many(data: str, seq: int = 0) -> Raw:
    return entry(data, seq, job=None)


MANY = [
    '{"v":2,"group":"g","consumer":"w","new":1,"columns":{"entry":["7-0","8-1"]}}',
    '{"v":2,"columns":{"entry":["7-0","8-1"],"job":[null,"é"],"type":["a",null],"run_ms":[1,null]}}',
    '{"v":2,"columns":{"entry":["7-0"],"delivery":[9007199254740992],"enqueued_ms":[3],"other":["is not read"]}}',
    '{"v":2,"columns":{"entry":["7-0"],"generation":[1],"delivered_ms":[5],"wait_ms":[2]}}',
    '{"v":2,"verb":"ack","columns":{"entry":["7-0","8-1","9-0"],"run_ms":[1,2,3]},"rows":[2,0,7,0,-1,99999999999]}',
    '{"v":2,"columns":{"entry":["7-0"]},"rows":[]}',
]


def test_an_entry_that_tells_of_many_jobs_is_a_row_for_each_as_the_reader_of_journals_reads_them(
    spark: SparkSession,
) -> None:
    frame = classify(spark.createDataFrame([many(data, seq) for seq, data in enumerate(MANY)], RAW))
    found = lifecycle_events(frame).orderBy("seq", "row").collect()
    expected = [
        {"id": event.entry_id, "job": event.job, "event": "acked", **event.data}
        for seq, data in enumerate(MANY)
        for event in decode_entry(f"{MS}-{seq}".encode(), [b"event", b"acked", b"data", data.encode()])
    ]
    shown = []
    for row in found:
        told = {name: value for name, value in row.asDict().items() if value is not None}
        extra = json.loads(told.pop("extra", "{}"))
        shown.append({name: value for name, value in {**told, **extra}.items() if name not in _ORIGIN})
    assert shown == [one | {"delivery": 2**31 - 1} if "delivery" in one else one for one in expected]
    assert [(row.seq, row.row) for row in found] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0), (4, 0), (4, 2)]


def test_entries_of_one_job_and_of_many_are_told_apart_where_they_come_together(spark: SparkSession) -> None:
    large = [f"{job}-0" for job in range(MOST_ROWS)]  # more rows in all than are made at once
    entries = [
        many(MANY[4], 0),
        entry('{"v":1,"entry":"3-0","run_ms":4}', 1, job=""),
        entry('{"v":1,"run_ms":5}', 2),
        entry("nope", 3),
        many('{"v":2,"columns":{"entry":["no time","5-0"],"wait_ms":[null,2]},"rows":[1,0]}', 4),
        *(
            many(json.dumps({"v": 2, "columns": {"entry": large, "run_ms": list(range(MOST_ROWS))}}), 5 + n)
            for n in range(70)
        ),
    ]
    events = lifecycle_events(classify(spark.createDataFrame(entries, RAW).coalesce(1)))
    told = ("seq", "row", "job", "entry", "enqueued_ms", "wait_ms", "run_ms")
    found = [tuple(row) for row in events.where("seq < 6").orderBy("seq", "row").select(*told).collect()]
    assert found == [
        (0, 0, "7-0", "7-0", 7, None, 1),
        (0, 2, "9-0", "9-0", 9, None, 3),
        (1, None, None, "3-0", None, None, 4),
        (2, None, "j", None, None, None, 5),
        (4, 0, "no time", "no time", None, None, None),
        (4, 1, "5-0", "5-0", 5, 2, None),
        *((5, job, f"{job}-0", f"{job}-0", job, None, job) for job in range(MOST_ROWS)),
    ]
    right = events.where("seq >= 5 AND job = concat(row, '-0') AND run_ms = row AND entry = job")
    assert right.select("seq", "row").distinct().count() == 70 * MOST_ROWS


_ORIGIN = {"stream", "at", "seq", "date", "row"}


def test_what_the_lake_knows_of_entries_of_many_is_what_the_protocol_says() -> None:
    assert (ROW_COLUMNS, MOST_ROWS) == (COLUMNS, protocol.MOST_ROWS)


def test_an_event_by_itself_may_have_data_that_is_named_like_the_rows_of_many(spark: SparkSession) -> None:
    frame = classify(spark.createDataFrame([entry('{"v":1,"rows":[1],"columns":{"entry":["7-0"]}}')], RAW))
    assert json.loads(only(lifecycle_events(frame).collect())["extra"]) == {"rows": [1], "columns": {"entry": ["7-0"]}}


UNFIT = "its columns are not of one length, or its rows no numbers"
MALFORMED_ENTRIES: list[tuple[Raw, str]] = [
    (entry("nope", 1), "data is no JSON object"),
    (entry("", 2), "data is no JSON object"),
    (entry("[1]", 3), "data is no JSON object"),
    (entry('[{"v":1}]', 4), "data is no JSON object"),
    (entry("null", 5), "data is no JSON object"),
    (entry('{"v":1', 6), "data is no JSON object"),
    (entry('{"run_ms":"long"}', 7), "data holds a value of a wrong type"),
    (entry('{"counts":1}', 8), "data holds a value of a wrong type"),
    (entry(None, 9), "neither a lifecycle event nor a dead letter: it has no field 'data'"),
    (entry("{}", 10, event=None), "neither a lifecycle event nor a dead letter: it has no field 'event'"),
    (entry("{}", 11, job=None), "neither a lifecycle event nor a dead letter: it has no field 'job'"),
    (entry("{}", 12, event=""), "event is empty"),
    (entry('{"v":2,"run_ms":5}', 13), "its data is of version 2, and only 1 is known"),
    (
        many('{"v":3,"columns":{"entry":["7-0"]}}', 15),
        "neither a lifecycle event nor a dead letter: it has no field 'job'",
    ),
    (many('{"v":2}', 16), UNFIT),
    (many('{"v":2,"columns":{"entry":[]}}', 17), UNFIT),
    (many('{"v":2,"columns":{"entry":["7-0",null]}}', 18), UNFIT),
    (many('{"v":2,"columns":{"entry":["7-0"],"run_ms":[1,2]}}', 19), UNFIT),
    (many('{"v":2,"columns":{"run_ms":[1,2]}}', 20), UNFIT),
    (many('{"v":2,"columns":{"entry":[' + ",".join(['"7-0"'] * (MOST_ROWS + 1)) + "]}}", 21), UNFIT),
    (many('{"v":2,"columns":{"entry":["7-0"]},"rows":[0,null]}', 23), UNFIT),
    (many('{"v":2,"columns":{"entry":["7-0"],"run_ms":["long"]}}', 22), "data holds a value of a wrong type"),
    (entry('{"v":0}', 14), "its data is of version 0, and only 1 is known"),
    (("{s}:journal", f"{2**64 - 1}-{2**64 - 1}", "acked", "j", "{}", None), "its ID is no time"),
    (("{s}:journal", f"{2**62}-1", "acked", "j", "{}", None), "its ID is no time"),
]


def test_malformed_entries_are_kept_aside_with_the_reason_and_all_they_held(spark: SparkSession) -> None:
    frame = classify(spark.createDataFrame([raw for raw, _ in MALFORMED_ENTRIES], RAW))
    kept = malformed(frame)
    assert kept.schema.simpleString() == MALFORMED.simpleString()
    assert {row.id: row.reason for row in kept.collect()} == {raw[1]: reason for raw, reason in MALFORMED_ENTRIES}
    assert lifecycle_events(frame).collect() == dead_letters(frame).collect() == []


def test_a_malformed_entry_is_kept_as_it_was(spark: SparkSession) -> None:
    raw = entry(None, 3, event=None, job="j", rest={"a": "1", "b": "é"})
    kept = only(malformed(classify(spark.createDataFrame([raw], RAW))).collect())
    assert json.loads(kept.pop("raw")) == {"job": "j", "a": "1", "b": "é"}
    assert kept == {
        "id": f"{MS}-3",
        "stream": "{s}:journal",
        "at": AT,
        "seq": 3,
        "date": DAY,
        "reason": "neither a lifecycle event nor a dead letter: it has no field 'event'",
    }


@pytest.mark.parametrize("digits", ["x", "-1", "1234567890123456", "\u0661"])
def test_a_number_that_is_none_counts_as_absent(spark: SparkSession, digits: str) -> None:
    rest = {"reaper.dead.stream": "s", "reaper.deliveries": digits, "reaper.first_ms": digits}
    letter = only(
        dead_letters(classify(spark.createDataFrame([entry(None, event=None, job=None, rest=rest)], RAW))).collect()
    )
    assert "deliveries" not in letter
    assert "first_ms" not in letter


def test_a_dead_letter_has_its_payload_apart_from_what_is_known_of_its_end(spark: SparkSession) -> None:
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
    raw = ("{s}:dead:g", f"{MS}-4", "clicked", None, "{", {**known, "amount": "12"})
    frame = classify(spark.createDataFrame([raw], RAW))
    letters = dead_letters(frame)
    assert letters.schema.simpleString() == DEAD_LETTERS.simpleString()
    assert only(letters.collect()) == {
        "id": f"{MS}-4",
        "stream": "{s}:dead:g",
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
    assert lifecycle_events(frame).collect() == malformed(frame).collect() == []
