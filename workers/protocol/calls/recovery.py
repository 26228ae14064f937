"""The outcome of each delivery that a recovery call ended, and the results of the calls (``recover.lua``)."""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from workers.protocol.messages import text

START = "-"
"""The cursor in front of the first entry."""


class Outcome(IntEnum):
    """The fate of one delivery."""

    GONE = 0
    """It is not pending any more."""
    REDELIVERED = 1
    QUARANTINED = 2
    DEAD_LETTERED = 3
    NOT_DUE = 4
    LOST_PAYLOAD = 5
    HELD = 6
    """It cannot be copied."""
    PUT_OFF = 7


ENDED = frozenset({Outcome.REDELIVERED, Outcome.QUARANTINED, Outcome.DEAD_LETTERED})
"""The delivery was ended for its consumer."""
_OUTCOMES = {
    b"recovered": Outcome.REDELIVERED,
    b"quarantined": Outcome.QUARANTINED,
    b"dead_lettered": Outcome.DEAD_LETTERED,
    b"lost_payload": Outcome.LOST_PAYLOAD,
}


class Recovered(NamedTuple):
    """One delivery's result. ``detail`` is the new entry ID, dead letter's ID, remaining ms, or why it is held."""

    entry_id: bytes
    outcome: Outcome
    detail: bytes | int = b""
    idle_ms: int = 0
    consumer: bytes = b""
    job_id: bytes = b""
    delivery_count: int = 0
    traced: Sequence[bytes] | None = None
    """Of a traced job: traceparent, tracestate and generation."""


class Recovery(NamedTuple):
    """The results of a recovery call."""

    next_page: str
    """Where to go on, '' = all was looked at. Of a replica: the first entry that was put off."""
    due_in_ms: Sequence[tuple[bytes, int]]
    """Entries that are not overdue yet."""
    rows: Sequence[Recovered]
    """Deliveries that were ended, or had to be held."""


def read_recovery(
    _at_ms: int, next_page: bytes, due: list[Any], held: list[Any], events: list[Any], traced: list[Any]
) -> Recovery:
    """Read the answer of ``recover.lua``: events as they are in the journal, and held entries with their reasons."""
    contexts = {row[0]: row[1:] for row in traced}
    rows = [row for event in events for row in _rows_of_event(event, contexts)]
    undeliverable = (
        Recovered(entry_id, Outcome.HELD, why, consumer=consumer)
        for entry_id, consumer, why in zip(held[::3], held[1::3], held[2::3], strict=True)
    )
    due_in_ms = list(zip(due[::2], due[1::2], strict=True))
    return Recovery(text(next_page), due_in_ms, [*rows, *undeliverable])


def _rows_of_event(flat: Sequence[bytes], traced: Mapping[bytes, Sequence[bytes]]) -> Iterator[Recovered]:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    ids = fields[b"entry"].split(b",")
    nothing = [b""] * len(ids)

    def column(name: bytes, default: Sequence[bytes] = nothing) -> Sequence[bytes]:
        return fields[name].split(b",") if name in fields else default

    outcome, consumer, times = _OUTCOMES[fields[b"event"]], fields[b"consumer"], int(fields[b"delivery"])
    for entry_id, job_id, idle_ms, new_entry in zip(
        ids, column(b"job", ids), column(b"idle_ms"), column(b"new_entry"), strict=True
    ):
        idle = int(idle_ms or -1)
        yield Recovered(entry_id, outcome, new_entry, idle, consumer, job_id, times, traced.get(entry_id))
