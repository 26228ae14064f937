"""Where a worker is in the pending entries list of one source."""

from dataclasses import dataclass
from math import inf

from workers.loop.held import Source
from workers.protocol.calls.recovery import START

SPACING_PART, SHORTEST_SPACING_S, LONGEST_SPACING_S = 100, 0.02, 0.25
"""Between walks at least this part of the visibility timeout: what falls due one by one is taken together."""


@dataclass(slots=True)
class Walk:
    """Where we are in the pending entries list of one source. Instants are monotonic seconds."""

    source: Source
    cursor: str = START
    began: float = 0.0
    due_at: float = 0.0
    """When to look on."""
    soonest: float = inf
    """When the first of those is due that this walk has met and left alone."""

    def due_in_s(self, now: float, visibility_s: float) -> float:
        """Return in how many seconds to make the next call; 0 = now.

        Not later than a visibility timeout after the walk began, should that have become shorter meanwhile.
        """
        return max(0.0, min(self.due_at, self.began + visibility_s + LONGEST_SPACING_S) - now)
