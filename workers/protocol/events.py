"""Lifecycle events, which are facts about a job in past tense, kept in a journal stream.

A journal entry has flat fields, with a row for each job. Rare events of one job still have three fields instead,
``event``, ``job`` and ``data`` (compact JSON). The entry ID is the one clock. ``docs/protocol.md`` lists the facts of
each event. `decode_entry` reads both forms.
"""

import json
import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

DATA_VERSION = 1
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
    REQUEUED = "requeued"
    LEASE_ACQUIRED = "lease_acquired"
    LEASE_LOST = "lease_lost"
    LEASE_RELEASED = "lease_released"
    FAULT_INJECTED = "fault_injected"


ENDS = frozenset(
    {
        EventName.ACKED, EventName.NACKED, EventName.HANDED_BACK, EventName.DEAD_LETTERED, EventName.RECOVERED,
        EventName.SUSPECTED, EventName.REQUEUED,
    }
)  # fmt: skip
"""After these, an entry is not pending any more, unless it became ready without a copy (``new_entry`` = ``entry``)."""


MOST = 2**53
"""Numbers beyond it are not exact in a script, nor in JSON elsewhere."""


def encode_data(data: Mapping[str, Any]) -> str:
    """Encode the ``data`` field as compact JSON with the version first."""
    return _encode({"v": DATA_VERSION, **data})


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


REJECTED_ROWS = "rejected"
"""Of the flat event ``acked``: the rows, counted from 0, that were rejected."""
_FLAT_NUMBERS = _NUMBERS | {"token", "visibility_ms", "due_ms"}


def decode_flat(entry_id: bytes, flat: Sequence[bytes]) -> list[LifecycleEvent]:
    """Decode a journal entry of flat fields, one event a row. Raises ValueError where it is none.

    A column holds a value for each row, joined by commas; an empty one says nothing. What is no column is said of all.
    """
    fields = {
        name.decode("utf-8", "replace"): value.decode("utf-8", "backslashreplace")
        for name, value in zip(flat[::2], flat[1::2], strict=False)
    }
    entries = fields.get("entry", "").split(",")
    if not fields.get("event") or not fields.get("group") or len(entries) > MOST_ROWS:
        raise ValueError("it has no event, or no group")
    if not entries[0]:  # about the whole group
        data = {name: _flat_value(name, value) for name, value in fields.items() if name not in ("event", "entry")}
        return [LifecycleEvent(entry_id.decode(), int(entry_id.split(b"-")[0]), fields["event"], "", data)]
    columns = {name: fields[name].split(",") for name in COLUMNS if name in fields}
    wide = {name: values for name, values in columns.items() if len(values) > 1}
    if any(len(values) != len(entries) for values in wide.values()):
        raise ValueError("its columns are not of one length")
    event, rejected = fields["event"], {int(row) for row in fields.get(REJECTED_ROWS, "").split(",") if row.isdecimal()}
    common = {name: value for name, value in fields.items() if name not in (*wide, "event", REJECTED_ROWS)}
    decoded: list[LifecycleEvent] = []
    for row, entry in enumerate(entries):
        own = common | {name: values[row] for name, values in wide.items()}
        data = {name: _flat_value(name, value) for name, value in own.items() if value != ""}
        data["entry"] = entry
        data.setdefault("generation", 0)
        if row in rejected:
            data["verb"] = "ack"
        if data.get("verb") == "retry":
            data["counts"] = False
        job = str(data.pop("job", entry))
        if "enqueued_ms" not in data and _MS.match(entry):
            data["enqueued_ms"] = int(entry.partition("-")[0])
        name = EventName.REFUSED.value if row in rejected else event
        decoded.append(LifecycleEvent(entry_id.decode(), int(entry_id.split(b"-")[0]), name, job, data))
    return decoded


def _flat_value(name: str, value: str) -> object:
    return int(value) if name in _FLAT_NUMBERS and len(value) <= 15 and value.isdecimal() else value


def decode_entry(entry_id: bytes, flat: Sequence[bytes]) -> list[LifecycleEvent]:
    """Decode a journal entry into one event, or one for each row in their order. Raises ValueError where it is none."""
    fields = dict(zip(flat[::2], flat[1::2], strict=False))
    try:
        if b"data" not in fields:
            return decode_flat(entry_id, flat)
        # Values outside of JSON are rejected, which are NaN, Infinity and 1e999.
        said = fields[b"data"].decode("utf-8", "replace")
        data = json.loads(said, parse_float=_finite, parse_constant=_finite)
        event = fields[b"event"].decode()
        if not isinstance(data, dict):
            raise ValueError("its data is no JSON object")  # noqa: TRY004, TRY301
        if b"job" not in fields:
            raise ValueError("it has no field 'job'")  # noqa: TRY301
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"journal entry {entry_id!r} is not a lifecycle event: {error}") from error
    job = fields[b"job"].decode("utf-8", "backslashreplace")
    return [LifecycleEvent(entry_id.decode(), int(entry_id.split(b"-")[0]), event, job, data)]


def events_of(entry_id: bytes, flat: Sequence[bytes], names: Container[str] | None = None) -> Sequence[LifecycleEvent]:
    """Decode a journal entry. Return none for other entries, as journals are open to others.

    ``names`` limits the events, which saves the work for all others.
    """
    if names is not None:
        name = next((value for field, value in zip(flat[::2], flat[1::2], strict=False) if field == b"event"), b"")
        has_rejected = name == b"acked" and EventName.REFUSED in names
        if not has_rejected and name.decode("utf-8", "replace") not in names:
            return ()
    try:
        events = decode_entry(entry_id, flat)
    except ValueError:
        return ()
    return events if names is None else [event for event in events if event.event in names]
