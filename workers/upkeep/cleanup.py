"""Maintenance of a group, now and then. It deletes consumers only if a setting demands it."""

import logging
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis

from workers.protocol.calls.declined import Declined
from workers.protocol.calls.group_moves import CleanupResult, GroupMoves
from workers.protocol.log_fields import fields
from workers.protocol.messages import whole_number
from workers.runtime.settings import to_ms

logger = logging.getLogger(__name__)


class GroupCleanup:
    """The maintenance of one group, by the holder of its lease or by an embedded worker."""

    def __init__(self, client: Redis, moves: GroupMoves) -> None:
        self._client = client
        self._moves = moves
        self._keys = moves.keys
        self._groups_lost: int | None = None
        self.is_remade = False
        """A third party destroyed the group between the last two calls, also if another caller found that."""

    async def tidy(self, retention: timedelta | None) -> CleanupResult | Declined:
        """Note the group's position, and delete consumers that were silent for ``retention`` (None = keep them).

        Returns the result, or why the call was declined. Raises redis-py's errors.
        """
        if self._groups_lost is None:
            counted: Any = await self._client.hget(self._keys.settings, "groups_lost")
            self._groups_lost = whole_number(counted, 0)
        kept = await self._moves.maintain(self._client, silence_ms=to_ms(retention) if retention else None)
        if isinstance(kept, Declined):
            return kept
        self.is_remade, self._groups_lost = kept.groups_lost > self._groups_lost, kept.groups_lost
        if kept.deleted:
            logger.info("deleted silent consumers: %s", fields(group=self._keys.name, consumers=len(kept.deleted)))
        for lost in kept.lost:
            logger.warning(
                "a third party deleted a consumer, its unsettled deliveries are lost: %s",
                fields(group=self._keys.name, consumer=lost, to_requeue=f"reaper groups requeue {self._keys.word} ID"),
            )
        return kept
