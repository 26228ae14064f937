"""The health of a replica, over HTTP (`workers.runtime.health_server`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.operations.judgement import as_json, judge
from reaper.operations.snapshot import take_snapshot
from reaper.service import Reaper
from workers.protocol.address import shown_address
from workers.runtime.health_server import Pulse

LIVENESS_TIMEOUT_S = 30.0
"""`/livez` fails once the event loop has not answered for this long."""


class ReaperVitals:
    """The answers over HTTP, given from another thread.

    Both clients are the health server's own. ``probing`` is for readiness only.
    """

    def __init__(self, reaper: Reaper, pulse: Pulse, client: Redis, probing: Redis) -> None:
        self._reaper = reaper
        self._pulse = pulse
        self._client = client
        self._probing = probing

    def ailments(self) -> Sequence[str]:
        """Why the process should be restarted. An outage of Redis is no reason, because a restart would not end it."""
        return self._pulse.ailments(LIVENESS_TIMEOUT_S)

    async def obstacles(self) -> Sequence[str]:
        """Ready means that it knows who holds each lease, and that Redis answers, and rejects none of its calls.

        A replica that holds no group is, too.
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
        """Return what ``reaper status -o json`` prints."""
        settings = self._reaper.settings
        try:
            snapshot = await take_snapshot(self._client, settings.namespace_keys, settings.groups, self._reaper.server)
        except (RedisError, OSError) as error:
            return {"status": "unreachable", "error": f"Redis at {shown_address(settings.redis_url)!r} failed: {error}"}
        return as_json(snapshot, judge(snapshot))
