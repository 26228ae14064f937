"""What is tidied now and then. Everything that touches the owner's stream is opt-in."""

import logging
from collections.abc import Iterable
from datetime import timedelta

from redis.asyncio import Redis

from workers.protocol.calls import Journal, Step
from workers.protocol.calls.refusals import Refusal
from workers.protocol.calls.upkeep import Authority, Kept, keep_house
from workers.protocol.keys import GroupKeys, is_worker
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


async def tidy(
    client: Redis,
    keys: GroupKeys,
    authority: Authority,
    journal: Journal,
    retention: timedelta | None,
    steps: Iterable[Step],
) -> Kept | Refusal:
    """Note where the group stands, and delete consumers that were silent for ``retention`` (None: none).

    ``steps`` are those of the server's clock that the caller has seen. Returns what was found, or why it was refused.
    Raises what redis-py raises.
    """
    silence_ms = to_ms(retention) if retention else None
    kept = await keep_house(client, keys, authority, journal, silence_ms=silence_ms, steps=steps)
    if isinstance(kept, Refusal):
        return kept
    if kept.deleted:
        logger.info("%s: deleted %d silent consumers", keys.pair, len(kept.deleted))
    for consumer in kept.lost:
        logger.warning(SOMEBODY_DELETED if is_worker(consumer) else HELD_AND_GONE, keys.pair, on_one_line(consumer))
    return kept
