"""Embedded recovery is one more source of deliveries, beside reading. Only the workers look for stalled deliveries.

Each worker scans the pending entries list of each source, one page per call. It keeps the cursor between calls, so
live deliveries at the front never hide dead ones behind them. It claims overdue deliveries for its free slots. If it
has no free slot, it makes them ready for all workers (see ``recover.lua``).

A scan returns when the next delivery on its way is due. Later deliveries are due a whole visibility timeout after
their start or later. So the next scan starts at the earlier of the two moments.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.in_flight import Delivery, Source
from workers.protocol.calls.group_moves import GroupMoves
from workers.protocol.calls.recovery import ENDED, START, Outcome, Recovered, Recovery
from workers.protocol.calls.refusals import RecoveryWait, Refusal, RefusalKind, explained
from workers.protocol.connection import KeptConnection
from workers.protocol.log_fields import fields
from workers.protocol.messages import first_of, text
from workers.runtime.clock import monotonic

logger = logging.getLogger(__name__)

PAGE_PAUSE_S = 0.005
"""Pause between pages of a scan that found no stalled delivery."""
REFUSED_S = 1.0
"""Pause after a call that was rejected."""
SPACING_PART, SHORTEST_SPACING_S, LONGEST_SPACING_S = 100, 0.02, 0.25
"""The pause between two scans is at least this part of the visibility timeout, so that a scan finds several at once."""
REPORTED_MOST = 1_000
"""Undeliverable entries that were reported. Above this number all are reported again."""


@dataclass(slots=True)
class Walk:
    """A scan of the pending entries list of one source. Times are monotonic seconds."""

    source: Source
    cursor: str = START
    began: float = 0.0
    due_at: float = 0.0
    """When to ask for the next page."""
    soonest: float = inf
    """When the first delivery becomes overdue that this scan has left alone."""

    def due_in_s(self, now: float, visibility_s: float) -> float:
        """Return the seconds until the next call. 0 is now.

        It is at most a visibility timeout after the scan began, because the timeout can become shorter meanwhile.
        """
        return max(0.0, min(self.due_at, self.began + visibility_s + LONGEST_SPACING_S) - now)


class Autoclaim(WorkerPart):
    """Decides what a worker of an embedded group recovers, and when."""

    def __init__(self, context: WorkerContext, quarantine_waits: Callable[[], None]) -> None:
        """``quarantine_waits`` is called if the group has quarantined jobs, or released ones."""
        super().__init__(context)
        self._connection = KeptConnection(context.commands)
        self._quarantine_waits = quarantine_waits
        self._moves = GroupMoves(context.settings.keys, context.journal_limit)
        self._walks = {source.key: Walk(source) for source in context.membership.both}
        self._not_before = 0.0
        self._waits_until = -inf
        self._reason = ""
        self._undeliverable: set[tuple[bytes, bytes | int]] = set()

    # ---- when

    def due_in_s(self) -> float:
        """Return the seconds until the next call, or inf while a reaper recovers."""
        if not self._membership.recovers:
            return inf
        now = monotonic()
        return max(self._not_before - now, min(due_in_s for due_in_s, _ in self._walks_now(now)))

    def _walks_now(self, now: float) -> list[tuple[float, Walk]]:
        """Return the scans with the seconds until their next calls."""
        visibility_s = self._membership.visibility_s
        walks = [self._walks[source.key] for source in self._membership.sources]
        return [(walk.due_in_s(now, visibility_s), walk) for walk in walks]

    def put_off(self, pause_s: float) -> None:
        """Request no page for a while, because Redis rejected a call."""
        self._not_before = monotonic() + pause_s

    # ---- calls

    async def take(self, room: int) -> list[Delivery]:
        """Recover the overdue deliveries of the next page. Return the ones that are ours now, at most ``room``.

        Raises errors of redis-py. A call with a lost reply may have claimed deliveries. The worker finds them when it
        takes stock (`workers.loop.adoption`), or they are due again.
        """
        asked_at = monotonic()
        _, walk = min(self._walks_now(asked_at), key=lambda one: (one[0], one[1].due_at))
        if walk.cursor == START:
            walk.began = asked_at
        page = await self._call(walk, room)
        if isinstance(page, Refusal):
            await self._refused(page)
            return []
        if self._is_new(""):
            logger.warning("recovery resumed: %s", fields(group=self._settings.keys.pair))
        self._advance(walk, page)
        if any(row.outcome is Outcome.QUARANTINED for row in page.rows):
            self._quarantine_waits()
        self._report(walk.source, page)
        return self._deliveries(walk.source, page, asked_at)

    async def _call(self, walk: Walk, room: int) -> Recovery | Refusal:
        return await self._moves.recover_page(
            self._connection, walk.source.key, consumer=self._consumer, room=room, page=walk.cursor
        )

    def _advance(self, walk: Walk, page: Recovery) -> None:
        """Note how far the scan has come, and when it goes on."""
        now = monotonic()
        walk.soonest = min([walk.soonest, *(now + ms / 1000 for _, ms in page.due_in_ms)])
        if page.next_page:
            walk.cursor = page.next_page
            walk.due_at = now + (0.0 if page.taken or page.rows else PAGE_PAUSE_S)
            return
        self._telemetry.walked(now - walk.began)
        visibility_s = self._membership.visibility_s
        spacing = min(max(visibility_s / SPACING_PART, SHORTEST_SPACING_S), LONGEST_SPACING_S)
        walk.due_at = max(now, min(walk.soonest, walk.began + visibility_s)) + random.uniform(0.5, 1) * spacing
        walk.cursor, walk.soonest = START, inf

    def _deliveries(self, source: Source, page: Recovery, asked_at: float) -> list[Delivery]:
        deliveries = [
            self._membership.delivery(source, one.entry_id, one.flat, one.times, asked_at) for one in page.taken
        ]
        source.kept.difference_update(job.raw_entry_id for job in deliveries)
        self._reporter.claimed(deliveries, page, self._membership.visibility_s)
        return deliveries

    # ---- reports

    def _report(self, source: Source, page: Recovery) -> None:
        outcomes = [row.outcome for row in page.rows]
        moved = {
            "claimed": len(page.taken),
            "redelivered": outcomes.count(Outcome.REDELIVERED),
            "quarantined": outcomes.count(Outcome.QUARANTINED),
        }
        if any(moved.values()):
            consumers = {one.owner for one in page.taken} | {row.consumer for row in page.rows}
            logger.info(
                "recovered stalled deliveries: %s",
                fields(group=self._settings.keys.pair, consumers=first_of(consumers), **moved),
            )
        for row in page.rows:
            self._report_row(source, row)
            if row.outcome in ENDED:
                self._telemetry.recovered(row, self._membership.visibility_s)

    def _report_row(self, source: Source, row: Recovered) -> None:
        job = text(row.job_id)
        facts = {"entry": text(row.entry_id), "consumer": text(row.consumer), "delivery": row.delivery_count}
        match row.outcome:
            case Outcome.REDELIVERED:
                self._reporter.recovered(
                    job, **facts, idle_ms=row.idle_ms, new_entry=text(row.detail), reason="visibility_timeout"
                )
            case Outcome.DEAD_LETTERED:
                limit, error = (
                    self._membership.group_settings.max_deliveries,
                    "not settled within the visibility timeout",
                )
                self._reporter.write_dead_letter(
                    job, limit=limit, **facts, reason="max_deliveries", error=error, dead_letter=text(row.detail)
                )
            case Outcome.LOST_PAYLOAD:
                self._reporter.lost_payload(source.key, text(row.entry_id))
            case Outcome.HELD if (row.entry_id, row.detail) not in self._undeliverable:  # each scan finds it again
                if len(self._undeliverable) >= REPORTED_MOST:
                    self._undeliverable.clear()
                self._undeliverable.add((row.entry_id, row.detail))
                logger.error(
                    "cannot redeliver an entry, it stays pending: %s",
                    fields(
                        group=self._settings.keys.pair,
                        entry=row.entry_id,
                        consumer=row.consumer or "none (XNACK)",
                        cause=explained(text(row.detail)),
                    ),
                )

    # ---- rejected calls

    async def _refused(self, refusal: Refusal) -> None:
        self.put_off(REFUSED_S)
        pair = self._settings.keys.pair
        match refusal.kind:
            case RefusalKind.STALE | RefusalKind.UNKNOWN:
                await self._membership.join()
            case RefusalKind.WAITS if refusal.wait:
                self.put_off(refusal.wait.left_ms / 1000)
                self._log_wait(refusal.wait)
            case RefusalKind.PAUSED:
                if self._is_new(refusal.kind):
                    command = f"reaper groups resume {self._settings.keys.word}"
                    logger.warning("recovery paused: %s", fields(group=pair, to_resume=command))
            case _:
                if self._is_new(refusal.detail):
                    logger.warning("recovery disabled: %s", fields(group=pair, cause=explained(refusal.detail)))

    def _log_wait(self, wait: RecoveryWait) -> None:
        """Log once a gap that recovery waits."""
        if self._not_before > self._waits_until + 1:
            logger.info("recovery waits for heartbeats: %s", fields(group=self._settings.keys.pair, **wait.facts()))
        self._waits_until = self._not_before

    def _is_new(self, reason: str) -> bool:
        """Note the reason why recovery does not act, or '' if it acts. Return whether that has changed."""
        is_new = reason != self._reason
        self._reason = reason
        return is_new
