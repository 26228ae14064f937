"""What the recovery of an embedded group tells."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from typing import Any, NamedTuple

from workers.protocol.messages import on_one_line, text

logger = logging.getLogger(__name__)

HELD_KNOWN = 1_000
"""Entries that cannot be copied and were told of; beyond it, all are told again."""


class Outcome(IntEnum):
    """What became of an overdue delivery that was not claimed. Numbers as in ``recovery.lua``."""

    REDELIVERED = 1
    SUSPECTED = 2
    DEAD_LETTERED = 3
    LOST_PAYLOAD = 5
    HELD = 6


ENDED = frozenset({Outcome.REDELIVERED, Outcome.SUSPECTED, Outcome.DEAD_LETTERED})


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

    def tell(self, source: str, now: float) -> None:
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


def recovered(result: Sequence[Any]) -> Recovered:
    """Read what the script tells of one."""
    code, detail, idle_ms, consumer, job_id, delivery, entry_id, *traced = result
    return Recovered(
        Outcome(code), text(detail), idle_ms, text(consumer), text(job_id), delivery, text(entry_id), *traced
    )
