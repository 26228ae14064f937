"""What the leader tidies after a full scan. Everything that touches the owner's stream is opt-in."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reaper.recovery.writer import GroupWriter, Restored
from reaper.settings import ReaperSettings
from workers.protocol.calls.refusals import Refusal, RefusalKind
from workers.protocol.calls.upkeep import Kept
from workers.upkeep.house import House

logger = logging.getLogger(__name__)

RESTORE_BATCH = 5_000
"""Entries put back in one call."""
ANYWAY = -1
"""The group has been made again since, whatever is found: it was by the call before."""
NOT_RESTORED = {
    RefusalKind.UNKNOWN: "its position was never noted; create it by hand",
    RefusalKind.STALE: "a later term serves it",
}


@dataclass(frozen=True, slots=True)
class Lost:
    """What is known of a group that was destroyed."""

    made: int
    """When it was made (again), by the server's clock in ms, as far as we know."""
    was_there: bool = False
    """It was destroyed, and is there again; else it is not, or was made for the first time."""
    put_back: int = 0
    dropped: int = 0
    """Watched entries that are not put back."""


class Housekeeping:
    """Housekeeping of one group in one term. Methods raise what redis-py raises."""

    def __init__(self, writer: GroupWriter, settings: ReaperSettings) -> None:
        self._writer = writer
        self._settings = settings
        self._house = House(writer.client, writer.keys, writer.authority, writer.journal, settings.consumer_retention)
        self._not_restored = ""

    async def run(self) -> Kept:
        """Remember the group's position; delete silent consumers if asked to. Returns what was found."""
        self._not_restored = ""
        kept = await self._house.tidy()
        return Kept((), False, False) if isinstance(kept, Refusal) else kept

    async def restore(self, watched: Sequence[bytes], made: int) -> Lost:
        """Put back what was watched, if asked to, into a group that was destroyed since it was ``made`` (server's ms).

        It is recreated where nobody has yet. Why it cannot be done is logged once, however often it is tried.
        """
        pair = self._writer.keys.pair
        if not self._settings.recreate_groups:
            return await self._count_lost(watched, made)
        restored = await self._restore_batches(watched, made)
        if isinstance(restored, Refusal):
            why_not = NOT_RESTORED.get(restored.kind, "")
            if why_not and why_not != self._not_restored:
                logger.error("%s: the group is not recreated: %s", pair, why_not)
            self._not_restored = why_not
            return Lost(made)
        self._not_restored = ""
        was_there = bool(watched or made or not restored.by_worker)  # else somebody has made it for the first time
        if was_there:
            logger.error(
                "%s: the group was destroyed; %s, %d of %d watched entries put back",
                pair,
                "somebody has made it again" if restored.by_worker else "recreated at its last known position",
                restored.put_back,
                len(watched),
            )
        return Lost(restored.made, was_there=was_there, put_back=restored.put_back)

    async def _count_lost(self, watched: Sequence[bytes], made: int) -> Lost:
        """Return what the group has lost, where nobody has asked for it to be put back."""
        made_now = await self._writer.made_at()
        if made_now <= made:
            return Lost(made_now)
        found = await self._restore_batches(watched, made, only_count=True)
        dropped = 0 if isinstance(found, Refusal) else found.put_back
        if dropped:
            logger.error(
                "%s: the group was destroyed, and made again by somebody: %d of %d watched entries are lost "
                "(recreate_groups puts them back)",
                self._writer.keys.pair,
                dropped,
                len(watched),
            )
        return Lost(made_now, was_there=bool(watched or made), dropped=dropped)

    async def _restore_batches(
        self, watched: Sequence[bytes], made: int, *, only_count: bool = False
    ) -> Restored | Refusal:
        restored = await self._writer.restore(watched[:RESTORE_BATCH], made=made, only_count=only_count)
        if isinstance(restored, Refusal):
            return restored
        put_back = restored.put_back
        for first in range(RESTORE_BATCH, len(watched), RESTORE_BATCH):
            batch = watched[first : first + RESTORE_BATCH]
            more = await self._writer.restore(batch, made=ANYWAY, only_count=only_count)
            put_back += 0 if isinstance(more, Refusal) else more.put_back
        return replace(restored, put_back=put_back)
