"""What is tidied now and then. Everything that touches the owner's stream is opt-in."""

import logging
from datetime import timedelta

from redis.asyncio import Redis
from redis.exceptions import RedisError

from workers.protocol.calls import Journal
from workers.protocol.calls.refusals import Refusal
from workers.protocol.calls.upkeep import Authority, Kept, keep_house
from workers.protocol.keys import GroupKeys, is_worker
from workers.protocol.meaning import was_not_run
from workers.protocol.messages import on_one_line
from workers.runtime.settings import to_ms

logger = logging.getLogger(__name__)

SOMEBODY_DELETED = (
    "%s: consumer %s is gone, and its worker has not left by itself: somebody deleted it. What it held, if anything, "
    "and is not told of as put back, is lost"
)
HELD_AND_GONE = (
    "%s: consumer %s is gone, and held jobs when it was seen last. Whether they were acknowledged before, or are lost, "
    "nobody can know; they are in the stream still"
)


class House:
    """One group's house, as one caller keeps it: by a leader's authority, or as embedded workers may."""

    def __init__(
        self, client: Redis, keys: GroupKeys, authority: Authority, journal: Journal, retention: timedelta | None
    ) -> None:
        """Consumers that were silent for ``retention`` are deleted; None = none are."""
        self._client = client
        self._keys = keys
        self._authority = authority
        self._journal = journal
        self._silence_ms = to_ms(retention) if retention else None
        self._reply_was_lost = False

    async def tidy(self) -> Kept | Refusal:
        """Note where the group stands, and delete silent consumers.

        Returns what was found, also what an earlier call has found whose reply was lost, or why it was refused. Raises
        what redis-py raises.
        """
        try:
            kept = await keep_house(
                self._client,
                self._keys,
                self._authority,
                self._journal,
                silence_ms=self._silence_ms,
                again=self._reply_was_lost,
            )
        except (RedisError, OSError) as error:
            self._reply_was_lost = self._reply_was_lost or not was_not_run(error)
            raise
        self._reply_was_lost = False
        if isinstance(kept, Refusal):
            return kept
        pair = self._keys.pair
        if kept.deleted:
            logger.info("%s: deleted %d silent consumers", pair, len(kept.deleted))
        for consumer in kept.lost:
            logger.warning(SOMEBODY_DELETED if is_worker(consumer) else HELD_AND_GONE, pair, on_one_line(consumer))
        return kept
