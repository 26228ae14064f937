"""Explicit schemas of the lake's tables, so that readers infer no types and a missing column is null."""

from pyspark.sql.types import (
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

_STRING, _LONG, _INT = StringType(), LongType(), IntegerType()


def _columns(kind: DataType, names: str) -> dict[str, DataType]:
    return dict.fromkeys(names.split(), kind)


def _table(required: dict[str, DataType], optional: dict[str, DataType]) -> StructType:
    """Return required columns, then optional ones, then the partition column ``date``."""
    fields = [StructField(name, kind, nullable=False) for name, kind in required.items()]
    fields += [StructField(name, kind) for name, kind in optional.items()]
    return StructType([*fields, StructField("date", DateType(), nullable=False)])


_ORIGIN: dict[str, DataType] = {"id": _STRING, "stream": _STRING, "at": TimestampType(), "seq": _LONG}
"""Entry ID, key of the stream, and server time (UTC) and sequence number of the ID."""

DATA_COLUMNS: dict[str, DataType] = {
    **_columns(
        _STRING, "group entry consumer mode type reason error new_entry dead_letter verb lease holder kind target"
    ),
    **_columns(_INT, "delivery generation certain"),
    **_columns(_LONG, "token enqueued_ms ready_ms delivered_ms begun_ms run_ms visibility_ms idle_ms due_ms"),
}
"""Facts of a lifecycle event with a column of their own. Other facts are in ``extra``."""

MOST_INT = 2**31 - 1
"""The largest int. Larger counts are cut to it, for example 2^53 after a FATAL ``XNACK``."""

EVENTS = _table({**_ORIGIN, "event": _STRING}, {"job": _STRING, **DATA_COLUMNS, "extra": _STRING, "row": _INT})
"""``row`` is the place, from 0, among the events of an entry. It is null if the entry has one event."""

DEAD_LETTERS = _table(
    _ORIGIN,
    {
        **_columns(_STRING, "job group source_stream entry reason error traceback consumers"),
        **_columns(_INT, "deliveries generation"),
        **_columns(_LONG, "first_ms last_ms dead_at_ms"),
        "payload": MapType(_STRING, _STRING),
    },
)

MALFORMED = _table(
    {"id": _STRING, "stream": _STRING},
    {"at": TimestampType(), "seq": _LONG, "reason": _STRING, "raw": _STRING},
)
"""Entries that are neither a lifecycle event nor a dead letter, with the reason and their fields as JSON. An ID that is
no time has no ``at``, and 1970-01-01 for ``date``."""

TABLES: dict[str, StructType] = {"events": EVENTS, "dead_letters": DEAD_LETTERS, "malformed": MALFORMED}
