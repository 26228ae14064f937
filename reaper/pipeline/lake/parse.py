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
from workers.protocol.events import decode_entry

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
    """An entry is neither a lifecycle event nor a dead letter. The message has the reason."""


def parse(stream: str, entries: Sequence[Entry]) -> Iterator[TableRows]:
    """Yield the rows of the entries of one stream, table by table."""
    tables: dict[str, list[Row]] = {EVENTS: [], DEAD_LETTERS: [], MALFORMED: []}
    for entry in entries:
        try:
            if b"reaper.dead.stream" in entry[1]:
                tables[DEAD_LETTERS].append(_dead_letter(entry))
            else:
                tables[EVENTS] += _events(entry)
        except ValueError as reason:
            tables[MALFORMED].append(_malformed(entry, str(reason)))
    for table, rows in tables.items():
        if rows:
            yield table, _batch(table, stream, rows)


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
    if pa.types.is_int32(kind):  # XNACK with FATAL makes 2^53 of a delivery count
        return pc.min_element_wise(pa.array(values, pa.int64()), MOST_INT, skip_nulls=False).cast(kind)
    return pa.array(values, kind)


def _origin(entry_id: bytes) -> Row:
    """Return the columns that follow from an ID. Raises MalformedError if it is no time."""
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
    """Return a row for each event in an entry of a journal. Raises ValueError if it has none."""
    entry_id, fields = entry
    origin = _origin(entry_id)
    if not fields.get(b"event"):
        raise MalformedError("neither a lifecycle event nor a dead letter: it has no field 'event'")
    found, rows = decode_entry(entry_id, list(chain.from_iterable(fields.items()))), []
    for place, event in enumerate(found):
        data = dict(event.data)
        extra = {name: data.pop(name) for name in data.keys() - _KNOWN}
        row = data | origin
        row["event"], row["job"] = event.event, event.job or None
        if len(found) > 1:
            row["row"] = place
        if extra:
            row["extra"] = json.dumps(extra, separators=(",", ":"))
        rows.append(row)
    return rows


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
