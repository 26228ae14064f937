"""What an entry of a stream is: a lifecycle event, a dead letter, or malformed. Pure, and entry by entry.

This says what counts: `reaper.pipeline.lake.events` reads most entries quicker, and only those of which it says the
same. Runs in Spark's Python, so only the standard library, pyspark, and `reaper.pipeline.lake.schema` may be imported.
"""

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.types import BooleanType, DataType, StringType

from reaper.pipeline.lake.schema import AMONG, DATA_COLUMNS, EACH, MOST_INT, MOST_ROWS, ROW_COLUMNS

EVENT, DEAD_LETTER, MALFORMED = "events", "dead_letters", "malformed"
"""The tables an entry may belong to."""

VERSION, MANY_VERSION = 1, 2
"""Of the data (``v``) that is understood here: of one event, which it counts as where there is none, and of many."""
LAST_MS = 253_402_300_799_999
"""The year 9999, where dates end."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ID = re.compile(r"(\d{1,20})-(\d{1,20})", re.ASCII)
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
_MOST_LONG = 2**63 - 1
_OF_MANY = ("columns", "rows")
_NO_JSON = "data is no JSON object"
_WRONG_TYPE = "data holds a value of a wrong type"
_UNFIT = "its columns are not of one length, or its rows no numbers"

Fields = Mapping[str, str]
Row = dict[str, Any]


class MalformedError(Exception):
    """An entry is neither a lifecycle event nor a dead letter. The message says why."""


def read_entry(
    stream: str, entry_id: str, named: Mapping[str, str | None], others: Fields
) -> tuple[str, dict[str, Any]]:
    """Return the table an entry belongs to, and its row; of one that tells of many jobs, what it says of all of them.

    ``named``: the fields of a journal entry, None where there is none. ``others``: all other fields.
    """
    fields = {name: value for name, value in named.items() if value is not None} | dict(others)
    at, seq = _parts(entry_id)
    row: Row = {"id": entry_id, "stream": stream, "at": at, "seq": seq, "date": (at or _EPOCH).date()}
    try:
        if at is None or seq is None:
            table, facts = MALFORMED, _malformed("its ID is no time", fields)
        elif "reaper.dead.stream" in others:
            table, facts = DEAD_LETTER, _dead_letter(fields)
        else:
            table, facts = EVENT, _event(fields)
    except MalformedError as reason:
        table, facts = MALFORMED, _malformed(str(reason), fields)
    return table, row | facts


def _parts(entry_id: str) -> tuple[datetime | None, int | None]:
    """Return the time and the number in an ID; None for what is too large to be one."""
    found = _ID.fullmatch(entry_id)
    ms, seq = (int(found[1]), int(found[2])) if found else (LAST_MS + 1, 0)
    return (
        _EPOCH + timedelta(milliseconds=ms) if ms <= LAST_MS else None,
        seq if seq <= _MOST_LONG else None,
    )


def _malformed(reason: str, fields: Fields) -> Row:
    return {"reason": reason, "raw": _text(_written(fields))}


# ---- events


def _event(fields: Fields) -> Row:
    data, reason = _data(fields.get("data"))
    is_many = "job" not in fields and data is not None and type(data.get("v")) is int and data["v"] == MANY_VERSION
    version = data.get("v") if data else None
    if "event" in fields and type(version) is int and _other_version(version):
        raise MalformedError(f"its data is of version {version}, and only {VERSION} and {MANY_VERSION} are known")
    for name in ("event", "job", "data"):
        if name not in fields and not (name == "job" and is_many):
            raise MalformedError(f"neither a lifecycle event nor a dead letter: it has no field {name!r}")
    if not fields["event"]:
        raise MalformedError("event is empty")
    if data is None:
        raise MalformedError(reason)
    row = {"event": fields["event"], "job": fields.get("job") or None}
    row |= {name: _value(data[name], kind) for name, kind in DATA_COLUMNS.items() if data.get(name) is not None}
    if is_many:
        row |= _of_each(data)
    elif row.get("v", VERSION) != VERSION:
        raise MalformedError(f"its data is of version {row['v']}, which tells of many jobs, and it has field 'job'")
    more = {name: value for name, value in data.items() if _is_more(name, value, is_many)}
    if more:
        row["extra"] = _text(_written(more))
    return row


def _other_version(version: int) -> bool:
    return version not in (VERSION, MANY_VERSION) and -_MOST_LONG <= version <= _MOST_LONG


def _data(said: str | None) -> tuple[dict[str, Any] | None, str]:
    """Read ``data``; where it is none, say why. What no JSON can say again is refused: NaN, Infinity and 1e999."""
    try:
        data = json.loads(said or "", parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return None, _NO_JSON
    return (data, "") if isinstance(data, dict) else (None, _NO_JSON)


def _finite(number: str) -> float:
    found = float(number)
    if not math.isfinite(found):
        raise ValueError(f"{number} is no number")
    return found


def _is_more(name: str, value: Any, is_many: bool) -> bool:
    return name not in DATA_COLUMNS and not (name in _OF_MANY and (is_many or value is None))


def _value(value: Any, kind: DataType) -> Any:
    """Return a value as its column has it: what is no text is written as JSON where text belongs."""
    if isinstance(kind, StringType):
        return _text(value if isinstance(value, str) else _written(value))
    if isinstance(kind, BooleanType):
        if isinstance(value, bool):
            return value
    elif type(value) is int and -_MOST_LONG - 1 <= value <= _MOST_LONG:
        return value
    raise MalformedError(_WRONG_TYPE)


def _of_each(data: dict[str, Any]) -> Row:
    """Return what an entry says of each of its jobs: a list a column, and the places of those that it is about."""
    columns, rows = data.get("columns"), data.get("rows")
    if not isinstance(columns, dict | None) or not isinstance(rows, list | None):
        raise MalformedError(_WRONG_TYPE)
    known = {name: columns[name] for name in ROW_COLUMNS if columns.get(name) is not None} if columns else {}
    if not all(isinstance(values, list) for values in known.values()):
        raise MalformedError(_WRONG_TYPE)
    entries = known.get("entry", [])
    if not 0 < len(entries) <= MOST_ROWS or None in entries or (rows and None in rows):
        raise MalformedError(_UNFIT)
    if any(len(values) != len(entries) for values in known.values()):
        raise MalformedError(_UNFIT)
    names = (*entries, *(job for job in known.get("job", ()) if job is not None))
    if not all(isinstance(name, str) for name in names) or not all(type(place) is int for place in rows or ()):
        raise MalformedError(_WRONG_TYPE)
    each = {
        f"{EACH}{name}": [None if value is None else _value(value, kind) for value in known[name]]
        for name, kind in ((name, DATA_COLUMNS.get(name, StringType())) for name in known)
    }
    return each | {AMONG: None if rows is None else [place for place in rows if 0 <= place < MOST_ROWS]}


# ---- dead letters


def _dead_letter(fields: Fields) -> Row:
    """Return the row of a dead letter. What is no number of ours is null."""

    def text(name: str) -> str | None:
        return fields.get(f"reaper.{name}") or None

    def number(name: str) -> int | None:
        """Read a number as the protocol does: 1 to 15 digits, or it counts as absent."""
        said = text(name)
        return int(said) if said and _NUMBER.fullmatch(said) else None

    def count(name: str) -> int | None:
        found = number(name)
        return None if found is None else min(found, MOST_INT)

    if "reaper.dead.group" not in fields:
        raise MalformedError("a dead letter that does not say of which group it is")
    return {
        "job": text("job"),
        "group": fields["reaper.dead.group"],  # names may be empty
        "source_stream": fields["reaper.dead.stream"],
        "entry": text("dead.entry"),
        "reason": text("dead.reason"),
        "error": text("dead.error"),
        "traceback": text("dead.traceback"),
        "deliveries": count("deliveries"),
        "generation": count("generation"),
        "consumers": text("consumers"),
        "first_ms": number("first_ms"),
        "last_ms": number("dead.last_ms"),
        "dead_at_ms": number("dead.at_ms"),
        "payload": {name: value for name, value in fields.items() if not name.startswith("reaper.")},
    }


_written = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _text(said: str) -> str:
    r"""Return text that can be written as UTF-8: half of a pair of surrogates is shown as JSON has it, ``\udNNN``."""
    return said.encode("utf-8", "backslashreplace").decode()
