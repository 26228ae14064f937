"""Another source of deliveries, next to reading: what has stalled at other consumers."""

from collections.abc import Sequence
from math import inf

from workers.loop.held import Held


class StalledDeliveries:
    """What the reader asks and tells such a source. This one never has any: somebody else recovers."""

    def is_due(self, free: int) -> bool:
        """Tell whether to look for stalled deliveries now, with so many slots free."""
        return self.due_in_s(free) <= 0

    def due_in_s(self, free: int) -> float:  # noqa: ARG002
        """Return in how many seconds to look next; inf while others recover."""
        return inf

    async def take(self, room: int) -> list[Held]:  # noqa: ARG002
        """Return at most ``room`` deliveries that are ours from now on. Raises what redis-py raises."""
        return []

    def put_off(self, pause_s: float) -> None:
        """Take nothing for so long: Redis has refused it."""

    # ---- what the reader meets

    def were_delivered(self, deliveries: Sequence[Held]) -> None:
        """Look at deliveries that are about to be run."""
