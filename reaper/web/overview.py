"""Gathers what the status page shows. Each look costs a few round trips, however many pages are open."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import quantiles
from typing import Any

import anyio
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from reaper.operations.dead_letters import DeadLetter, read_dead_letter
from reaper.operations.judgement import as_json, judge
from reaper.operations.snapshot import take_snapshot
from reaper.operations.state import Snapshot
from reaper.operations.streams import newest_first
from reaper.service import Reaper
from workers.protocol.events import EventName, LifecycleEvent, events_of
from workers.protocol.keys import OUR_CONSUMERS, GroupKeys
from workers.protocol.messages import text
from workers.protocol.server import Capabilities, capabilities_quietly, in_words
from workers.runtime.clock import monotonic

KEPT_S = 0.8
"""A look serves everybody for so long."""
RECOVERIES = 120
FIRST_LOOK = 2_000
"""Journal entries that are read for recoveries at first; later only what is new."""
NEWS = 5_000
LETTERS = 500
LETTER_PAGE = 50
LETTER_BYTES = 4_194_304
"""Dead letters are grouped by what the newest ones say, up to so many and so much payload."""
CONSUMERS = 200
_RECOVERIES = frozenset({EventName.RECOVERED, EventName.QUARANTINED, EventName.DEAD_LETTERED})


@dataclass(slots=True)
class RecoveryFeed:
    """The latest recoveries of one stream's journal, read once each."""

    last: str = ""
    events: deque[LifecycleEvent] = field(default_factory=lambda: deque(maxlen=RECOVERIES))

    async def read(self, client: Redis, journal: str) -> None:
        """Take what is new."""
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
        self._letters: dict[str, tuple[tuple[int, bytes], list[dict[str, Any]]]] = {}
        self._looking = anyio.Lock()
        self._looked_at = float("-inf")
        self._found: Mapping[str, Any] = {}
        self._can: Capabilities = {}

    async def look(self) -> Mapping[str, Any]:
        """Return the whole overview. Raises what redis-py raises where there is no contact."""
        async with self._looking:
            if monotonic() - self._looked_at > KEPT_S:
                self._found = await self._look()
                self._looked_at = monotonic()
            return self._found

    def forget(self) -> None:
        """Look anew the next time, after a change."""
        self._looked_at = float("-inf")

    async def snapshot(self) -> Snapshot:
        """Return what ``reaper status`` goes by."""
        settings = self._reaper.settings  # a reload changes them
        found = await take_snapshot(self._client, settings.namespace_keys, settings.watched, self._reaper.server)
        if not self._can:
            self._can = await capabilities_quietly(self._client)
        return replace(found, capabilities=self._can)

    async def _look(self) -> Mapping[str, Any]:
        snapshot = await self.snapshot()
        pairs = [group.keys for group in snapshot.groups]
        return {
            **as_json(snapshot, judge(snapshot)),
            "can": in_words(snapshot.capabilities),
            "recoveries": await self._recoveries(pairs, snapshot.now_ms),
            "consumers": [one for keys in pairs for one in await self._consumers(keys)],
            "dead_letters": [one for keys in pairs for one in await self._dead_letters(keys)],
        }

    # ---- recoveries

    async def _recoveries(self, pairs: Sequence[GroupKeys], now_ms: int) -> dict[str, Any]:
        journals = dict.fromkeys(keys.journal for keys in pairs)
        names = {(keys.journal, keys.group): keys.pair for keys in pairs}
        found: list[tuple[str, LifecycleEvent]] = []
        for journal in journals:
            feed = self._feeds.setdefault(journal, RecoveryFeed())
            await feed.read(self._client, journal)
            found += [(names.get((journal, str(event.data.get("group"))), ""), event) for event in feed.events]
        found.sort(key=lambda one: (one[1].at_ms, one[1].entry_id))
        told = [_recovery(pair, event) for pair, event in found if pair][-RECOVERIES:]
        return {"latency_ms": _quantiles([one["late_ms"] for one in told]), "now_ms": now_ms, "latest": told[::-1]}

    # ---- consumers

    async def _consumers(self, keys: GroupKeys) -> list[dict[str, Any]]:
        """Return the readers, which are our workers and foreign ones, with their deliveries."""
        found: list[dict[str, Any]] = []
        for source in (keys.stream, keys.retry):
            try:
                consumers: Any = await self._client.xinfo_consumers(source, keys.group)
            except ResponseError:
                continue  # no stream or group of that name
            found += [
                {
                    "group": keys.pair,
                    "source": source,
                    "name": text(one["name"]),
                    "pending": int(one["pending"]),
                    "idle_ms": int(one["idle"]),
                }
                for one in consumers
                if one["pending"] or text(one["name"]) not in OUR_CONSUMERS
            ]
        found.sort(key=lambda one: (-one["pending"], one["idle_ms"]))  # the largest holder comes first
        return found[:CONSUMERS]

    # ---- dead letters

    async def _dead_letters(self, keys: GroupKeys) -> list[dict[str, Any]]:
        if await self._client.type(keys.dead) != b"stream":
            return []
        newest: Any = await self._client.xrevrange(keys.dead, "+", "-", 1)
        mark = (int(await self._client.xlen(keys.dead)), newest[0][0] if newest else b"")
        known = self._letters.get(keys.dead)
        if known is None or known[0] != mark:
            known = self._letters[keys.dead] = (mark, _by_reason(keys, await self._newest(keys), mark[0]))
        return known[1]

    async def _newest(self, keys: GroupKeys) -> list[DeadLetter]:
        letters: list[DeadLetter] = []
        size = 0
        async for row in newest_first(self._client, keys.dead, LETTERS, LETTER_PAGE):
            letters.append(read_dead_letter(*row))
            size += sum(map(len, row[1]))
            if size >= LETTER_BYTES:
                break
        return letters


def _recovery(pair: str, event: LifecycleEvent) -> dict[str, Any]:
    return {
        "group": pair,
        "at_ms": event.at_ms,
        "job": event.job,
        "event": event.event,
        "late_ms": _lateness(event) or 0,
        "consumer": str(event.data.get("consumer", "")),
        "delivery": event.number("delivery"),
        "token": event.number("token"),
    }


def _quantiles(values: Sequence[int]) -> dict[str, int] | None:
    if not values:
        return None
    if len(values) == 1:
        return {"p50": values[0], "p95": values[0], "max": values[0]}
    cuts = quantiles(values, n=20, method="inclusive")
    return {"p50": round(cuts[9]), "p95": round(cuts[18]), "max": max(values)}


def _by_reason(keys: GroupKeys, letters: Sequence[DeadLetter], total: int) -> list[dict[str, Any]]:
    """Group letters, newest first, by why their jobs were given up."""
    groups: dict[str, dict[str, Any]] = {}
    for letter in letters:
        group = groups.setdefault(
            letter.reason,
            {
                "group": keys.pair,
                "reason": letter.reason,
                "number": 0,
                "at_least": len(letters) < total,
                "newest_ms": letter.at_ms,
                "sample": {"id": letter.entry_id, "job": letter.job_id, "error": letter.error[:500]},
            },
        )
        group["number"] += 1
    return sorted(groups.values(), key=lambda group: -int(group["number"]))
