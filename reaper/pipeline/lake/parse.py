"""Turns stream entries into rows of the lake's tables. Each entry belongs to exactly one table.

Pure. It runs in Spark's Python. `workers.protocol.events.decode_entry`, the one reader of journals, reads the lifecycle
events. This module puts its results into columns.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from reaper.pipeline.lake.schema import DATA_COLUMNS, MOST_INT, TABLES
from workers.protocol.events import DATA_VERSION, decode_entry

EVENTS, DEAD_LETTERS, MALFORMED = "events", "dead_letters", "malformed"
LAST_MS = 253_402_300_799_999
"""The year 9999, where dates end."""
MS_A_DAY = 86_400_000
_MOST_LONG = 2**63 - 1
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
_SCHEMAS = {name: to_arrow_schema(schema, timezone="UTC") for name, schema in TABLES.items()}
_KNOWN = frozenset(DATA_COLUMNS)

Entry = tuple[bytes, Mapping[bytes, bytes]]
"""ID and fields."""
Row = dict[str, Any]
TableRows = tuple[str, pa.RecordBatch]
"""The name of a table, and rows of it."""


class MalformedError(ValueError):
    """An entry is neither a lifecycle event nor a dead letter. The message says why."""


def parse(stream: str, entries: Sequence[Entry]) -> Iterator[TableRows]:
    """Yield the rows of the entries of one stream, table by table."""
    events: list[tuple[Entry, list[Row]]] = []
    others: dict[str, list[Row]] = {DEAD_LETTERS: [], MALFORMED: []}
    for entry in entries:
        try:
            if b"reaper.dead.stream" in entry[1]:
                others[DEAD_LETTERS].append(_dead_letter(entry))
            else:
                events.append((entry, _events(entry)))
        except ValueError as reason:
            others[MALFORMED].append(_malformed(entry, str(reason)))
    for of_events in _in_columns(stream, events, others[MALFORMED]):
        yield EVENTS, of_events
    for table, rows in others.items():
        if rows:
            yield table, _batch(table, stream, rows)


def _in_columns(stream: str, events: list[tuple[Entry, list[Row]]], malformed: list[Row]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of events. An entry with a value that its column cannot hold goes to ``malformed``.

    Arrow looks at all values at once. If it rejects one, each half of the entries is tried again.
    """
    waiting = [events] if events else []
    while waiting:
        some = waiting.pop()
        try:
            yield _batch(EVENTS, stream, list(chain.from_iterable(rows for _, rows in some)))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            half = len(some) // 2
            if half:
                waiting += [some[half:], some[:half]]
            else:
                malformed.append(_malformed(some[0][0], "its data holds a value of a wrong type"))


def _batch(table: str, stream: str, rows: Sequence[Row]) -> pa.RecordBatch:
    given, schema = set[str]().union(*rows), _SCHEMAS[table]
    columns = [
        pa.repeat(pa.scalar(stream, field.type), len(rows))
        if field.name == "stream"
        else _column([row.get(field.name) for row in rows], field.type)
        if field.name in given
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        try:
            return pa.array(values, kind)
        except UnicodeEncodeError:  # half of a surrogate pair, from JSON
            return pa.array([value and value.encode("utf-8", "backslashreplace").decode() for value in values], kind)
    if pa.types.is_int64(kind):
        return pa.array(values).cast(kind)  # as it is typed at once, Arrow would cut 1.5 to 1
    if pa.types.is_int32(kind):  # XNACK with FATAL makes 2^53 of a delivery count
        longs = pa.array(values).cast(pa.int64())
        return pc.min_element_wise(longs, MOST_INT, skip_nulls=False).cast(kind)
    return pa.array(values, kind)


def _origin(entry_id: bytes) -> Row:
    """Return the columns that follow from an ID. Raises MalformedError where it is no time."""
    ms, seq = map(int, entry_id.split(b"-"))
    if ms > LAST_MS or seq > _MOST_LONG:
        raise MalformedError("its ID is no time")
    return {"id": entry_id.decode(), "at": ms * 1000, "seq": seq, "date": ms // MS_A_DAY}


def _malformed(entry: Entry, reason: str) -> Row:
    entry_id, fields = entry
    ms, seq = map(int, entry_id.split(b"-"))
    is_time = ms <= LAST_MS
    return {
        "id": entry_id.decode(),
        "at": ms * 1000 if is_time else None,
        "seq": seq if seq <= _MOST_LONG else None,
        "date": ms // MS_A_DAY if is_time else 0,
        "reason": reason,
        "raw": json.dumps({_text(name): _text(value) for name, value in fields.items()}),
    }


def _text(word: bytes) -> str:
    return word.decode("utf-8", "backslashreplace")


def _events(entry: Entry) -> list[Row]:
    """Return a row for each event in an entry of a journal. Raises ValueError where it holds none."""
    entry_id, fields = entry
    origin = _origin(entry_id)
    if not fields.get(b"event"):
        raise MalformedError("neither a lifecycle event nor a dead letter: it has no field 'event'")
    try:
        found = decode_entry(entry_id, list(chain.from_iterable(fields.items())))
    except ValueError as error:
        raise MalformedError(_reason(error.__cause__ or error)) from error
    rows = []
    for place, event in enumerate(found):
        data = dict(event.data)
        version = data.get("v", DATA_VERSION)
        if version != DATA_VERSION:
            raise MalformedError(f"its data is of version {version!r}, which is not known")
        extra = {name: data.pop(name) for name in data.keys() - _KNOWN}
        row = data | origin
        row["event"], row["job"] = event.event, event.job or None
        if len(found) > 1:
            row["row"] = place
        if extra:
            row["extra"] = json.dumps(extra, separators=(",", ":"))
        rows.append(row)
    return rows


def _reason(cause: BaseException | None) -> str:
    """Return why an entry was not decoded, in the same words for all entries of the kind."""
    if isinstance(cause, json.JSONDecodeError | RecursionError):
        return "its data is no JSON object"
    return f"its data has no {cause}" if isinstance(cause, KeyError) else str(cause)


def _dead_letter(entry: Entry) -> Row:
    """Return the row of a dead letter. Invalid numbers in it are null. Raises MalformedError."""
    entry_id, raw = entry
    fields = {_text(name): _text(value) for name, value in raw.items()}
    if "reaper.dead.group" not in fields:
        raise MalformedError("a dead letter that does not name its group")

    def text(name: str) -> str | None:
        return fields.get(f"reaper.{name}") or None

    def number(name: str) -> int | None:
        """Read a number by the protocol's rule. It has 1 to 15 digits, or it counts as missing."""
        said = text(name)
        return int(said) if said and _NUMBER.fullmatch(said) else None

    texts = {"job": "job", "entry": "dead.entry", "reason": "dead.reason", "error": "dead.error",
             "traceback": "dead.traceback", "consumers": "consumers"}  # fmt: skip
    numbers = {"deliveries": "deliveries", "generation": "generation", "first_ms": "first_ms",
               "last_ms": "dead.last_ms", "dead_at_ms": "dead.at_ms"}  # fmt: skip
    return {
        **_origin(entry_id),
        **{column: text(name) for column, name in texts.items()},
        **{column: number(name) for column, name in numbers.items()},
        "group": fields["reaper.dead.group"],  # a name may be empty
        "source_stream": fields["reaper.dead.stream"],
        "payload": [(name, value) for name, value in fields.items() if not name.startswith("reaper.")],
    }
