"""What the leader tidies after a full scan. Everything that touches the owner's stream is opt-in."""

import logging
from collections.abc import Sequence

from reaper.recovery.writer import GroupWriter
from reaper.settings import ReaperSettings
from workers.protocol.calls.refusals import Refusal, RefusalKind
from workers.upkeep.house import tidy

logger = logging.getLogger(__name__)

RESTORE_BATCH = 5_000
"""Entries put back in one call."""
ANYWAY = -1
"""The group has been made again since, whatever is found: it was by the call before."""
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

    async def restore(self, watched: Sequence[bytes], made: int) -> int:
        """Put back what was watched, if asked to, into a group that was destroyed since it was ``made`` (server's ms).

        It is recreated where nobody has yet. Returns when it was made. Why it cannot be done is logged once, however
        often it is tried.
        """
        pair = self._writer.keys.pair
        if not self._settings.recreate_groups:
            made_now = await self._writer.made_at()
            if made_now > made and watched:
                logger.error(
                    "%s: the group was destroyed, and made again by a worker: what nobody ran of %d watched entries is "
                    "lost (recreate_groups puts it back)",
                    pair,
                    len(watched),
                )
            return made_now
        restored, put_back = await self._writer.restore(watched[:RESTORE_BATCH], made=made), 0
        if isinstance(restored, Refusal):
            why_not = NOT_RESTORED.get(restored.kind, "")
            if why_not and why_not != self._not_restored:
                logger.error("%s: the group is not recreated: %s", pair, why_not)
            self._not_restored = why_not
            return made
        put_back = restored.put_back
        for first in range(RESTORE_BATCH, len(watched), RESTORE_BATCH):
            more = await self._writer.restore(watched[first : first + RESTORE_BATCH], made=ANYWAY)
            put_back += 0 if isinstance(more, Refusal) else more.put_back
        self._not_restored = ""
        if watched or made or not restored.by_worker:  # else somebody has just made it, for the first time
            logger.error(
                "%s: the group was destroyed; %s, %d of %d watched entries put back",
                pair,
                "a worker has made it again" if restored.by_worker else "recreated at its last known position",
                put_back,
                len(watched),
            )
        return restored.made
