"""Whether Redis was there all the time: after an outage everything looks idle, while its workers live.

Embedded recovery then waits once, so that live workers come first. The rules are `Grace`'s, as in the reaper; this
feeds it with what the reader meets: answers, errors, and answers that do not come.
"""

import logging
from time import monotonic
from typing import Protocol

import anyio
from redis.asyncio import Redis

from workers.protocol.connection import is_contact_error
from workers.runtime.grace import Grace

logger = logging.getLogger(__name__)

LONGEST_GRACE_MS = 30_000
LONGEST_OUTAGE_MS = 7_000
OUTAGE_PART = 3
"""An outage counts from this part of the visibility timeout on: then extensions of live workers were missed."""
LONGEST_FIRST_WAIT_S = 1.0
"""A process that has just started cannot know whether the server hung until now. Workers that live extend again within
a third of the visibility timeout; what they sent meanwhile is done before anything of ours."""
LOOK_S = 0.25
"""How often answers are looked for that do not come."""
PAUSED_S = 1.0
"""We ourselves did not run, where we come this late: the gap says nothing about Redis."""


class HasVisibility(Protocol):
    """What is known of the group."""

    visibility_s: float
    """The agreed visibility timeout."""


class Contact:
    """What the reader knows of Redis. `run` must be running. Instants are monotonic seconds."""

    def __init__(self, client: Redis, membership: HasVisibility) -> None:
        self._client = client
        self._membership = membership
        self._grace: Grace | None = None
        self._answer_due: float | None = None
        self._uptime_unknown = True
        self._first_look: float | None = None

    @property
    def _rules(self) -> Grace:
        if self._grace is None:
            outage_ms = round(self._membership.visibility_s * 1000 / OUTAGE_PART)
            self._grace = Grace(LONGEST_GRACE_MS, min(LONGEST_OUTAGE_MS, outage_ms))
        return self._grace

    # ---- for the reader

    def ask(self, wait_s: float = 0.0) -> None:
        """Note that Redis owes an answer, after ``wait_s`` at the latest."""
        self._answer_due = monotonic() + wait_s

    def answered(self, server_ms: int | None = None) -> None:
        """Note that it answered, and what time it has where it said so."""
        now = monotonic()
        if self._first_look is None:
            self._first_look = now + min(self._membership.visibility_s / OUTAGE_PART, LONGEST_FIRST_WAIT_S)
        prompt = self._answer_due is not None and now - self._answer_due < PAUSED_S
        self._rules.contact(round(now * 1000), server_ms if prompt else None)
        self._answer_due = None

    def failed(self, error: BaseException) -> None:
        """Note that an attempt failed. A server that refuses was there."""
        if is_contact_error(error):
            self._rules.failed(round(monotonic() * 1000))
            self._uptime_unknown = True

    @property
    def in_grace(self) -> bool:
        """Tell whether recovery waits after an outage, as far as is known."""
        return self._rules.until(round(self._membership.visibility_s * 1000)) > monotonic() * 1000

    async def wait_s(self) -> float:
        """Return for how many seconds recovery has to wait. Raises what redis-py raises."""
        if self._uptime_unknown:
            self.ask()
            info = await self._client.info("server")
            self.answered()
            self._rules.server_uptime(round(monotonic() * 1000), int(info["uptime_in_seconds"]) * 1000)
            self._uptime_unknown = False
        until = self._rules.until(round(self._membership.visibility_s * 1000)) / 1000
        return max(until, self._first_look or 0.0) - monotonic()

    # ---- answers that do not come

    async def run(self) -> None:
        """Look for them until cancelled."""
        last = monotonic()
        while True:
            await anyio.sleep(LOOK_S)
            now = monotonic()
            if now - last > PAUSED_S:
                self._rules.paused(round(now * 1000), round((now - last) * 1000))
            elif self._answer_due is not None and now > self._answer_due + LOOK_S:
                self._rules.failed(round(now * 1000))
            last = now
