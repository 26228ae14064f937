"""A source of deliveries besides reading: stalled deliveries of other consumers."""

from collections.abc import Sequence
from math import inf

from workers.loop.held import Held


class StalledDeliveries:
    """The interface of such a source. This one has no deliveries, because a reaper recovers."""

    def is_due(self, free: int) -> bool:
        """Return whether to scan for stalled deliveries now, with ``free`` slots."""
        return self.due_in_s(free) <= 0

    def due_in_s(self, free: int) -> float:  # noqa: ARG002
        """Return the seconds until the next scan, or inf while a reaper recovers."""
        return inf

    async def take(self, room: int) -> list[Held]:  # noqa: ARG002
        """Return at most ``room`` deliveries that are ours from now on. Raises errors of redis-py."""
        return []

    def put_off(self, pause_s: float) -> None:
        """Pause, because Redis rejected a call."""

    # ---- for the reader

    def were_delivered(self, deliveries: Sequence[Held]) -> None:
        """Check deliveries before they run."""
