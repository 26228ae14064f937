"""The tables of the lake: explicit schemas, so that no reader infers anything and a missing column is null."""

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_STRING, _LONG, _INT, _BOOL = StringType(), LongType(), IntegerType(), BooleanType()


def _table(required: dict[str, DataType], optional: dict[str, DataType]) -> StructType:
    """Return required columns, then optional ones, then the partition column ``date``."""
    fields = [StructField(name, kind, nullable=False) for name, kind in required.items()]
    fields += [StructField(name, kind) for name, kind in optional.items()]
    return StructType([*fields, StructField("date", DateType(), nullable=False)])


_ORIGIN: dict[str, DataType] = {"id": _STRING, "stream": _STRING, "at": TimestampType(), "seq": _LONG}
"""Entry ID, key of the stream, and the two parts of the ID: server time (UTC) and number within the millisecond."""

DATA_COLUMNS: dict[str, DataType] = {
    "group": _STRING,
    "entry": _STRING,
    "consumer": _STRING,
    "delivery": _INT,
    "generation": _INT,
    "mode": _STRING,
    "type": _STRING,
    "token": _LONG,
    "reason": _STRING,
    "error": _STRING,
    "enqueued_ms": _LONG,
    "ready_ms": _LONG,
    "delivered_ms": _LONG,
    "begun_ms": _LONG,
    "run_ms": _LONG,
    "visibility_ms": _LONG,
    "idle_ms": _LONG,
    "due_ms": _LONG,
    "new_entry": _STRING,
    "dead_letter": _STRING,
    "counts": _BOOL,
    "put_back": _BOOL,
    "verb": _STRING,
    "fence": _STRING,
    "entries": _LONG,
    "holder": _STRING,
    "kind": _STRING,
    "target": _STRING,
    "v": _INT,
}
"""Keys of a lifecycle event's ``data`` that have a column of their own; the rest goes to ``extra``."""

MOST_INT = 2**31 - 1
"""What an int holds at most: larger counts are cut to it. A FATAL ``XNACK`` makes 2^53 of a delivery count."""

EVENTS = _table({**_ORIGIN, "event": _STRING}, {"job": _STRING, **DATA_COLUMNS, "extra": _STRING, "row": _INT})
"""``row``: its place, from 0, among the events of its entry; null where the entry holds one event alone."""

DEAD_LETTERS = _table(
    _ORIGIN,
    {
        "job": _STRING,
        "group": _STRING,
        "source_stream": _STRING,
        "entry": _STRING,
        "reason": _STRING,
        "error": _STRING,
        "traceback": _STRING,
        "deliveries": _INT,
        "generation": _INT,
        "consumers": _STRING,
        "first_ms": _LONG,
        "last_ms": _LONG,
        "dead_at_ms": _LONG,
        "payload": MapType(_STRING, _STRING),
    },
)

MALFORMED = _table(
    {"id": _STRING, "stream": _STRING},
    {"at": TimestampType(), "seq": _LONG, "reason": _STRING, "raw": _STRING},
)
"""Entries that are neither a lifecycle event nor a dead letter: why, and their fields as JSON. An ID that is no time
has no ``at``, and 1970-01-01 for ``date``."""

TABLES: dict[str, StructType] = {"events": EVENTS, "dead_letters": DEAD_LETTERS, "malformed": MALFORMED}
