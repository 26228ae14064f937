"""Logs the recovery of a group: one line for many deliveries, and one for each gap in the heartbeats."""

import logging
from collections import Counter
from collections.abc import Iterable
from math import inf

from workers.protocol.calls.declined import RecoveryWait
from workers.protocol.calls.group_moves import Outcome, Recovered
from workers.protocol.keys import GroupKeys
from workers.protocol.log_fields import fields
from workers.protocol.messages import first_of
from workers.runtime.clock import monotonic

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 1.0
"""The shortest time between two lines of a group."""
_MOVED = Outcome.CLAIMED, Outcome.REDELIVERED, Outcome.QUARANTINED


class RecoveryLog:
    """Recovered deliveries that are not logged yet, their consumers, and the gap that was logged last."""

    def __init__(self, keys: GroupKeys) -> None:
        self._keys = keys
        self._moved: Counter[Outcome] = Counter()
        self._consumers: set[bytes] = set()
        self._logged_at = self._waits_until = -inf

    def add(self, rows: Iterable[Recovered]) -> None:
        """Count the recovered ones of ``rows``, and log if a line is due."""
        for (outcome, consumer), number in Counter((row.outcome, row.consumer) for row in rows).items():
            if outcome in _MOVED:
                self._moved[outcome] += number
                self._consumers.add(consumer or b"none (XNACK)")
        self.log()

    def due_at(self) -> float:
        """Return when the next line is due, on the clock of the event loop."""
        return self._logged_at + LOG_INTERVAL_S if self._moved else inf

    def log(self, *, at_the_end: bool = False) -> None:
        """Log the sums since the last line, if a line is due, or ``at_the_end`` of recovery."""
        if self._moved and (at_the_end or monotonic() >= self.due_at()):
            sums = {outcome.name.lower(): self._moved[outcome] or None for outcome in _MOVED}
            facts = fields(group=self._keys.name, consumers=first_of(self._consumers), **sums)
            logger.info("recovered stalled deliveries: %s", facts)
            self._moved, self._consumers, self._logged_at = Counter(), set(), monotonic()

    def waits(self, wait: RecoveryWait) -> None:
        """Log that recovery waits after a gap in the heartbeats. Each gap is logged once."""
        until = monotonic() + wait.left_ms / 1000
        if until > self._waits_until + 1:
            level = logging.WARNING if wait.gap_ms else logging.INFO  # a new group has had no heartbeat, and no fault
            facts = fields(group=self._keys.name, wait_s=wait.left_ms / 1000, gap_s=wait.gap_ms / 1000 or None)
            logger.log(level, "recovery waits for heartbeats: %s", facts)
        self._waits_until = until
