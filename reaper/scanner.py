"""Reads the pending entries list, page by page, and arms a timer for each pending delivery.

A full scan replaces the timers of what is gone, streaming (`Timers.begin_sweep`). Between full scans only what lies
past the highest ID seen is read: new deliveries have higher IDs. Old IDs come back too (``XCLAIM FORCE``, ``XGROUP
SETID``, a refilled stream), which is what the periodic full scan is for.
"""

from collections.abc import Callable
from typing import Any

from anyio.lowlevel import checkpoint
from redis.asyncio import Redis

from reaper.clock import monotonic_ms
from reaper.failpoints import failpoint
from reaper.timers import Timers

FIRST = b"-"


class Scanner:
    """Scans one source (a stream or retry stream) of one group into its timers."""

    def __init__(
        self,
        client: Redis,
        source: str,
        group: str,
        visibility_ms: int,
        page: int,
        timers: Timers,
        armed: Callable[[], None],
    ) -> None:
        """``armed`` is called after each page, so that who sleeps for the next timer can look again."""
        self._client = client
        self._source = source
        self._group = group
        self._visibility_ms = visibility_ms
        self._page = page
        self._timers = timers
        self._armed = armed
        self._highest = FIRST

    async def full(self) -> int:
        """Scan everything, forget timers of what is gone; return how much is pending. Raises what redis-py raises."""
        self._timers.begin_sweep()
        self._highest = FIRST
        entries = await self.tail()
        while not self._timers.sweep():
            await checkpoint()
        return entries

    async def tail(self) -> int:
        """Scan what lies past the highest ID seen; return how much that was. Raises what redis-py raises."""
        entries = 0
        while True:
            failpoint("scan.before_page")
            rows = await self._read_page()
            self._arm(rows)
            entries += len(rows)
            if len(rows) < self._page:
                return entries

    async def _read_page(self) -> list[Any]:
        start = self._highest if self._highest is FIRST else b"(" + self._highest
        reply = await self._client.execute_command("XPENDING", self._source, self._group, start, "+", self._page)
        return list(reply)

    def _arm(self, rows: list[Any]) -> None:
        if not rows:
            return
        # Hot: a million of these in one scan. Overdue and unowned (idle -1) deliveries are due now.
        now, visibility_ms, arm = monotonic_ms(), self._visibility_ms, self._timers.arm
        for entry_id, _consumer, idle_ms, _count in rows:
            left = visibility_ms - idle_ms
            arm(entry_id, now + left if left > 0 and idle_ms >= 0 else now)
        self._highest = rows[-1][0]
        self._armed()
