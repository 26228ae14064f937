"""What the leader tidies after a full scan. Everything that touches the owner's stream is opt-in."""

import logging
from collections.abc import Sequence

from reaper.recovery.writer import GroupWriter
from reaper.settings import ReaperSettings
from workers.protocol.messages import text
from workers.protocol.scripts import load_script
from workers.runtime.settings import to_ms

logger = logging.getLogger(__name__)

RESTORED_CONSUMER = "restored-by-reaper"
RESTORE_LIMIT = 5_000
"""Entries put back in the one call that recreates a group; what is beyond is reported as lost deliveries."""
NOT_RESTORED = {
    "unknown": "its position was never noted; create it by hand",
    "stale": "a later term serves it",
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
        retention = self._settings.consumer_retention
        keys = self._writer.keys
        reply = await load_script("workers.protocol", "keep_house").run(
            self._writer.client,
            [keys.stream, keys.fence, keys.agreement],
            [self._writer.fence, keys.group, to_ms(retention) if retention else ""],
        )
        if reply[0] == b"ok" and reply[1]:
            logger.info("%s: deleted %d silent consumers", keys.pair, reply[1])

    async def restore(self, watched: Sequence[bytes]) -> bool:
        """Recreate the destroyed group if asked to, with the entries that were watched; True when all is said.

        Why it cannot be done is logged once, however often it is tried.
        """
        if not self._settings.recreate_groups:
            return True
        keys, group = self._writer.keys, self._writer.group
        put_back = watched[:RESTORE_LIMIT]
        reply = await load_script("reaper", "restore_group").run(
            self._writer.client,
            [keys.stream, keys.fence, keys.agreement],
            [self._writer.fence, keys.group, RESTORED_CONSUMER, to_ms(group.visibility_timeout), *put_back],
        )
        if reply[0] == b"ok":
            logger.error(
                "%s: the group was destroyed; recreated at its last known position, %d of %d watched entries put back",
                keys.pair, reply[1], len(watched),
            )  # fmt: skip
        why_not = NOT_RESTORED.get(text(reply[0]), "")
        if why_not and why_not != self._not_restored:
            logger.error("%s: the group is not recreated: %s", keys.pair, why_not)
        self._not_restored = why_not
        return True
