"""Reads the data of the status page. A read costs a few round trips, however many pages are open."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from redis.asyncio import Redis

from reaper.operations.judgement import as_json, judge
from reaper.operations.snapshot import take_snapshot
from reaper.operations.state import Snapshot
from reaper.service import Reaper
from workers.protocol.events import EventName, LifecycleEvent, events_of
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import text
from workers.runtime.clock import monotonic

KEPT_S = 0.8
"""How long one read serves all pages."""
RECOVERIES = 60
FIRST_LOOK, NEWS = 2_000, 5_000
"""Journal entries that are read for recoveries at first, and later, when only new ones are read."""
_RECOVERIES = frozenset({EventName.RECOVERED, EventName.QUARANTINED, EventName.DEAD_LETTERED})


@dataclass(slots=True)
class RecoveryFeed:
    """The latest recoveries of one stream's journal, read once each."""

    last: str = ""
    events: deque[LifecycleEvent] = field(default_factory=lambda: deque(maxlen=RECOVERIES))

    async def read(self, client: Redis, journal: str) -> None:
        """Read the new entries."""
        if await client.type(journal) != b"stream":
            self.last = ""
            self.events.clear()
            return
        if not self.last:
            newest: Any = await client.xrevrange(journal, "+", "-", FIRST_LOOK)
            rows = newest[::-1]
        else:
            rows = await client.xrange(journal, f"({self.last}", "+", NEWS)
        for row in rows:
            self.last = text(row[0])
            self.events += [event for event in events_of(row[0], row[1], _RECOVERIES) if _lateness(event) is not None]


def _lateness(event: LifecycleEvent) -> int | None:
    """Return how long past its deadline a delivery was recovered in ms, or None without a deadline."""
    idle, visibility = event.number("idle_ms"), event.number("visibility_ms")
    return None if idle is None or visibility is None else max(0, idle - visibility)


class Overview:
    """The data that the page polls. Used in one event loop."""

    def __init__(self, client: Redis, reaper: Reaper) -> None:
        self._client = client
        self._reaper = reaper
        self._feeds: dict[str, RecoveryFeed] = {}
        self._looking = anyio.Lock()
        self._looked_at = float("-inf")
        self._found: Mapping[str, Any] = {}

    async def look(self) -> Mapping[str, Any]:
        """Return the whole overview. Raises redis-py's errors without contact."""
        async with self._looking:
            if monotonic() - self._looked_at > KEPT_S:
                snapshot = await self.snapshot()
                recoveries = await self._recoveries(group.keys for group in snapshot.groups)
                self._found = {**as_json(snapshot, judge(snapshot)), "recoveries": recoveries}
                self._looked_at = monotonic()
            return self._found

    async def snapshot(self) -> Snapshot:
        """Return the state of the groups, as ``reaper status`` reads it."""
        settings = self._reaper.settings
        return await take_snapshot(self._client, settings.namespace_keys, settings.groups, self._reaper.server)

    async def _recoveries(self, groups: Iterable[GroupKeys]) -> list[dict[str, Any]]:
        """Return the latest recoveries in these groups, the newest first."""
        pairs = {(keys.journal, keys.group): keys.pair for keys in groups}
        found: list[tuple[str, LifecycleEvent]] = []
        for journal in dict.fromkeys(journal for journal, _ in pairs):
            feed = self._feeds.setdefault(journal, RecoveryFeed())
            await feed.read(self._client, journal)
            found += [(pairs.get((journal, str(event.data.get("group"))), ""), event) for event in feed.events]
        found.sort(key=lambda one: (one[1].at_ms, one[1].entry_id), reverse=True)
        return [_recovery(pair, event) for pair, event in found if pair][:RECOVERIES]


def _recovery(pair: str, event: LifecycleEvent) -> dict[str, Any]:
    return {
        "group": pair,
        "at_ms": event.at_ms,
        "job": event.job,
        "event": event.event,
        "late_ms": _lateness(event) or 0,
        "consumer": str(event.data.get("consumer", "")),
    }
