"""The health of a replica, over HTTP (`workers.runtime.health_server`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.service import Reaper
from reaper.web.overview import Overview
from workers.protocol.address import shown_address
from workers.runtime.health_server import Pulse

LIVENESS_TIMEOUT_S = 30.0
"""`/livez` fails once the event loop has not answered for this long."""


class ReaperVitals:
    """The answers over HTTP, from another thread than the replica's. ``probing`` is a client for readiness only."""

    def __init__(self, reaper: Reaper, pulse: Pulse, overview: Overview, probing: Redis) -> None:
        self._reaper = reaper
        self._pulse = pulse
        self._overview = overview
        self._probing = probing

    def ailments(self) -> Sequence[str]:
        """Return why the process should be restarted. A restart would not end an outage of Redis."""
        return self._pulse.ailments(LIVENESS_TIMEOUT_S)

    async def obstacles(self) -> Sequence[str]:
        """Return why the replica is not ready.

        A ready one knows of each group which replica holds its lease, and Redis answers and rejects no call. It can
        hold no group.
        """
        if self._reaper.refusals:
            return [f"Redis refuses: {why}" for why in self._reaper.refusals]
        if not self._reaper.has_worked:
            return ["the replica has not registered, or does not know yet who holds the lease of each group"]
        try:
            await self._probing.ping()
        except (RedisError, OSError) as error:
            return [f"Redis does not answer: {error}"]
        return []

    async def status(self) -> Mapping[str, Any]:
        """Return the content of the status page."""
        try:
            return await self._overview.look()
        except (RedisError, OSError) as error:
            address = shown_address(self._reaper.settings.redis_url)
            return {"status": "unreachable", "error": f"Redis at {address!r} failed: {error}"}
