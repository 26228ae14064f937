"""Embedded recovery: each worker looks for stalled deliveries in the pending entries list of each source.

It scans page by page, so live deliveries at the front never hide dead ones behind them. It claims overdue deliveries
for its own free slots. While no slot is free, they become ready by the policy of the group, so that idle workers read
them (``recover.lua``).

A scan returns when the next delivery on its way is due. Deliveries that are read later are due a whole
visibility timeout after their read or later. So the next scan starts at the earlier of the two moments.
"""

import logging
import random
from collections.abc import Callable
from math import inf
from typing import Any

import anyio

from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.in_flight import Source
from workers.loop.reading import Reader
from workers.protocol.calls.declined import Declined, DeclineReason, explained
from workers.protocol.calls.group_moves import START, GroupMoves, Outcome, Recovered, Recovery
from workers.protocol.connection import KeptConnection
from workers.protocol.log_fields import fields
from workers.protocol.messages import text
from workers.runtime.clock import monotonic
from workers.upkeep.recovery_log import RecoveryLog

logger = logging.getLogger(__name__)

RECOVERING = "recovering stalled deliveries"
PAGE = 500
"""Pending entries that one call looks at."""
PAGES_OF_A_TURN = 16
"""Pages without a read between them. The server works on each of them while the jobs of the last one run."""
PAGE_PAUSE_S = 0.005
"""Pause between pages of a scan that found no stalled delivery."""
SPACING_PART, SHORTEST_SPACING_S, LONGEST_SPACING_S = 100, 0.02, 0.25
"""The pause between two scans is at least this part of the visibility timeout, so that a scan finds several at once."""
REPORTED_MOST = 1_000
"""Undeliverable entries that were reported. Above this number all are reported again."""


class Autoclaim(WorkerPart):
    """Recovers the stalled deliveries of an embedded group."""

    def __init__(self, context: WorkerContext, reader: Reader, quarantine_waits: Callable[[], None]) -> None:
        """``quarantine_waits`` is called if jobs were quarantined."""
        super().__init__(context)
        self._reader = reader
        self._quarantine_waits = quarantine_waits
        self._moves = GroupMoves(self._settings.keys, self._settings.journal_limit)
        self._undeliverable: set[tuple[bytes, bytes | int]] = set()
        self.recovery_log = RecoveryLog(self._settings.keys)
        self._connection = KeptConnection(self._commands)
        self._is_paused = False
        self._soonest = inf
        """When the next delivery is due, as far as the scan has come, on the monotonic clock."""

    async def scan(self) -> Declined | None:
        """Recover the overdue deliveries, and wait until the next scan. Return why a call was declined.

        Raises redis-py's errors.
        """
        began, self._soonest = monotonic(), inf
        for source in self._membership.sources:
            cursor, found_some = START, False
            while cursor:
                async with self._reader.turn:
                    page = await self._recover_pages(source, cursor, found_some=found_some)
                if isinstance(page, Declined):
                    self._log_declined(page)
                    self.recovery_log.log(at_the_end=True)
                    return page
                found_some = bool(page.claimed)
                cursor = page.next_page
                page_pause_s = 0.0 if page.rows else PAGE_PAUSE_S
                self._reader.scan_at = monotonic() + page_pause_s
                if cursor:
                    await anyio.sleep(page_pause_s)
        ended = monotonic()
        self._telemetry.scanned(ended - began)
        spacing = min(max(self._membership.visibility_s / SPACING_PART, SHORTEST_SPACING_S), LONGEST_SPACING_S)
        pause_s = random.uniform(0.5, 1) * spacing
        while (scan_at := max(ended, self._next_scan_at(began)) + pause_s) > monotonic():
            self._reader.scan_at = scan_at
            self.recovery_log.log()
            with anyio.move_on_after(min(scan_at, self.recovery_log.due_at()) - monotonic()):
                await self._membership.joined.wait()  # the visibility timeout can be shorter now
        return None

    async def _recover_pages(self, source: Source, cursor: str, *, found_some: bool) -> Recovery | Declined:
        """Recover pages as long as they claim deliveries and leave room for more. Return the last one."""
        for _ in range(PAGES_OF_A_TURN):
            room = self._reader.room
            most = room or PAGE if found_some else PAGE  # behind claimed entries, the next ones mostly are overdue, too
            call = self._moves.recover_page(
                self._connection, source.key, source.kept, consumer=self._consumer, page=cursor, most=most, room=room
            )
            page = await self._reader.claim(source, call)
            if isinstance(page, Declined):
                break
            self._report(source, page)
            cursor, found_some = page.next_page, bool(page.claimed)
            if not (cursor and found_some and self._reader.room):
                break
        return page

    def _next_scan_at(self, began: float) -> float:
        return min(self._soonest, began + self._membership.visibility_s)

    # ---- reports

    def _log_declined(self, declined: Declined) -> None:
        """Log a pause once, and each gap in the heartbeats once."""
        if declined.reason is DeclineReason.PAUSED and not self._is_paused:
            self._is_paused = True
            command = f"reaper groups resume {self._settings.keys.word}"
            logger.warning("recovery paused: %s", fields(group=self._settings.keys.name, to_resume=command))
        if declined.wait:
            self.recovery_log.waits(declined.wait)

    def _report(self, source: Source, page: Recovery) -> None:
        self._reporter.works(RECOVERING)
        if self._is_paused:
            self._is_paused = False
            logger.warning("recovery resumed: %s", fields(group=self._settings.keys.name))
        self._soonest = min([self._soonest, *(monotonic() + ms / 1000 for _, ms in page.due_in_ms)])
        self.recovery_log.add(page.rows)
        self._telemetry.recovered(page.rows, self._membership.visibility_s)
        unreported = () if self._reporter.wants_recoveries else (Outcome.CLAIMED, Outcome.REDELIVERED)
        for row in page.rows:
            if row.outcome not in unreported:
                self._report_row(source, row)

    def _report_row(self, source: Source, row: Recovered) -> None:
        job, detail, entry = text(row.job_id), text(row.detail), text(row.entry_id)
        facts: dict[str, Any] = {"entry": entry, "consumer": text(row.consumer), "delivery": row.delivery_count}
        match row.outcome:
            case Outcome.CLAIMED | Outcome.REDELIVERED:
                facts |= {"idle_ms": row.idle_ms, "new_entry": detail, "reason": "visibility_timeout"}
                self._reporter.recovered(job, **facts)
            case Outcome.DEAD_LETTERED:
                facts |= {"reason": "max_deliveries", "error": "not settled within the visibility timeout"}
                limit = self._membership.group_settings.max_deliveries
                self._reporter.dead_lettered(job, limit=limit, dead_letter=detail, **facts)
            case Outcome.QUARANTINED:
                self._quarantine_waits()
            case Outcome.LOST_PAYLOAD:
                self._reporter.lost_payload(source.key, entry)
            case Outcome.HELD if (row.entry_id, row.detail) not in self._undeliverable:  # each scan finds it again
                if len(self._undeliverable) >= REPORTED_MOST:
                    self._undeliverable.clear()
                self._undeliverable.add((row.entry_id, row.detail))
                group, consumer, cause = self._settings.keys.name, row.consumer or "none (XNACK)", explained(detail)
                logger.error(
                    "cannot redeliver an entry, it stays pending: %s",
                    fields(group=group, entry=row.entry_id, consumer=consumer, cause=cause),
                )
