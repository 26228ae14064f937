"""Reads from the journal which deliveries are lost. `reaper groups requeue` makes them ready again.

Redis loses the deliveries of a consumer or a group that a third party deletes. The reaper reports them with
`lost_delivery` events. The entries are still in the stream, but no consumer receives them.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis.asyncio import Redis

from workers.protocol.events import ENDS, EventName, LifecycleEvent, events_of
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import is_entry_id, text

PAGE = 1_000
"""Journal entries that one call reads."""
_OF_INTEREST = ENDS | {EventName.LOST_DELIVERY}


class Entry(NamedTuple):
    """One entry of the stream, or of the group's retry stream; `is_retry` is None if it may be in either."""

    entry_id: str
    is_retry: bool | None = None


@dataclass(slots=True)
class JournalFindings:
    """The group's entries in the journal."""

    lost: dict[Entry, None] = field(default_factory=dict)
    """Reported as lost, and not as settled or requeued later; oldest first."""
    ended: set[str] = field(default_factory=set)
    """IDs of the entries that were settled or requeued, and not reported as lost later."""

    def take(self, event: LifecycleEvent) -> None:
        """Note an event; in the order of the journal."""
        entry_id = str(event.data.get("entry"))
        if event.event == EventName.LOST_DELIVERY:
            if is_entry_id(entry_id):  # other programs can write to the journal
                self.lost[Entry(entry_id, event.data.get("source") == "retry")] = None
                self.ended.discard(entry_id)
        elif event.data.get("new_entry") != entry_id:  # else it became ready where it is, and may be lost again
            self.ended.add(entry_id)
            for is_retry in (False, True):
                self.lost.pop(Entry(entry_id, is_retry), None)


async def read_journal(client: Redis, keys: GroupKeys, since_ms: int) -> JournalFindings:
    """Read the group's entries in the journal since ``since_ms``. Raises redis-py's errors."""
    found, start = JournalFindings(), f"{max(0, since_ms)}"
    while True:
        rows: Any = await client.execute_command("XRANGE", keys.journal, start, "+", "COUNT", PAGE)
        for entry_id, flat in rows:
            for event in events_of(entry_id, flat or (), _OF_INTEREST):
                if event.data.get("group") == keys.group:
                    found.take(event)
        if len(rows) < PAGE:
            return found
        start = f"({text(rows[-1][0])}"


async def forget_count(client: Redis, keys: GroupKeys) -> None:
    """Set the number of lost deliveries, which makes the service degraded, to 0. Raises redis-py's errors."""
    await client.hdel(keys.settings, "lost_delivery", "lost_delivery_ms")
