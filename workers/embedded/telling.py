"""Reports the recoveries of an embedded group."""

import logging
from dataclasses import dataclass, field
from math import inf

from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.held import Source
from workers.protocol.calls.recovery import ENDED, Outcome, Page, Recovered
from workers.protocol.calls.refusals import explained
from workers.protocol.log_fields import fields
from workers.protocol.messages import first_of, text
from workers.runtime.clock import monotonic

logger = logging.getLogger(__name__)

TELL_EVERY_S = 1.0
"""The time between two lines about stalled deliveries during a walk."""
HELD_KNOWN = 1_000
"""Entries that cannot be copied and were reported. Above this number all are reported again."""


@dataclass(slots=True)
class Stalled:
    """Moves that are not logged yet. They get one line each second and at the end of a walk, not one for each page."""

    claimed: int = 0
    ready: int = 0
    quarantined: int = 0
    consumers: set[bytes] = field(default_factory=set)
    told_at: float = -inf

    def add(self, page: Page) -> None:
        """Add the results of one call."""
        self.claimed += len(page.claimed)
        self.consumers.update([one.owner for one in page.claimed])
        for row in page.results:
            self.consumers.add(row.consumer)
            self.ready += row.outcome is Outcome.REDELIVERED
            self.quarantined += row.outcome is Outcome.QUARANTINED

    def log(self, source: str, now: float) -> None:
        """Write the line if there are moves, and start over."""
        if self.claimed or self.ready or self.quarantined:
            logger.info(
                "recovered stalled deliveries: %s",
                fields(
                    source=source,
                    consumers=first_of(self.consumers),
                    claimed=self.claimed,
                    redelivered=self.ready,
                    quarantined=self.quarantined,
                ),
            )
            self.told_at = now
        self.claimed = self.ready = self.quarantined = 0
        self.consumers.clear()


class Telling(WorkerPart):
    """Log lines, callbacks, spans and measurements of one worker's recovery."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._stalled = {source.key: Stalled() for source in context.membership.both}
        self._held: set[tuple[bytes, bytes | int]] = set()

    def page(self, source: Source, page: Page) -> None:
        """Report the results of one call."""
        stalled = self._stalled[source.key]
        stalled.add(page)
        now = monotonic()
        if stalled.told_at + TELL_EVERY_S < now or not page.cursor:
            stalled.log(source.key, now)
        for row in page.results:
            self._report(source, row)
            if self._telemetry and row.outcome in ENDED:
                self._telemetry.recovered(row, self._membership.visibility_s)

    def _report(self, source: Source, row: Recovered) -> None:
        facts = {"entry": text(row.entry_id), "consumer": text(row.consumer), "delivery": row.delivery_count}
        match row.outcome:
            case Outcome.REDELIVERED:
                self._reporter.recovered(
                    text(row.job_id), **facts, idle_ms=row.idle_ms, new_entry=row.told, reason="visibility_timeout"
                )
            case Outcome.DEAD_LETTERED:
                self._reporter.write_dead_letter(
                    text(row.job_id),
                    limit=self._membership.agreement.max_deliveries,
                    **facts,
                    reason="max_deliveries",
                    error="not settled within the visibility timeout",
                    dead_letter=row.told,
                )
            case Outcome.LOST_PAYLOAD:
                self._reporter.lost_payload(source.key, text(row.entry_id))
            case Outcome.HELD if self._is_news(row):
                logger.error(
                    "cannot redeliver an entry, it stays pending: %s",
                    fields(
                        source=source.key,
                        entry=row.entry_id,
                        consumer=row.consumer or "none (XNACK)",
                        cause=explained(row.told),
                    ),
                )

    def _is_news(self, row: Recovered) -> bool:
        """Return whether a held entry was not reported yet. Each walk finds it again."""
        if len(self._held) >= HELD_KNOWN:
            self._held.clear()
        known = (row.entry_id, row.detail) in self._held
        self._held.add((row.entry_id, row.detail))
        return not known
