"""What recovery makes of an overdue delivery: a mirror of ``lua/prelude/8_fate.lua``, to tell it in advance. Pure."""

import re
from enum import StrEnum
from typing import NamedTuple

from workers.protocol.keys import RETURNED_CONSUMER, is_worker
from workers.protocol.messages import CLAIM_READY_MS

FATAL = 2**53
"""A delivery count from here on is a FATAL ``XNACK``, and no number."""
_RELEASED = re.compile(r"([a-zA-Z]+),([0-9]*),[0-9]")


class Fate(StrEnum):
    """What becomes of an overdue delivery."""

    READY = "ready"
    QUARANTINE = "quarantine"
    DEAD = "dead"


class Delivery(NamedTuple):
    """A pending delivery."""

    consumer: str
    idle_ms: int
    times: int
    """How often this entry was delivered."""
    deliveries_before: int = 0
    """Counted deliveries before this entry."""
    is_quarantined: bool = False
    released: str | None = None
    """The entry's value in ``{orders}:quarantine:billing``, or None: it was not released."""

    @property
    def is_given_back(self) -> bool:
        """Tell whether a worker has given the entry back where it is."""
        return not self.consumer or self.idle_ms >= CLAIM_READY_MS


def count_of(delivery: Delivery, limit: int) -> int:
    """Return how many deliveries count, this one included."""
    if delivery.times >= FATAL:
        return FATAL
    return min(delivery.deliveries_before, limit - 1) + delivery.times


def fate_of(delivery: Delivery, limit: int) -> tuple[Fate, str]:
    """Return what becomes of an overdue delivery, and the reason as the journal names it. ``limit``: max_deliveries."""
    count = count_of(delivery, limit)
    if delivery.is_given_back:
        return Fate.READY if count < limit else Fate.DEAD, "given_back"
    if not delivery.is_quarantined and count < limit - 1:
        return Fate.READY, "visibility_timeout"
    if not delivery.is_quarantined and count < limit:
        return Fate.QUARANTINE, "last_delivery"
    if limit == 1 or count >= FATAL:
        return Fate.DEAD, "max_deliveries"
    released = _RELEASED.fullmatch(delivery.released or "")
    if not released:
        return Fate.QUARANTINE, "not_released"
    confirms = delivery.consumer == RETURNED_CONSUMER or is_worker(delivery.consumer.encode())
    if confirms and int(released[2] or 0) != delivery.times:
        return Fate.QUARANTINE, "never_arrived"
    return Fate.QUARANTINE if count < limit else Fate.DEAD, "max_deliveries"
