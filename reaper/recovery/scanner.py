"""Reads the pending entries list, page by page, and arms a timer for each pending delivery.

A full scan forgets the timers of settled deliveries (`Timers.begin_sweep`). Between full scans, only entries behind the
highest ID are read, because new deliveries have higher IDs. Old IDs can come back (``XCLAIM FORCE``, ``XGROUP SETID``,
a refilled stream). Full scans find them.

On the way it notes which consumer has which deliveries, in some 20 bytes a delivery. If a consumer is deleted, its
deliveries are known from the full scan before.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from anyio.lowlevel import checkpoint
from redis.asyncio import Redis

from reaper.failpoints import failpoint
from reaper.lease import PAGE
from reaper.recovery.false_recoveries import FalseRecoveries
from reaper.recovery.timers import Timers
from workers.protocol.keys import NOBODY
from workers.protocol.messages import CLAIM_READY_MS
from workers.runtime.clock import monotonic_ms

FIRST = b"-"
LAST_ID = b"18446744073709551615-18446744073709551615"
MOST_GONE = 200_000
"""Entries settled between two full scans that are remembered."""
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
    timers: Timers
    armed: Callable[[], None]
    """Called after each page that armed timers."""
    page: int = PAGE
    in_place: bool = False
    """An entry that was given back is ready where it is. It falls due a visibility timeout after a reader has taken it,
    from now on."""
    forgotten: Callable[[Sequence[bytes]], None] = lambda _entry_ids: None
    """Called with entries that the latest full scan did not find."""
    false_recoveries: FalseRecoveries = field(default_factory=FalseRecoveries)
    after: bytes = FIRST
    """Start of the next page of new deliveries, behind the highest ID seen."""
    _pages: int = 0
    """Pages without an answer yet."""
    _held: dict[bytes, bytearray] = field(default_factory=dict)
    _held_before: dict[bytes, bytearray] = field(default_factory=dict)
    _gone: dict[bytes, None] = field(default_factory=dict)
    _recovered: dict[bytes, None] = field(default_factory=dict)
    """Entries recovered since the page without an answer was requested."""

    def recovered(self, entry_ids: Iterable[bytes]) -> None:
        """Note recovered entries, because a page without an answer may show their former state."""
        if self._pages:
            self._recovered.update(dict.fromkeys(entry_ids))

    def gone(self, entry_id: bytes) -> None:
        """Note that a delivery is not pending any more, and was not recovered."""
        if len(self._gone) < MOST_GONE:
            self._gone[entry_id] = None

    def forget_holders(self, consumers: Iterable[bytes]) -> None:
        """Forget the entries of ``consumers``, which the cleanup deleted because they had none."""
        for consumer in consumers:
            self._held.pop(consumer, None)
            self._held_before.pop(consumer, None)

    def forget_gone(self) -> None:
        """Forget the entries that are gone, and their consumers as of the full scan before."""
        self._gone = {}
        self._held_before = {}

    def gone_by_consumer(self) -> dict[bytes, Sequence[bytes]]:
        """Return the entries that are gone since the full scan before, and not recovered, by their former consumer."""
        held = {consumer: dict.fromkeys(bytes(ids).split()) for consumer, ids in self._held_before.items()}
        found = {consumer: [entry_id for entry_id in ids if entry_id in self._gone] for consumer, ids in held.items()}
        return {consumer: ids for consumer, ids in found.items() if ids}

    async def full(self) -> int:
        """Scan the whole list, and forget timers of other entries. Return the number of entries. Raises RedisError."""
        self.timers.begin_sweep()
        self.false_recoveries.scan_begins()
        self._held_before = self._held if not self._held_before else self._all_held()
        self._held = {}
        entries = await self._read_all()
        while (forgotten := self.timers.sweep()) is not None:
            for entry_id in forgotten:
                self.gone(entry_id)
            self.forgotten(forgotten)
            await checkpoint()
        self.false_recoveries.scan_ends()
        return entries

    def _all_held(self) -> dict[bytes, bytearray]:
        """Return the entries of each consumer since the last complete scan, because later scans failed.

        Entries that are neither pending nor gone are left out, because Redis may deny a part of every scan.
        """
        found: dict[bytes, bytearray] = {}
        for consumer in self._held_before.keys() | self._held.keys():
            ids = bytes(self._held_before.get(consumer, b"") + self._held.get(consumer, b"")).split()
            left = [one for one in dict.fromkeys(ids) if one in self.timers or one in self._gone]
            found[consumer] = bytearray(b"".join(one + b" " for one in left))
        return {consumer: ids for consumer, ids in found.items() if ids}

    async def _read_all(self) -> int:
        entries, start = 0, FIRST
        while True:
            failpoint("scan.before_page")
            self.page_begins()
            try:
                rows = await self.client.execute_command("XPENDING", self.source, self.group, start, "+", self.page)
                self.saw(rows)
            finally:
                self.page_ends()
            entries += len(rows)
            if len(rows) < self.page:
                return entries
            start = _behind(rows)  # not `after`, because a tick may have moved it

    def recovered_from(self, consumer: bytes) -> None:
        """Note that a delivery of ``consumer`` was recovered, and watch the latest of the others that it holds."""
        held = self._held.get(consumer, bytearray())[-LATEST_BYTES:]
        self.false_recoveries.recovered(consumer, (one for one in bytes(held).split() if one in self.timers))

    def page_begins(self) -> None:
        """Remember entries that are recovered from now on. The next page may show their former state."""
        self._pages += 1

    def page_ends(self) -> None:
        """Note that a page was read, or failed."""
        self._pages -= 1
        if not self._pages:
            self._recovered = {}

    def saw(self, rows: Sequence[Any]) -> None:
        """Arm a timer for each row of ``XPENDING``. The next page begins behind the last one."""
        if not rows:
            return
        # One scan may have a million rows. Overdue and unowned (idle -1) deliveries are due now.
        now, visibility_ms, arm, keep = monotonic_ms(), self.visibility_ms, self.timers.arm, self.timers.keep
        held, recovered = self._held, self._recovered
        ready_ms, unowned_ms = (CLAIM_READY_MS, 0) if self.in_place else (inf, -inf)
        for entry_id, consumer, idle_ms, _ in rows:
            if recovered and entry_id in recovered:
                continue  # the row shows its former state
            ids = held.get(consumer)
            if ids is None:
                ids = held[consumer] = bytearray()
            ids += entry_id + b" "
            if idle_ms >= ready_ms or idle_ms < unowned_ms:
                if not keep(entry_id):  # the timer is more exact than a scan
                    arm(entry_id, now + visibility_ms)
            elif 0 < idle_ms < visibility_ms:
                arm(entry_id, now + visibility_ms - idle_ms)
            elif idle_ms or not keep(entry_id):
                # Overdue, or just delivered. After the server's clock was set back, the idle time stays 0 for long. The
                # script restarts it, and returns when the entry is due.
                arm(entry_id, now)
        held.pop(_NOBODY, None)  # it is no consumer that a third party could delete
        self.after = _behind(rows)
        self.armed()


def _behind(rows: Sequence[Any]) -> bytes:
    """Return where the page behind ``rows`` begins. Behind the last ID of all there is none, so it is read again."""
    last = bytes(rows[-1][0])
    return last if last == LAST_ID else b"(" + last
