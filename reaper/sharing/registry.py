"""Registers one replica, and knows the live replicas.

A replica registers at least every 1.25 s. Every few seconds, and soon after a change, it also writes its
heartbeat (`reaper.replicas`). It writes its watched groups when they change. Without an answer of Redis, it keeps the
order of the replicas.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence

import anyio
from redis.exceptions import RedisError

from reaper.context import ReplicaContext
from reaper.replicas import Replica
from reaper.settings import ReaperSettings
from reaper.sharing.discovery import Discovery
from reaper.sharing.tenures import Tenures
from workers.protocol.log_fields import fields
from workers.protocol.meaning import in_words, is_outage
from workers.protocol.messages import text
from workers.protocol.scripts import load_script
from workers.runtime.clock import monotonic, monotonic_ms
from workers.runtime.redis_failures import RedisFailures
from workers.runtime.settings import to_ms

logger = logging.getLogger(__name__)

REGISTER = load_script("reaper", "register")
REGISTRATION = "registration"
MISSED = 3
"""A replica that missed this many registrations is not alive."""
FORGET_S = 300.0
"""A replica that is not alive for longer is forgotten."""
REST = 10
"""Building heartbeats takes at most one part in `REST` of the time, also while 10,000 leases change hands."""
PROMPT_S = 1.0
"""The time in a slower answer is not used, because it is not exact."""


def digest_of(settings: ReaperSettings) -> str:
    """Return a digest of the settings that replicas must share to take groups from each other."""
    common = settings.model_dump_json(
        include={"groups", "visibility_timeout", "max_deliveries", "redelivery", "lease_ttl", "observe"}
    )
    return hashlib.sha256(common.encode()).hexdigest()[:12]


class Registry:
    """One replica's registration, and its view of the others. `run` must be running."""

    def __init__(self, context: ReplicaContext, tenures: Tenures, replica: Callable[[int], Replica]) -> None:
        """``replica`` returns the heartbeat at a time in ms of the server's clock."""
        self._context = context
        self._keys = context.settings.namespace_keys
        self._interval = context.settings.registration
        """Time between two registrations."""
        self._tenures = tenures
        self._replica = replica
        self.digest = digest_of(context.settings)
        """Digest of the settings that replicas must share."""
        self.discovery = Discovery(context, tenures, self.digest)
        self._asked = anyio.Event()
        self._written_at = self._due_at = float("-inf")
        self._took_s = 0.0
        """Seconds in which the last heartbeat was built."""
        self._written_watched: Sequence[str] | None = None
        self.troubles = RedisFailures()
        context.changed = self.at_once

    def at_once(self) -> None:
        """Write the heartbeat soon, after a change."""
        self._due_at = self._written_at + REST * self._took_s
        self._asked.set()

    async def run(self) -> None:
        """Register until cancelled. Errors of Redis do not end it."""
        while True:
            self._asked = anyio.Event()
            try:
                await self._register()
            except (RedisError, OSError) as error:
                self.failed("register", error)
            with anyio.move_on_after(self._interval.total_seconds()):
                await self._asked.wait()

    async def leave(self) -> None:
        """Remove the registration, if Redis answers."""
        try:
            await self._context.leases.zrem(self._keys.live, f"{self.digest}/{self._context.replica_id}")
            await self._context.leases.hdel(self._keys.replicas, self._context.replica_id)
            await self._context.leases.hdel(self._keys.groups, self._context.replica_id)
        except (RedisError, OSError):
            logger.debug("cannot unregister", exc_info=True)

    async def _register(self) -> None:
        context, began = self._context, monotonic()
        heartbeat, watched = "", self._tenures.names
        if context.clock_offset_ms and began >= self._due_at:
            heartbeat = self._replica(context.server_ms()).to_json()
            self._took_s = monotonic() - began
        gone_ms = to_ms(self._interval * MISSED)
        names = "" if watched == self._written_watched else "\n".join(watched) or "\n"
        keys, scan_ms = self._keys, self.discovery.interval_ms
        at_ms, is_stored, version, is_our_turn, *able = await REGISTER.run(
            context.leases,
            [keys.replicas, keys.live, keys.drained, keys.groups, keys.watched, keys.scanned],
            [
                self.digest, context.replica_id, heartbeat, gone_ms, round(FORGET_S * 1000), names,
                "" if scan_ms is None else scan_ms,
            ],
        )  # fmt: skip
        self.discovery.hear(text(version), is_our_turn=bool(is_our_turn))
        self._written_watched = watched if is_stored else None
        if heartbeat:
            self._written_at, self._due_at = began, began + context.settings.heartbeat.total_seconds()
        if monotonic() - began <= PROMPT_S:
            if not context.clock_offset_ms:
                self._asked.set()  # the first heartbeat can be written now
            context.clock_offset_ms = int(at_ms) - monotonic_ms()
        if ended := self.troubles.works(REGISTRATION, monotonic()):
            logger.warning("Redis answers again: %s", fields(**ended))
        found = tuple(sorted(map(text, able)))
        if found != context.able:
            context.able = found
            logger.info("replicas share the groups: %s", fields(number=len(found), replicas=",".join(found)))
            self._tenures.rerank()

    def failed(self, what: str, error: BaseException) -> None:
        """Log once that the task ``what`` failed in the namespace."""
        if self.troubles.failed(REGISTRATION, error, monotonic()):
            logger.warning(
                "cannot reach Redis: %s" if is_outage(error) else "Redis denies the replica: %s",
                fields(doing=what, cause=in_words(error)),
            )
