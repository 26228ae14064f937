"""Maintenance of a group, now and then. Everything that touches the owner's stream is opt-in."""

import logging
from datetime import timedelta

from redis.asyncio import Redis

from workers.protocol.calls import Journal
from workers.protocol.calls.refusals import Refusal
from workers.protocol.calls.upkeep import Authority, CleanupResult, keep_house
from workers.protocol.keys import GroupKeys
from workers.protocol.log_fields import fields
from workers.runtime.settings import to_ms

logger = logging.getLogger(__name__)


class GroupCleanup:
    """One group's maintenance, as one caller does it: by a leader's authority, or as embedded workers may."""

    def __init__(
        self, client: Redis, keys: GroupKeys, authority: Authority, journal: Journal, retention: timedelta | None
    ) -> None:
        """Consumers that were silent for ``retention`` are deleted; None = none are."""
        self._client = client
        self._keys = keys
        self._authority = authority
        self._journal = journal
        self._silence_ms = to_ms(retention) if retention else None

    async def tidy(self) -> CleanupResult | Refusal:
        """Note the group's position, and delete silent consumers.

        Returns what was found, or why it was refused. Raises what redis-py raises.
        """
        kept = await keep_house(self._client, self._keys, self._authority, self._journal, silence_ms=self._silence_ms)
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
