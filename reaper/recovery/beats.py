"""Notes the beat of every group that a replica watches, whether it leads or not.

Workers note it with their own heartbeats. But plain workers send none, and workers may be stopped for a while. Without
a beat, the next process would have to take that for an outage, and wait.
"""

import logging
import random
from collections.abc import Callable, Sequence

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.settings import WatchedGroup
from workers.protocol.calls.beat import note_beat
from workers.protocol.log_fields import fields
from workers.runtime.clock import monotonic

logger = logging.getLogger(__name__)

LONGEST_BEAT_S = 5.0
BEATS = 6
"""Beats in one visibility timeout, at least: one may fail, and there is still no gap."""
RETRY_S = 0.5
LOOK_S = 0.25
"""How often the groups are gone through."""


class Beats:
    """One replica's beats. `run` must be running."""

    def __init__(self, client: Redis, groups: Callable[[], Sequence[WatchedGroup]]) -> None:
        """``groups`` returns the groups that the replica watches now."""
        self._client = client
        self._groups = groups
        self._due_s: dict[str, float] = {}
        """By group: when its next beat is due, monotonic; infinite while one is under way."""

    async def run(self) -> None:
        """Note beats until cancelled."""
        async with anyio.create_task_group() as calls:
            while True:
                now, groups = monotonic(), self._groups()
                self._due_s = {one.keys.pair: self._due_s.get(one.keys.pair, now) for one in groups}
                for group in groups:
                    if self._due_s[group.keys.pair] <= now:
                        self._due_s[group.keys.pair] = float("inf")
                        calls.start_soon(self._beat, group)
                await anyio.sleep(min([LOOK_S, *(interval_s(group) / 2 for group in groups)]))

    async def _beat(self, group: WatchedGroup) -> None:
        pause_s = interval_s(group) * random.uniform(0.8, 1)  # spreads groups that began together
        try:
            await note_beat(self._client, group.keys)
        except (RedisError, OSError):  # the watch of the group, or the elector, logs what is wrong
            logger.debug("cannot record the heartbeat: %s", fields(group=group.keys.pair), exc_info=True)
            pause_s = min(pause_s, RETRY_S)
        finally:
            self._due_s[group.keys.pair] = monotonic() + pause_s


def interval_s(group: WatchedGroup) -> float:
    """Return the time between two beats of a group."""
    return min(LONGEST_BEAT_S, group.visibility_timeout.total_seconds() / BEATS)
