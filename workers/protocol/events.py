"""Lifecycle events, which are facts about a job in past tense, kept in a journal stream.

A journal entry has three fields, ``event``, ``job`` and ``data`` (compact JSON with a version). Its entry ID is the one
clock. ``docs/protocol.md`` lists what ``data`` holds for each event. The same event of many jobs is one entry without
``job``, whose data is of version 2, with a row for each job. Only `decode_entry` reads both.
"""

import json
import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from workers.protocol.messages import text

DATA_VERSION = 1
MANY_VERSION = 2
"""Of the data of an entry that tells of many jobs."""
MOST_ROWS = 1_000
"""Jobs that an entry may tell of; one with more is no event of ours."""
COLUMNS = (
    "entry", "job", "type", "delivery", "generation", "enqueued_ms", "ready_ms", "delivered_ms", "begun_ms", "run_ms",
    "idle_ms", "new_entry",
)  # fmt: skip
"""Facts that may differ from row to row; ``entry`` always has a column."""
DEFAULT_JOURNAL_MAXLEN = 100_000


class EventName(StrEnum):
    """Every lifecycle event that is journalled."""

    ACKED = "acked"
    NACKED = "nacked"
    HANDED_BACK = "handed_back"
    SCHEDULED = "scheduled"
    RECOVERED = "recovered"
    SUSPECTED = "suspected"
    DEAD_LETTERED = "dead_lettered"
    REDRIVEN = "redriven"
    REFUSED = "refused"
    LOST_PAYLOAD = "lost_payload"
    LOST_DELIVERY = "lost_delivery"
    LOST_CONSUMER = "lost_consumer"
    LEASE_ACQUIRED = "lease_acquired"
    LEASE_LOST = "lease_lost"
    LEASE_RELEASED = "lease_released"
    FAULT_INJECTED = "fault_injected"


MOST = 2**53
"""Numbers beyond it are not exact in a script, nor in JSON elsewhere."""


def encode_data(data: Mapping[str, Any]) -> str:
    """Encode the ``data`` field as compact JSON with the version first."""
    return _encode({"v": DATA_VERSION, **data})


def head_of_many(common: Mapping[str, Any]) -> str:
    """Encode the common head of many of these entries."""
    return _encode({"v": MANY_VERSION, **common})[:-1]


def encode_rows(head: str, entries: Sequence[bytes], columns: Mapping[str, Sequence[Any]]) -> str:
    """Encode the ``data`` field of an event of many jobs, behind a head of `head_of_many`.

    ``entries`` and each of ``columns`` have a value for each job. None stands for a missing fact. ``job`` and
    ``enqueued_ms`` are then as its entry has them. A column with one value for all is written once. Names in ``job``
    may be bytes. This is hot, because a new encoder takes as long as three jobs.
    """
    said = head
    # An entry ID needs no escaping, and there is one for every job.
    names = b'","'.join(entries).decode()
    differ = f'"entry":["{names}"]'
    for name, values in columns.items():
        first = values[0]
        if name != "job" and values.count(first) == len(values):
            if first is not None:
                said += f',"{name}":{first if name in _NUMBERS else _encode(first)}'
        elif name == "job":
            differ += f',"job":{_encode_names(values)}'
        elif name in _NUMBERS and None not in values:
            numbers = str(values if type(values) is list else list(values)).replace(" ", "")
            differ += f',"{name}":{numbers}'
        else:
            differ += f',"{name}":{_encode(values)}'
    return f'{said},"columns":{{{differ}}}}}'


def _encode_names(names: Sequence[Any]) -> str:
    """Encode job IDs. Our own job IDs need no escaping, and all jobs read in a mass have one."""
    if type(names[0]) is bytes and None not in names:
        joined = b'","'.join(names)
        if joined.translate(None, b"0123456789-") == b'","' * (len(names) - 1):
            return f'["{joined.decode()}"]'
    return _encode([name if name is None else text(name) for name in names])


_NUMBERS = frozenset(COLUMNS) - {"entry", "job", "type", "new_entry"}
_MS = re.compile(r"[0-9]{1,15}-")
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """One fact of a journal entry, decoded. ``at_ms`` is the server's time, from the entry ID."""

    entry_id: str
    at_ms: int
    event: str
    job: str
    data: Mapping[str, Any]

    def number(self, name: str) -> int | None:
        """Return a fact that is a whole number, as `whole` reads it."""
        return whole(self.data.get(name))


def whole(value: object) -> int | None:
    """Return ``value`` if it is a whole number from 0 on, or None, as journals are open to others."""
    return value if type(value) is int and 0 <= value < MOST else None


def _finite(number: str) -> float:
    found = float(number)
    if not math.isfinite(found):
        raise ValueError(f"{number} is not a number")
    return found


def decode_entry(entry_id: bytes, flat: Sequence[bytes]) -> list[LifecycleEvent]:
    """Decode a journal entry into one event, or one for each row in their order. Raises ValueError where it is none."""
    fields = dict(zip(flat[::2], flat[1::2], strict=False))
    try:
        # Values outside of JSON are rejected, which are NaN, Infinity and 1e999.
        said = fields[b"data"].decode("utf-8", "replace")
        data = json.loads(said, parse_float=_finite, parse_constant=_finite)
        event, job = fields[b"event"].decode(), fields.get(b"job")
        if not isinstance(data, dict):
            raise ValueError("its data is no JSON object")  # noqa: TRY004, TRY301
        told = [(job.decode("utf-8", "backslashreplace"), data)] if job is not None else _rows_of(data)
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"journal entry {entry_id!r} is not a lifecycle event: {error}") from error
    name, at_ms = entry_id.decode(), int(entry_id.split(b"-")[0])
    return [LifecycleEvent(name, at_ms, event, its_job, its_data) for its_job, its_data in told]


def _rows_of(data: dict[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return job and data of each row. Raises ValueError, or KeyError without columns."""
    if data.get("v") != MANY_VERSION:
        raise ValueError("it has no field 'job'")
    columns, rows = data.pop("columns"), data.pop("rows", None)
    entries = columns.get("entry") if isinstance(columns, dict) else None
    if not isinstance(entries, list) or not 0 < len(entries) <= MOST_ROWS:
        raise ValueError(f"it has no column 'entry' of 1 to {MOST_ROWS} rows")
    known = {name: columns[name] for name in COLUMNS if columns.get(name) is not None}
    if not all(isinstance(values, list) and len(values) == len(entries) for values in known.values()):
        raise ValueError("its columns are not of one length")
    jobs = known.pop("job", [None] * len(entries))
    if not all(isinstance(entry, str) for entry in entries) or not all(isinstance(job, str | None) for job in jobs):
        raise ValueError("a name in it is no text")
    if rows is not None and not (isinstance(rows, list) and all(type(row) is int for row in rows)):
        raise ValueError("its rows are no numbers")
    befallen = range(len(entries)) if rows is None else sorted(set(range(len(entries))).intersection(rows))
    return [(jobs[row] or entries[row], _data_of(data, known, row)) for row in befallen]


def _data_of(common: Mapping[str, Any], columns: Mapping[str, Sequence[Any]], row: int) -> Mapping[str, Any]:
    """Return the data of one row, as if it were an event by itself."""
    own = {name: values[row] for name, values in columns.items() if values[row] is not None}
    data = {**common, **own}
    if "enqueued_ms" not in data and _MS.match(own["entry"]):
        data["enqueued_ms"] = int(own["entry"].partition("-")[0])
    return data


def events_of(entry_id: bytes, flat: Sequence[bytes], names: Container[str] | None = None) -> Sequence[LifecycleEvent]:
    """Decode a journal entry. Return none for other entries, as journals are open to others.

    ``names`` limits the events, which saves the work for all others.
    """
    if names is not None:
        name = next((value for field, value in zip(flat[::2], flat[1::2], strict=False) if field == b"event"), b"")
        if name.decode("utf-8", "replace") not in names:
            return ()
    try:
        return decode_entry(entry_id, flat)
    except ValueError:
        return ()
