"""A replica registers its state every few seconds, and at once if the state has changed."""

import logging
from collections.abc import Callable

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.election.elector import Elector
from reaper.replicas import Replica, parse_replicas, register
from workers.protocol.keys import NamespaceKeys
from workers.protocol.log_fields import fields
from workers.protocol.meaning import in_words, is_contact_error
from workers.runtime.clock import monotonic, monotonic_ms, server_ms
from workers.runtime.redis_failures import RedisFailures

logger = logging.getLogger(__name__)

REGISTRATION = "registration"
FORGET_AFTER_HEARTBEATS, FORGET_EVERY_HEARTBEATS = 60, 12
"""A replica that has not registered for this many heartbeats is removed by the leader, which looks so often."""


class Registration:
    """Registers one replica."""

    def __init__(
        self,
        client: Redis,
        keys: NamespaceKeys,
        elector: Elector,
        replica: Callable[[int], Replica],
        interval_s: Callable[[], float],
    ) -> None:
        """``replica`` returns the state to register at a time in ms of the server's clock."""
        self._client = client
        self._keys = keys
        self._elector = elector
        self._replica = replica
        self._interval_s = interval_s
        self._asked = anyio.Event()
        self._told_at = self._tidied_at = float("-inf")
        self.troubles = RedisFailures()
        self.has_registered = False
        """Redis was there, and runs our scripts."""

    def at_once(self) -> None:
        """Register now, after a change."""
        self._asked.set()

    async def run(self) -> None:
        """Register until cancelled. Errors of Redis do not end it."""
        while True:
            if self._asked.is_set() or self._left_s() <= 0:
                self._asked = anyio.Event()
                await self._register()
            if self._elector.term is not None and self._tidied_at + self._tidy_s() <= monotonic():
                await self._forget_gone()
            with anyio.move_on_after(self._left_s()):
                await self._asked.wait()

    async def leave(self, replica_id: str) -> None:
        """Unregister, if that can be done."""
        try:
            await self._client.hdel(self._keys.replicas, replica_id)
        except (RedisError, OSError):
            logger.debug("cannot unregister", exc_info=True)

    def _left_s(self) -> float:
        return self._told_at + self._interval_s() - monotonic()

    async def _register(self) -> None:
        self._told_at = monotonic()  # the next attempt is one interval later, with or without an error
        try:
            if self._elector.clock_offset_ms == 0:
                self._elector.clock_offset_ms = await server_ms(self._client) - monotonic_ms()
            await register(self._client, self._keys, self._replica(self._now_ms()))
            self._told_at = monotonic()
            self.has_registered = True
            if self.troubles.works(REGISTRATION, monotonic()):
                logger.warning("replica is registered again")
        except (RedisError, OSError) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        # The elector logs outages.
        if not is_contact_error(error) and self.troubles.failed(REGISTRATION, error, monotonic()):
            logger.error("cannot register the replica, retrying: %s", fields(cause=in_words(error)))

    def _now_ms(self) -> int:
        return monotonic_ms() + self._elector.clock_offset_ms

    # ---- those who are gone

    def _tidy_s(self) -> float:
        return FORGET_EVERY_HEARTBEATS * self._interval_s()

    async def _forget_gone(self) -> None:
        """Remove replicas that died long ago, and unreadable entries, so that the hash stays small."""
        self._tidied_at = monotonic()
        try:
            registered = await self._client.hgetall(self._keys.replicas)
            for replica_id, heartbeat in registered.items():
                readable = parse_replicas([heartbeat])
                if all(self._now_ms() - one.at_ms > one.heartbeat_ms * FORGET_AFTER_HEARTBEATS for one in readable):
                    await self._client.hdel(self._keys.replicas, replica_id)
        except (RedisError, OSError) as error:
            self._failed(error)
