"""The scripts that act for a whole group. A replica calls them with its lease, embedded workers without one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.protocol.calls.core import Client, CoreCalls, Taken
from workers.protocol.messages import text
from workers.protocol.scripts import load_script

RECOVER = load_script("workers.protocol", "recover")
MOVE_DUE = load_script("workers.protocol", "move_due")
EMBEDDED = ""
"""The lease of an embedded worker: none."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a recovery call did. `status`: ok, stale, unknown, paused, or waits (because of the beat)."""

    status: str
    lease: str = ""
    """What was found in its place, with stale."""
    at_ms: int = 0
    """The server's time; only with ok."""
    waits_ms: int = 0
    gap_ms: int = 0
    next_page: str = ""
    """Where to go on, '' = all was looked at. Of a replica: the first entry that was put off."""
    due_in_ms: Sequence[tuple[bytes, int]] = ()
    """Entries that are not overdue yet."""
    held: Sequence[tuple[bytes, bytes, str]] = ()
    """Entries that cannot be copied, their consumers, and why."""
    taken: Sequence[Taken] = ()
    events: Sequence[Sequence[bytes]] = ()
    """Flat fields, as in the journal."""
    traced: Sequence[Sequence[bytes]] = ()
    """Of each traced job that has left its delivery: entry ID, traceparent, tracestate, the delivery's name, and what
    came before it."""


@dataclass(frozen=True, slots=True)
class DueMoves:
    """What the call did. `status`: ok, stale, unknown or paused."""

    status: str
    lease: str = ""
    """What was found in its place, with stale."""
    next_ms: int = -1
    """Until the next job is due; 0 = call again, -1 = none is scheduled."""
    quarantined: int = 0
    released: int = 0
    """Released jobs that are not settled."""
    released_now: tuple[str, str] | None = None
    """Job ID and new entry of the job released by this call."""
    settled: int = 0
    """Released jobs that are settled since the last call."""
    held: int = 0
    """Due jobs that cannot be made ready; ``why``: the reason of the last one."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class GroupMoves(CoreCalls):
    """The scripts that act for one group."""

    def _leads(self) -> tuple[str, ...]:
        return self.keys.lease, self.keys.stream_schedule

    async def recover(
        self, client: Client, source: str, ids: Iterable[bytes], *, lease: str, token: int, most_bytes: int
    ) -> Recovery:
        """Recover what of these entries is overdue, as the holder of the lease (``recover.lua``)."""
        words = self._words(lease, token, most_bytes, *ids)
        return _recovery(await RECOVER.run(client, (*self._names(source), self.keys.lease), words))

    async def recover_page(
        self, client: Client, source: str, *, consumer: str, room: int, page: str, page_size: int, most_bytes: int
    ) -> Recovery:
        """Recover what is overdue in a page, as an embedded worker, which takes what it has ``room`` for."""
        words = self._words(EMBEDDED, 0, most_bytes, consumer, room, page, page_size)
        return _recovery(await RECOVER.run(client, (*self._names(source), self.keys.lease), words))

    async def move_due(self, client: Client, *, lease: str, token: int, most: int) -> DueMoves:
        """Make due jobs ready, and release a quarantined one (``move_due.lua``)."""
        names = (*self._names(self.keys.stream), *self._leads())
        status, *rest = await MOVE_DUE.run(client, names, self._words(lease, token, most))
        if len(rest) < 2:
            return DueMoves(text(status), text(rest[0]) if rest else "")
        next_ms, quarantined, released, now, settled, held, why = rest
        released_now = (text(now[0]), text(now[1])) if now else None
        return DueMoves(text(status), "", next_ms, quarantined, released, released_now, settled, held, text(why))


def _recovery(reply: Any) -> Recovery:
    status = text(reply[0])
    if status == "waits":
        return Recovery(status, waits_ms=reply[1], gap_ms=reply[2])
    if status != "ok":
        return Recovery(status, text(reply[1]) if len(reply) > 1 else "")
    _, at_ms, next_page, due, held, taken, events, traced = reply
    return Recovery(
        status,
        at_ms=at_ms,
        next_page=text(next_page),
        due_in_ms=list(zip(due[::2], due[1::2], strict=True)),
        held=[
            (entry_id, consumer, text(why))
            for entry_id, consumer, why in zip(held[::3], held[1::3], held[2::3], strict=True)
        ],
        taken=[Taken(entry[0], entry[1], times) for entry, times in taken],
        events=events,
        traced=traced,
    )
