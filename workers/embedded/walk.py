"""The position of a worker in the pending entries list of one source."""

from dataclasses import dataclass
from math import inf

from workers.loop.held import Source
from workers.protocol.calls.recovery import START

SPACING_PART, SHORTEST_SPACING_S, LONGEST_SPACING_S = 100, 0.02, 0.25
"""The pause between two scans is at least this part of the visibility timeout, so that a scan finds several at once."""


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
