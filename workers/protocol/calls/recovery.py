"""The calls for overdue deliveries, and the outcome of each delivery."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from redis.asyncio import Redis

from workers.protocol.calls import CALL_BYTES
from workers.protocol.calls.beat import RecoveryWait
from workers.protocol.calls.group_moves import GroupMoves, Recovery
from workers.protocol.calls.refusals import Refusal, RefusalKind
from workers.protocol.connection import KeptConnection
from workers.protocol.messages import told
from workers.protocol.scripts import load_script

RETURN_TAKEN = load_script("workers.protocol", "return_taken")
START = "-"
"""The cursor in front of the first entry."""
PAGE = 500
"""Pending entries that one call looks at."""


class Outcome(IntEnum):
    """What became of one delivery."""

    GONE = 0
    """It is not pending any more."""
    REDELIVERED = 1
    QUARANTINED = 2
    DEAD_LETTERED = 3
    NOT_DUE = 4
    LOST_PAYLOAD = 5
    HELD = 6
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
    """One delivery's result. ``detail``: new entry ID, dead letter's ID, remaining ms, or why it is held."""

    entry_id: bytes
    outcome: Outcome
    detail: bytes | int = b""
    idle_ms: int = 0
    consumer: bytes = b""
    job_id: bytes = b""
    delivery_count: int = 0
    traced: Sequence[bytes] | None = None
    """Of a traced job: traceparent, tracestate, the delivery's name, and what came before it."""

    @property
    def told(self) -> str:
        """The detail, for people."""
        return told(self.detail)


class Claimed(NamedTuple):
    """A delivery that was taken over, and counts."""

    entry_id: bytes
    times_delivered: int
    fields: Sequence[bytes]
    owner: bytes
    """Who had it before."""
    idle_ms: int


class Page(NamedTuple):
    """The results of one page of the pending entries list."""

    server_ms: int
    cursor: str
    """Where the next one begins; '' = the list was walked to its end."""
    soonest_ms: int | None
    """Time until the first delivery of the page is due that was left alone; None = there is none."""
    results: Sequence[Recovered]
    claimed: Sequence[Claimed]


def rows_of(found: Recovery) -> Iterator[Recovered]:
    """Return what a recovery call did to each delivery that it ended, or had to hold."""
    traced = {row[0]: row[1:] for row in found.traced}
    for event in found.events:
        yield from _rows_of_event(event, traced)
    for entry_id, consumer, why in found.held:
        yield Recovered(entry_id, Outcome.HELD, why.encode(), consumer=consumer)


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


def refusal_of(found: Recovery) -> Refusal | None:
    """Return the rejection of a recovery call, or None."""
    if found.status == "ok":
        return None
    wait = RecoveryWait(found.waits_ms, found.gap_ms) if found.status == RefusalKind.WAITS else None
    return Refusal(RefusalKind(found.status), found.lease, wait)


async def recover_page(
    client: KeptConnection, moves: GroupMoves, source: str, *, consumer: str, room: int, cursor: str
) -> Page | Refusal:
    """Recover what is overdue on one page, as an embedded worker that claims at most ``room`` deliveries."""
    found = await moves.recover_page(
        client, source, consumer=consumer, room=room, page=cursor, page_size=PAGE, most_bytes=CALL_BYTES
    )
    refusal = refusal_of(found)
    if refusal is not None:
        return refusal
    taken = {one.entry_id: one for one in found.taken}
    rows = list(rows_of(found))
    claimed = [
        Claimed(row.entry_id, taken[row.entry_id].times, taken[row.entry_id].flat, row.consumer, row.idle_ms)
        for row in rows
        if row.entry_id in taken
    ]
    results = [row for row in rows if row.entry_id not in taken]
    return Page(found.at_ms, found.next_page, min((ms for _, ms in found.due_in_ms), default=None), results, claimed)


async def return_taken(
    client: Redis, source: str, group: str, consumer: str, taken: Iterable[tuple[bytes, int]]
) -> int:
    """Give back what a read has taken from a live worker (``return_taken.lua``); return how many deliveries.

    ``taken``: entry IDs, and how often each was delivered before. Raises what redis-py raises.
    """
    words = [word for one in taken for word in one]
    given_back: int = await RETURN_TAKEN.run(client, (source,), (group, consumer, *words))
    return given_back
