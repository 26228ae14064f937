"""When a pair is looked at for new deliveries: less often where it is calm.

*Calm*: two full scans, and all looks between them, have found nothing pending. What ends it is anything that is found
pending, by a look or by another call that says so by the way.
"""

import anyio

TOLD_PART = 0.75
"""Another call tells what is pending so much earlier than a look of its own would be due."""


class Looks:
    """The looks at one pair in one term."""

    def __init__(self, interval_s: float, calm_interval_s: float) -> None:
        self._interval_s = interval_s
        self._calm_interval_s = calm_interval_s
        self._is_worth_it = calm_interval_s * TOLD_PART > interval_s
        self._calm = False
        self._has_moved = True
        """Since the full scan before; of what was before the first one, nothing is known."""
        self._looked_at = float("-inf")
        self._was_full = False
        self._stirred = anyio.Event()

    @property
    def are_rare(self) -> bool:
        """Tell whether the pair is calm, and looked at less often."""
        return self._calm

    @property
    def interval_s(self) -> float:
        """How often the pair is looked at, at least."""
        return self._calm_interval_s if self._calm else self._interval_s

    def told_within_s(self) -> float:
        """Return within which time another call is to tell whether anything is pending, so that no look is needed."""
        return self._calm_interval_s * TOLD_PART if self._calm else float("inf")

    def found(self, entries: int, *, was_full: bool) -> None:
        """Note what a look has found: deliveries that are new, or, by a full scan, all that are pending."""
        self._looked_at, self._was_full = anyio.current_time(), was_full
        if entries:
            self.stir()
        elif was_full and not self._has_moved and not self._calm:
            self._calm, self._stirred = self._is_worth_it, anyio.Event()
        if was_full:
            self._has_moved = entries > 0

    def told(self, *, is_pending: bool) -> None:
        """Note what another call tells: that counts as a look where the pair is calm, and elsewhere not."""
        if is_pending:
            self.stir()
        else:
            self._looked_at = anyio.current_time()

    def stir(self) -> None:
        """The pair is not calm (any more): look as often as ever, and now, where it was."""
        self._calm, self._has_moved = False, True
        self._stirred.set()

    async def wait(self, until: float) -> None:
        """Wait until it is time for the next look; ``until`` is when it is for a full scan.

        The look after a full scan is as early as ever: what was handed out while that ended lies before the position
        that it noted, and is not delivered anew where the group is made again.
        """
        await anyio.sleep(self._interval_s)
        while self._calm and not self._was_full:
            left_s = min(until, self._looked_at + self._calm_interval_s) - anyio.current_time()
            if left_s <= 0:
                return
            with anyio.move_on_after(left_s):
                await self._stirred.wait()
