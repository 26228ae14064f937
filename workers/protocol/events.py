"""Lifecycle events, which are facts about a job in past tense, kept in a journal stream.

A journal entry has flat fields, with a row for each job. The entry ID is the one clock. ``docs/protocol.md`` lists the
facts of each event.
"""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MOST_ROWS = 1_000
"""The most jobs in a journal entry. An entry with more is foreign."""
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
    QUARANTINED = "quarantined"
    DEAD_LETTERED = "dead_lettered"
    REDRIVEN = "redriven"
    REJECTED = "rejected"
    FENCED = "fenced"
    LOST_PAYLOAD = "lost_payload"
    LOST_DELIVERY = "lost_delivery"
    LOST_CONSUMER = "lost_consumer"
    REQUEUED = "requeued"
    LEASE_TAKEN = "lease_taken"
    LEASE_LEFT = "lease_left"
    FAULT_INJECTED = "fault_injected"


ENDS = frozenset(
    {
        EventName.ACKED, EventName.NACKED, EventName.HANDED_BACK, EventName.DEAD_LETTERED, EventName.RECOVERED,
        EventName.QUARANTINED, EventName.REQUEUED,
    }
)  # fmt: skip
"""After these, an entry is not pending any more, unless it became ready without a copy (``new_entry`` = ``entry``)."""


MOST = 2**53
"""Larger numbers are not exact in scripts and in JSON. Events of a FATAL ``XNACK`` have it as their delivery count."""
REJECTED_ROWS = "rejected"
"""Of the event ``acked``: the rows, counted from 0, that were rejected."""
_TEXTS = {"entry", "job", "type", "new_entry"}
_NUMBERS = {*COLUMNS, "token", "visibility_ms", "due_ms", "until_ms", "deliveries", "in_flight", "certain"} - _TEXTS
_NUMBER = re.compile(r"-?[0-9]{1,16}")
_MS = re.compile(r"[0-9]{1,15}-")
OLDEST_AUTOMATIC_ID_MS = 1_483_228_800_000
"""2017-01-01. Redis streams are younger, so a producer chose any lower entry ID, and that ID is not a time."""
UNKNOWN = "-"
"""The value of `ready_ms` if neither a field nor an ID contains it."""


def event_fields(event: str, **facts: object) -> list[Any]:
    """Return the fields and values of a journal entry, in turns. A fact that is None is left out."""
    return ["event", event, *(word for name, fact in facts.items() if fact is not None for word in (name, fact))]


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """One fact of a journal entry, decoded. ``at_ms`` is the server's time, from the entry ID."""

    entry_id: str
    at_ms: int
    event: str
    job: str
    data: Mapping[str, Any]

    def number(self, name: str) -> int | None:
        """Return a fact that is a number, or None."""
        value: int | None = self.data.get(name)
        return value


def decode_entry(entry_id: bytes, flat: Sequence[bytes]) -> list[LifecycleEvent]:
    """Decode a journal entry into one event, or one for each row in their order. Raises ValueError if it is no event.

    A column holds a value for each row, joined by commas, and an empty value is left out. Other fields count for all
    rows. An event without ``entry`` is about one job, a group, or a namespace.
    """
    fields = {
        name.decode("utf-8", "replace"): value.decode("utf-8", "backslashreplace")
        for name, value in zip(flat[::2], flat[1::2], strict=False)
    }
    event, entries = fields.pop("event", ""), fields.pop("entry", "").split(",")
    if not event or len(entries) > MOST_ROWS:
        raise ValueError("it has no event, or too many rows")
    columns = {name: fields[name].split(",") for name in COLUMNS if name in fields} if entries[0] else {}
    wide = {name: values for name, values in columns.items() if len(values) > 1}
    if any(len(values) != len(entries) for values in wide.values()):
        raise ValueError("its columns are not of one length")
    at_ms = int(entry_id.split(b"-")[0])
    rejected = {int(row) for row in fields.pop(REJECTED_ROWS, "").split(",") if row.isdecimal()}
    common = {name: value for name, value in fields.items() if name not in wide}
    decoded: list[LifecycleEvent] = []
    for row, entry in enumerate(entries):
        own = common | {name: values[row] for name, values in wide.items()}
        data = {name: fact for name, value in own.items() if (fact := _fact(name, value)) not in ("", None)}
        job = str(data.pop("job", entry))
        if entry:
            data["entry"] = entry
            data.setdefault("generation", 0)
            if _MS.match(entry):
                entry_ms = int(entry.partition("-")[0])
                data.setdefault("enqueued_ms", entry_ms)
                if "delivered_ms" in data and "ready_ms" not in own and entry_ms >= OLDEST_AUTOMATIC_ID_MS:
                    data["ready_ms"] = entry_ms
        if row in rejected:
            data["verb"] = "ack"
        name = EventName.REJECTED.value if row in rejected else event
        decoded.append(LifecycleEvent(entry_id.decode(), at_ms, name, job, data))
    return decoded


def _fact(name: str, value: str) -> object:
    """Return the value of a field, or None if it must be a number and is none, because third parties write journals."""
    if name not in _NUMBERS:
        return value
    return int(value) if _NUMBER.fullmatch(value) and int(value) <= MOST else None


def events_of(entry_id: bytes, flat: Sequence[bytes], names: Container[str] | None = None) -> Sequence[LifecycleEvent]:
    """Decode a journal entry, or return no events for a foreign entry. ``names`` limits the events."""
    if names is not None:
        name = next((value for field, value in zip(flat[::2], flat[1::2], strict=False) if field == b"event"), b"")
        has_rejected = name == b"acked" and EventName.REJECTED in names
        if not has_rejected and name.decode("utf-8", "replace") not in names:
            return ()
    try:
        events = decode_entry(entry_id, flat)
    except ValueError:
        return ()
    return events if names is None else [event for event in events if event.event in names]
