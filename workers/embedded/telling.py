"""What the recovery of an embedded group tells."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from time import monotonic, time_ns
from typing import Any, NamedTuple

from workers.loop.context import WorkerContext
from workers.loop.job import Source
from workers.loop.reporting import explained
from workers.protocol.messages import on_one_line, text

logger = logging.getLogger(__name__)

TELL_EVERY_S = 1.0
"""How often a line tells of what stalled while a walk goes on."""
HELD_KNOWN = 1_000
"""Entries that cannot be copied and were told of; beyond it, all are told again."""


class Outcome(IntEnum):
    """What became of an overdue delivery that was not claimed. Numbers as in ``recovery.lua``."""

    REDELIVERED = 1
    SUSPECTED = 2
    DEAD_LETTERED = 3
    LOST_PAYLOAD = 5
    HELD = 6


_ENDED = frozenset({Outcome.REDELIVERED, Outcome.SUSPECTED, Outcome.DEAD_LETTERED})


class Recovered(NamedTuple):
    """One of them. ``detail``: new entry ID, dead letter's ID, or why it is held."""

    outcome: Outcome
    detail: str
    idle_ms: int
    consumer: str
    job_id: str
    delivery: int
    entry_id: str
    traced: Sequence[bytes] | None = None
    """What ``recovery.lua`` tells of a traced job."""


@dataclass(slots=True)
class Stalled:
    """What was moved and not told of yet: one line each second, and at the end of a walk, not one a page."""

    claimed: int = 0
    ready: int = 0
    parked: int = 0
    consumers: set[bytes | str] = field(default_factory=set)
    told_at: float = -inf

    def add(self, rows: Sequence[Recovered], claimed: Sequence[Any]) -> None:
        """Add what one call has done: results, and what was claimed."""
        self.claimed += len(claimed)
        self.consumers.update([row[3] for row in claimed])
        for row in rows:
            self.consumers.add(row.consumer)
            self.ready += row.outcome is Outcome.REDELIVERED
            self.parked += row.outcome is Outcome.SUSPECTED

    def log(self, source: str, now: float) -> None:
        """Write the line, if there is anything to tell, and begin anew."""
        moved = self.claimed + self.ready + self.parked
        if moved:
            named = sorted({on_one_line(text(name)) for name in self.consumers})
            logger.info(
                "%s: %d deliveries of %s stalled: %d claimed, %d ready again, %d parked as suspects",
                source,
                moved,
                ", ".join(named[:3]) + (" …" if len(named) > 3 else ""),
                self.claimed,
                self.ready,
                self.parked,
            )
            self.told_at = now
        self.claimed = self.ready = self.parked = 0
        self.consumers.clear()


class Telling:
    """Log lines, callbacks, spans and measurements of one worker's recovery."""

    def __init__(self, context: WorkerContext) -> None:
        self._membership = context.membership
        self._reporter = context.reporter
        self._telemetry = context.telemetry
        self._stalled = {source.key: Stalled() for source in context.membership.both}
        self._held: set[tuple[str, str]] = set()

    def page(self, source: Source, results: Sequence[Any], claimed: Sequence[Any], *, is_last: bool) -> None:
        """Tell of what one call has done; ``is_last``: it ended a walk."""
        rows = [_recovered(result) for result in results]
        stalled = self._stalled[source.key]
        stalled.add(rows, claimed)
        now = monotonic()
        if stalled.told_at + TELL_EVERY_S < now or is_last:
            stalled.log(source.key, now)
        for row in rows:
            self._report(source, row)
            if row.outcome in _ENDED:
                self._trace(row)

    def walk_ended(self, took_s: float) -> None:
        """Measure a walk over what is pending, from its first page to its last."""
        if self._telemetry:
            self._telemetry.walked(took_s)

    def _trace(self, row: Recovered) -> None:
        if self._telemetry:
            self._telemetry.recovered(
                row.traced,
                row.job_id,
                outcome=row.outcome.name.lower(),
                began_ns=time_ns(),
                visibility_s=self._membership.visibility_s,
                entry_id=row.entry_id,
                attempt=row.delivery,
                consumer=row.consumer,
                idle_ms=row.idle_ms,
            )

    def _report(self, source: Source, row: Recovered) -> None:
        facts = {"entry": row.entry_id, "consumer": row.consumer, "delivery": row.delivery}
        match row.outcome:
            case Outcome.REDELIVERED:
                self._reporter.recovered(
                    row.job_id, **facts, idle_ms=row.idle_ms, new_entry=row.detail, reason="visibility_timeout"
                )
            case Outcome.DEAD_LETTERED:
                self._reporter.write_dead_letter(
                    row.job_id,
                    limit=self._membership.agreement.max_deliveries,
                    **facts,
                    reason="max_deliveries",
                    error="not settled within the visibility timeout",
                    dead_letter=row.detail,
                )
            case Outcome.LOST_PAYLOAD:
                self._reporter.lost_payload(source.key, row.entry_id)
            case Outcome.HELD if self._is_news(row):
                logger.error(
                    "entry %s of %s, held by %s, is overdue and cannot be copied: %s. It stays pending",
                    row.entry_id,
                    source.key,
                    on_one_line(row.consumer),
                    explained(row.detail),
                )

    def _is_news(self, row: Recovered) -> bool:
        """Tell whether it is not known yet that an entry is held: it is met again and again."""
        if len(self._held) >= HELD_KNOWN:
            self._held.clear()
        known = (row.entry_id, row.detail) in self._held
        self._held.add((row.entry_id, row.detail))
        return not known


def _recovered(result: Sequence[Any]) -> Recovered:
    code, detail, idle_ms, consumer, job_id, delivery, entry_id, *traced = result
    return Recovered(
        Outcome(code), text(detail), idle_ms, text(consumer), text(job_id), delivery, text(entry_id), *traced
    )
