"""Counts the recoveries that an observer would have made, and judges whether they would have been right. Pure.

The observer follows each overdue delivery. If the delivery goes while its owner is the same, its consumer settled it
late, and a recovery would have been false. A delivery that another consumer has claimed, or that its own consumer has
read again, is not followed any more.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_FOLLOWED = 50_000
"""Overdue deliveries that are followed at a time. Later ones are not counted."""
LOOKS = 8
"""A delivery is looked at again after an eighth of its age, so its age when it was settled is known as exactly."""


@dataclass(slots=True)
class Verdict:
    """Of one group, since the observer has been watching it. Ages are ms."""

    began_ms: int
    """The start of the observation. Instants are ms of one monotonic clock."""
    overdue: int = 0
    """Deliveries that would have been recovered. A delivery counts again if the observer was away meanwhile."""
    false_alarms: int = 0
    """Those of them that their own consumer has settled later."""
    slowest_ms: int = 0
    """The highest age at which one of those was settled, or less."""
    followed: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """By entry ID: the consumer, and when it received the delivery."""

    def found(self, entry_id: bytes, consumer: bytes, idle_ms: int, now_ms: int, *, is_overdue: bool) -> bool:
        """Note the state of a delivery. Return whether it would be recovered now, and would not have been before."""
        known = self.followed.pop(entry_id, None)
        if not is_overdue or len(self.followed) >= MOST_FOLLOWED:
            return False
        is_new = known is None or known[0] != consumer
        self.followed[entry_id] = (consumer, now_ms - max(idle_ms, 0)) if is_new or known is None else known
        self.overdue += is_new
        return is_new

    def gone(self, entry_ids: Iterable[bytes], now_ms: int) -> None:
        """Note deliveries that are not pending any more."""
        for entry_id in entry_ids if self.followed else ():
            known = self.followed.pop(entry_id, None)
            if known:
                self.false_alarms += 1
                self.slowest_ms = max(self.slowest_ms, now_ms - known[1])
