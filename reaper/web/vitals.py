"""The health of a replica, over HTTP (`workers.runtime.health_server`) and for systemd (`service_manager`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.operations.judgement import as_json, judge
from reaper.operations.snapshot import take_snapshot
from reaper.service import Reaper
from workers.protocol.address import shown_address
from workers.protocol.messages import counted
from workers.runtime.health_server import Pulse

LIVENESS_TIMEOUT_S = 30.0
"""`/livez` fails once the event loop has not answered for this long."""


class ReaperCondition:
    """The state for systemd. Read from another thread, too."""

    def __init__(self, reaper: Reaper, pulse: Pulse) -> None:
        self._reaper = reaper
        self._pulse = pulse

    def ailments(self) -> Sequence[str]:
        """Why the process should be restarted. An outage of Redis is no reason, because a restart would not end it."""
        return self._pulse.ailments(LIVENESS_TIMEOUT_S)

    def is_ready(self) -> bool:
        """Ready means that it knows who holds each lease, and that Redis rejects none of its calls."""
        return self._reaper.has_worked and not self._reaper.refusals

    def is_stopping(self) -> bool:
        """It is leaving."""
        return self._reaper.is_stopping

    def summary(self) -> str:
        """Say how many groups it holds."""
        if self._reaper.is_stopping:
            return "leaving"
        if self._reaper.refusals:
            return f"Redis refuses: {'; '.join(self._reaper.refusals)}"
        if not self._reaper.has_registered:
            return "starting"
        return f"holds {self._reaper.held} of {counted(len(self._reaper.watched), 'group')}"


class ReaperVitals(ReaperCondition):
    """The answers over HTTP, given from another thread.

    Both clients are the health server's own. ``probing`` is for readiness only.
    """

    def __init__(self, reaper: Reaper, pulse: Pulse, client: Redis, probing: Redis) -> None:
        super().__init__(reaper, pulse)
        self._client = client
        self._probing = probing

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
            snapshot = await take_snapshot(self._client, settings.namespace_keys, settings.watched, self._reaper.server)
        except (RedisError, OSError) as error:
            return {"status": "unreachable", "error": f"Redis at {shown_address(settings.redis_url)!r} failed: {error}"}
        return as_json(snapshot, judge(snapshot))
