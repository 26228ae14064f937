"""Lifecycle events: facts about a job, past tense, kept in a journal stream.

A journal entry has three fields, ``event``, ``job`` and ``data`` (compact JSON with a version). Its entry ID is
the one clock. ``docs/protocol.md`` lists what ``data`` holds for each event.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

DATA_VERSION = 1
DEFAULT_JOURNAL_MAXLEN = 100_000


class EventName(StrEnum):
    """Every lifecycle event that is journalled."""

    DELIVERED = "delivered"
    STARTED = "started"
    ACKED = "acked"
    NACKED = "nacked"
    HANDED_BACK = "handed_back"
    EXTENDED = "extended"
    SCHEDULED = "scheduled"
    RECOVERED = "recovered"
    SUSPECTED = "suspected"
    DEAD_LETTERED = "dead_lettered"
    REDRIVEN = "redriven"
    REFUSED = "refused"
    LOST_PAYLOAD = "lost_payload"
    LOST_DELIVERY = "lost_delivery"
    LOST_CONSUMER = "lost_consumer"
    SCANNED = "scanned"
    LEASE_ACQUIRED = "lease_acquired"
    LEASE_LOST = "lease_lost"
    LEASE_RELEASED = "lease_released"
    FAULT_INJECTED = "fault_injected"


class JournalLevel(StrEnum):
    """How much is journalled.

    ``settlements``: one event for a job that goes well, and everything out of the ordinary.
    """

    OFF = "off"
    SETTLEMENTS = "settlements"
    FULL = "full"


MOST = 2**53
"""Numbers beyond it are not exact in a script, nor in JSON elsewhere."""
FULL_ONLY = frozenset({EventName.DELIVERED, EventName.STARTED, EventName.EXTENDED})


def journalled(event: EventName, level: JournalLevel) -> bool:
    """Tell whether ``event`` is written at ``level``."""
    return level is JournalLevel.FULL or (level is JournalLevel.SETTLEMENTS and event not in FULL_ONLY)


def encode_data(data: Mapping[str, Any]) -> str:
    """Encode the ``data`` field: compact JSON with the version first."""
    return json.dumps({"v": DATA_VERSION, **data}, separators=(",", ":"), ensure_ascii=True)


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """One journal entry, decoded. ``at_ms`` is the server's time, from the entry ID."""

    entry_id: str
    at_ms: int
    event: str
    job: str
    data: Mapping[str, Any]

    def number(self, name: str) -> int | None:
        """Return a fact that is a whole number, as `whole` reads it."""
        return whole(self.data.get(name))


def whole(value: object) -> int | None:
    """Return ``value`` where it is a whole number from 0 on; None for anything else, as journals are open to others."""
    return value if type(value) is int and 0 <= value < MOST else None


def _finite(number: str) -> float:
    found = float(number)
    if not math.isfinite(found):
        raise ValueError(f"{number} is no number")
    return found


def decode_event(entry_id: bytes, flat: Sequence[bytes]) -> LifecycleEvent:
    """Decode a journal entry. Raises ValueError where it is none."""
    fields = dict(zip(flat[::2], flat[1::2], strict=False))
    try:
        # What no JSON can say again is refused: NaN, Infinity and 1e999.
        said = fields[b"data"].decode("utf-8", "replace")
        data = json.loads(said, parse_float=_finite, parse_constant=_finite)
        event, job = fields[b"event"].decode(), fields[b"job"].decode("utf-8", "backslashreplace")
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"journal entry {entry_id!r} is no lifecycle event: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"journal entry {entry_id!r} has data that is no JSON object")  # noqa: TRY004
    return LifecycleEvent(entry_id.decode(), int(entry_id.split(b"-")[0]), event, job, data)


def read_event(entry_id: bytes, flat: Sequence[bytes]) -> LifecycleEvent | None:
    """Decode a journal entry; None where it is no lifecycle event."""
    try:
        return decode_event(entry_id, flat)
    except ValueError:
        return None
