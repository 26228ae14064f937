"""Whom deliveries were taken from although he lives, as far as that can be told. Pure.

*At work*: the consumer was settling what it had been handed together with what was taken, until just before
(`reaper.recovery.backlogs`). No process that had died before does that.

*Read on*: it has read again since. It is slow, or it has died and was started again under the same name: from here the
two look the same, so this is told apart, and alarms nobody.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

MOST_KEPT = 100
"""Consumers that are remembered, those from which something was taken last."""
MOST_NAMED = 5
"""Consumers that are named."""
SLACK_MS = 1_000
"""So much later must a read have been: what was asked and answered took its time."""


@dataclass(slots=True)
class _Robbed:
    taken_ms: int = 0
    """When something was taken last; ms of a monotonic clock."""
    at_work: int = 0
    waiting: int = 0
    """Taken, and not seen to read since."""
    read_on: int = 0


class Living:
    """What was taken from foreign consumers of one group in one term."""

    def __init__(self) -> None:
        self.at_work = 0
        self.read_on = 0
        self._robbed: dict[bytes, _Robbed] = {}

    def taken(self, consumer: bytes, now_ms: int, *, at_work: int, others: int) -> None:
        """Note that so many deliveries of ``consumer`` were recovered, who was seen to be at work on some of them."""
        robbed = self._robbed.pop(consumer, None) or _Robbed()
        self._robbed[consumer] = robbed
        robbed.taken_ms = now_ms
        robbed.at_work += at_work
        robbed.waiting += others
        self.at_work += at_work
        if len(self._robbed) > MOST_KEPT:
            del self._robbed[next(iter(self._robbed))]

    def looked(self, idle_ms: Mapping[bytes, int], now_ms: int) -> None:
        """Take a look at the group's consumers: for how long each has not asked for anything."""
        for consumer, robbed in self._robbed.items():
            if robbed.waiting and now_ms - idle_ms.get(consumer, now_ms) > robbed.taken_ms + SLACK_MS:
                robbed.read_on += robbed.waiting
                self.read_on += robbed.waiting
                robbed.waiting = 0

    def named(self) -> dict[bytes, int]:
        """Return those from which most was taken while they were at work, and how much."""
        counts = Counter({consumer: robbed.at_work for consumer, robbed in self._robbed.items() if robbed.at_work})
        return dict(counts.most_common(MOST_NAMED))

    def named_read_on(self) -> dict[bytes, int]:
        """Return the same of those that read on afterwards."""
        counts = Counter({consumer: robbed.read_on for consumer, robbed in self._robbed.items() if robbed.read_on})
        return dict(counts.most_common(MOST_NAMED))
