"""Another source of deliveries, next to reading: what has stalled at other consumers."""

from collections.abc import Callable, Sequence
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

    @property
    def is_under_way(self) -> bool:
        """Tell whether deliveries were asked for that nobody has taken yet: `take` must follow."""
        return False

    async def take(self, room: int, room_ahead: Callable[[], int]) -> list[Held]:  # noqa: ARG002
        """Return at most ``room`` deliveries that are ours from now on. Raises what redis-py raises.

        ``room_ahead`` tells how many slots are free, for what may be asked for already.
        """
        return []

    def put_off(self, pause_s: float) -> None:
        """Take nothing for so long: Redis has refused it."""

    def abandon(self) -> None:
        """Wait no more for what was asked for: the process is about to end."""

    # ---- what the reader meets

    def were_delivered(self, deliveries: Sequence[Held]) -> None:
        """Look at deliveries that are about to be run."""
