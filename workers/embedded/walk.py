"""Where a worker is in the pending entries list of one source."""

from dataclasses import dataclass, field
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
    waiting: bool = False
    """This walk has left overdue ones for want of a free slot."""
    wants_room: bool = False
    """There is something to claim as soon as a slot is free."""
    abandoned: set[bytes] = field(default_factory=set)
    """Overdue entries that are ours and that we do not run: read by a call whose reply was lost, or not settleable."""

    def due_in_s(self, now: float, free: int, visibility_s: float) -> float:
        """Return in how many seconds to make the next call; 0 = now.

        Not later than a visibility timeout after the walk began, should that have become shorter meanwhile.
        """
        if self.wants_room and free > 0:
            return 0.0
        return max(0.0, min(self.due_at, self.began + visibility_s + LONGEST_SPACING_S) - now)
