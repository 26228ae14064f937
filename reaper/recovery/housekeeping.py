"""What the leader tidies after a full scan. Everything that touches the owner's stream is opt-in."""

import logging
from collections.abc import Sequence

from reaper.recovery.writer import GroupWriter
from reaper.settings import ReaperSettings
from workers.protocol.calls.refusals import Refusal, RefusalKind
from workers.upkeep.house import tidy

logger = logging.getLogger(__name__)

RESTORE_LIMIT = 5_000
"""Entries put back in the one call that recreates a group; what is beyond is reported as lost deliveries."""
NOT_RESTORED = {
    RefusalKind.UNKNOWN: "its position was never noted; create it by hand",
    RefusalKind.STALE: "a later term serves it",
}


class Housekeeping:
    """Housekeeping of one group in one term. Methods raise what redis-py raises."""

    def __init__(self, writer: GroupWriter, settings: ReaperSettings) -> None:
        self._writer = writer
        self._settings = settings
        self._not_restored = ""

    async def run(self) -> None:
        """Remember the group's position; delete silent consumers if asked to."""
        self._not_restored = ""
        await tidy(self._writer.client, self._writer.keys, self._writer.authority, self._settings.consumer_retention)

    async def restore(self, watched: Sequence[bytes]) -> bool:
        """Recreate the destroyed group if asked to, with the entries that were watched; True when all is said.

        Why it cannot be done is logged once, however often it is tried.
        """
        if not self._settings.recreate_groups:
            return True
        pair = self._writer.keys.pair
        restored = await self._writer.restore(watched[:RESTORE_LIMIT])
        why_not = ""
        if isinstance(restored, Refusal):
            why_not = NOT_RESTORED.get(restored.kind, "")
        else:
            logger.error(
                "%s: the group was destroyed; recreated at its last known position, %d of %d watched entries put back",
                pair,
                restored,
                len(watched),
            )
        if why_not and why_not != self._not_restored:
            logger.error("%s: the group is not recreated: %s", pair, why_not)
        self._not_restored = why_not
        return True
