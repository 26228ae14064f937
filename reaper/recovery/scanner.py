"""Reads the pending entries list, page by page, and arms a timer for each pending delivery.

A full scan replaces the timers of what is gone, streaming (`Timers.begin_sweep`). Between full scans only what lies
past the highest ID seen is read: new deliveries have higher IDs. Old IDs come back too (``XCLAIM FORCE``, ``XGROUP
SETID``, a refilled stream), which is what the periodic full scan is for.

Who holds what is noted on the way, packed: some 20 bytes a delivery. If a consumer is deleted, its deliveries are
known from the full scan before.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyio.lowlevel import checkpoint
from redis.asyncio import Redis

from reaper.failpoints import failpoint
from reaper.recovery.false_recoveries import FalseRecoveries
from reaper.recovery.timers import Timers
from workers.protocol.keys import NOBODY
from workers.protocol.messages import LAST_ENTRY_ID
from workers.runtime.clock import monotonic_ms

FIRST = b"-"
MOST_GONE = 200_000
"""Entries that are remembered of those that went between two full scans, the latest ones."""
LATEST_BYTES = 40_000
"""About 2,000 entry IDs."""
_NOBODY = NOBODY.encode()


@dataclass(slots=True, eq=False)
class Scanner:
    """Scans one source (a stream or retry stream) of one group into its timers."""

    client: Redis
    source: str
    group: str
    visibility_ms: int
    page: int
    timers: Timers
    armed: Callable[[], None]
    """Called after each page, so that who sleeps for the next timer can look again."""
    ready_consumers: frozenset[bytes] = frozenset()
    """Hold what is ready where it is (`NOBODY` is one): that falls due a visibility timeout after a reader has taken
    it, from now on."""
    forgotten: Callable[[Sequence[bytes], int], None] = lambda _entry_ids, _now_ms: None
    """Called with the entries that a full scan did not find any more, and the instant."""
    false_recoveries: FalseRecoveries = field(default_factory=FalseRecoveries)
    _highest: bytes = FIRST
    _held: dict[bytes, bytearray] = field(default_factory=dict)
    _held_before: dict[bytes, bytearray] = field(default_factory=dict)
    _gone: deque[bytes] = field(default_factory=lambda: deque(maxlen=MOST_GONE))
    _recovered: set[bytes] = field(default_factory=set)
    """Since the latest page was asked for."""

    def recovered(self, entry_ids: Iterable[bytes]) -> None:
        """Note what a call of ours has recovered: a page that is under way may show it as it was."""
        self._recovered.update(entry_ids)

    def gone(self, entry_id: bytes) -> None:
        """Note that a delivery is not pending any more, and not by us: somebody has settled it, or made it vanish."""
        self._gone.append(entry_id)

    def forget_holders(self, consumers: Iterable[bytes]) -> None:
        """Forget what ``consumers`` held: we ourselves have deleted them, when they held nothing."""
        for consumer in consumers:
            self._held.pop(consumer, None)
            self._held_before.pop(consumer, None)

    def forget_gone(self) -> None:
        """Forget what is gone, and who held it as of the full scan before."""
        self._gone.clear()
        self._held_before = {}

    def gone_by_consumer(self) -> dict[bytes, Sequence[bytes]]:
        """Return what is gone since the full scan before, and not by us, by the consumer that held it then."""
        gone = set(self._gone)
        held = {consumer: dict.fromkeys(bytes(ids).split()) for consumer, ids in self._held_before.items()}
        found = {consumer: [entry_id for entry_id in ids if entry_id in gone] for consumer, ids in held.items()}
        return {consumer: ids for consumer, ids in found.items() if ids}

    async def full(self) -> int:
        """Scan everything, forget timers of what is gone; return how much is pending. Raises what redis-py raises."""
        self.timers.begin_sweep()
        self.false_recoveries.scan_begins()
        self._highest = FIRST
        for consumer, ids in self._held.items():
            self._held_before.setdefault(consumer, bytearray()).extend(ids)
        self._held = {}
        entries = await self.tail()
        now = monotonic_ms()

        def forgets(ids: list[bytes]) -> None:
            self._gone.extend(ids)
            self.forgotten(ids, now)

        while not self.timers.sweep(forgets=forgets):
            await checkpoint()
        self.false_recoveries.scan_ends()
        return entries

    def recovered_from(self, consumer: bytes) -> None:
        """Note that a delivery of ``consumer`` was recovered, and watch the latest of the others that it holds."""
        held = self._held.get(consumer, bytearray())[-LATEST_BYTES:]
        self.false_recoveries.recovered(consumer, (one for one in bytes(held).split() if one in self.timers))

    async def tail(self) -> int:
        """Scan what lies past the highest ID seen; return how much that was. Raises what redis-py raises."""
        entries = 0
        while True:
            failpoint("scan.before_page")
            self._recovered.clear()
            rows = await self._read_page()
            self._arm(rows)
            entries += len(rows)
            if len(rows) < self.page:
                return entries

    async def _read_page(self) -> list[Any]:
        if self._highest == LAST_ENTRY_ID:
            return []
        start = self._highest if self._highest is FIRST else b"(" + self._highest
        reply = await self.client.execute_command("XPENDING", self.source, self.group, start, "+", self.page)
        return list(reply)

    def _arm(self, rows: list[Any]) -> None:
        if not rows:
            return
        # Hot: a million of these in one scan. Overdue and unowned (idle -1) deliveries are due now.
        now, visibility_ms, arm = monotonic_ms(), self.visibility_ms, self.timers.arm
        held, ready_consumers = self._held, self.ready_consumers
        recovered = self._recovered
        for entry_id, consumer, idle_ms, _ in rows:
            if recovered and entry_id in recovered:
                continue  # the row is of before
            ids = held.get(consumer)
            if ids is None:
                ids = held[consumer] = bytearray()
            ids += entry_id + b" "
            if consumer in ready_consumers:
                if not self.timers.keep(entry_id):  # what a timer tells is known no better by now
                    arm(entry_id, now + visibility_ms)
            elif 0 < idle_ms < visibility_ms:
                arm(entry_id, now + visibility_ms - idle_ms)
            elif idle_ms == 0:
                # Just handed out; or before the server's clock was set back: then it stays 0 until that is there again.
                if not self.timers.keep(entry_id):
                    arm(entry_id, now + visibility_ms)
            else:
                arm(entry_id, now)
        held.pop(_NOBODY, None)  # no consumer that could be missing
        self._highest = rows[-1][0]
        self.armed()
