"""Maintenance of a group, now and then. Everything that touches the owner's stream is opt-in."""

import logging
from datetime import timedelta

from redis.asyncio import Redis

from workers.protocol.calls.group_moves import CleanupResult, GroupMoves
from workers.protocol.calls.refusals import Refusal
from workers.protocol.log_fields import fields
from workers.runtime.settings import to_ms

logger = logging.getLogger(__name__)


class GroupCleanup:
    """One group's maintenance, as one caller does it: by a leader's authority, or as embedded workers may."""

    def __init__(self, client: Redis, moves: GroupMoves, retention: timedelta | None) -> None:
        """Consumers that were silent for ``retention`` are deleted; None = none are."""
        self._client = client
        self._moves = moves
        self._keys = moves.keys
        self._silence_ms = to_ms(retention) if retention else None

    async def tidy(self) -> CleanupResult | Refusal:
        """Note the group's position, and delete silent consumers.

        Returns what was found, or why it was refused. Raises what redis-py raises.
        """
        kept = await self._moves.keep_house(self._client, silence_ms=self._silence_ms)
        if isinstance(kept, Refusal):
            return kept
        if kept.deleted:
            logger.info("deleted silent consumers: %s", fields(group=self._keys.pair, consumers=len(kept.deleted)))
        for consumer in kept.lost:
            logger.warning(
                "a third party deleted a consumer, its unsettled deliveries are lost: %s",
                fields(group=self._keys.pair, consumer=consumer, to_requeue=f"reaper groups requeue {self._keys.word}"),
            )
        return kept
