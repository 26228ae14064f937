"""Counts the recoveries that an observer would have made, and judges whether they would have been right. Pure.

The observer follows each overdue delivery. If the delivery goes while its owner is the same, its consumer settled it
late, and a recovery would have been false. If another consumer has it, a third party recovered it. If it is young
again, its own consumer has read its history.
"""

from collections.abc import Container, Iterable
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
    """Deliveries that would have been recovered, each once."""
    false_alarms: int = 0
    """Those of them that their own consumer has settled later."""
    slowest_ms: int = 0
    """The highest age at which one of those was settled, or less."""
    claimed: int = 0
    """Those that another consumer has claimed."""
    read_again: int = 0
    """Those that their own consumer has read again."""
    unseen: int = 0
    """Those that went while the observer was away."""
    is_full: bool = False
    _followed: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)

    @property
    def pending(self) -> int:
        """The deliveries that are followed. They are still pending, and overdue."""
        return len(self._followed)

    def found(self, entry_id: bytes, consumer: bytes, idle_ms: int, now_ms: int, *, is_overdue: bool) -> bool:
        """Note the state of a delivery. Return whether it would be recovered now, and would not have been before."""
        known = self._followed.pop(entry_id, None)
        if known and known[0] != consumer:
            self.claimed += 1
            known = None
        elif known and not is_overdue:
            self.read_again += 1
        if not is_overdue:
            return False
        if len(self._followed) >= MOST_FOLLOWED:
            self.is_full = True
            return False
        self._followed[entry_id] = known or (consumer, now_ms - max(idle_ms, 0))
        self.overdue += known is None
        return known is None

    def gone(self, entry_ids: Iterable[bytes], now_ms: int) -> None:
        """Note deliveries that are not pending any more."""
        for entry_id in entry_ids if self._followed else ():
            known = self._followed.pop(entry_id, None)
            if known:
                self.false_alarms += 1
                self.slowest_ms = max(self.slowest_ms, now_ms - known[1])

    def resumed(self, pending: Container[bytes]) -> None:
        """Continue after a break. The end of deliveries that went meanwhile is unknown."""
        left = {one: known for one, known in self._followed.items() if one in pending}
        self.unseen += len(self._followed) - len(left)
        self._followed = left

    def facts(self, now_ms: int) -> dict[str, float]:
        """Return the fields of a log line: minutes, deliveries to recover, and other numbers above 0."""
        counts = {
            "partial": self.is_full,
            "false_alarms": self.false_alarms,
            "slowest_s": round(self.slowest_ms / 1000, 1),
            "claimed": self.claimed,
            "read_again": self.read_again,
            "unseen": self.unseen,
            "pending": self.pending,
        }
        return {
            "minutes": round((now_ms - self.began_ms) / 60_000),
            "would_recover": self.overdue,
            **{name: one for name, one in counts.items() if one},
        }
