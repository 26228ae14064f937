"""Decides when recovery waits because Redis was away: pure, told what happened and when.

After an outage every delivery looks idle while its worker lives and could not settle or extend. Recovery then waits
once, so that live workers come first. A term after an ordinary failover waits for nothing.

A replica that was itself paused must not take the gap for an outage of Redis: an outage shows as attempts that fail, or
stay without an answer, over some time in which we ran; a pause as none, or as a few in the moment it ends.
"""

import logging
import math

from workers.protocol.calls import CALL_VALID_MS
from workers.runtime.clock_steps import ClockSteps
from workers.runtime.pauses import LONGEST_PAUSE_S

logger = logging.getLogger(__name__)

KEYS_MOVED = "the keys are at another node"
OUTAGE_PART = 3
"""An outage counts from this part of a group's visibility timeout on: then extensions of live workers were missed."""
LONGEST_FIRST_WAIT_MS = round(LONGEST_PAUSE_S * 1000) + 250
"""So long waits a process that is new: whether Redis was away until now it cannot know. Live workers that could not
reach it try again within their longest pause; what they sent meanwhile is done before anything of ours."""
LEAST_SPREAD_MS = 300
"""Failures must lie at least this far apart to count as an outage."""
LEAST_VALID_MS = 1_000
"""While nothing fails, a call may at least take so long: a busy machine is no outage."""


class Grace:
    """Remembers contact with Redis across terms. Instants are local monotonic milliseconds."""

    def __init__(self, longest_ms: int, outage_ms: int) -> None:
        """``longest_ms``: longest wait; ``outage_ms``: loss of contact that always counts (the trust window)."""
        self._longest_ms = longest_ms
        self._outage_ms = outage_ms
        self._first_contact: int | None = None
        self._last_contact: int | None = None
        self._first_failure: int | None = None
        self._last_failure = 0
        self._outages: list[tuple[int, float]] = []
        """When each ended, and how long it was: those that a later one has not outdone."""
        self._why = ""
        self._server_started: int | None = None
        self.steps = ClockSteps()
        """How the server's clock was set meanwhile."""

    def failed(self, now_ms: int) -> None:
        """An attempt to reach Redis failed, or is still without an answer."""
        if self._first_failure is None:
            self._first_failure = now_ms
        self._last_failure = now_ms

    def paused(self, now_ms: int, pause_ms: int) -> None:
        """This process itself did not run for ``pause_ms`` until now: that tells nothing about Redis."""
        if self._last_contact is not None:
            self._last_contact += pause_ms
        if self._first_failure is not None:
            if self._last_failure <= now_ms - pause_ms:  # else it is one of the moment in which the pause ended
                self._last_failure += pause_ms
            self._first_failure += pause_ms

    def contact(self, now_ms: int, server_ms: int | None) -> None:
        """Redis answered, and said what time it has; None where the answer is too old to tell."""
        lost_ms = self._lost_ms(now_ms)
        if lost_ms:
            self._wait_from(now_ms, "Redis was out of reach", lost_ms)
        if server_ms is not None:
            jump_ms = self.steps.seen(now_ms, server_ms)
            if jump_ms:
                self._wait_from(now_ms, f"the server's clock was set by {jump_ms / 1000:+.1f} s")
        if self._first_contact is None:
            self._first_contact = now_ms
        self._last_contact = now_ms
        self._first_failure = None

    def moved(self, now_ms: int) -> None:
        """What is recovered lies at another node of a cluster now. On the way no script could run, nobody extended."""
        self._wait_from(now_ms, KEYS_MOVED)

    def server_uptime(self, now_ms: int, uptime_ms: int) -> None:
        """Redis said how long it has been up: by its clock, so less than nothing where that was set back meanwhile."""
        started = now_ms - max(0, uptime_ms)
        # Uptime is told in whole seconds: the same start looks up to a second apart.
        if self._server_started is None or started > self._server_started + 1_500:
            self._server_started = started

    def longest_ms(self, visibility_ms: int) -> int:
        """Return how long the deliveries of a group may have to wait after an outage."""
        return min(visibility_ms, self._longest_ms)

    def begins_ms(self, visibility_ms: int) -> int:
        """Return the instant from which a process that is new may recover: live workers of a group come first."""
        if self._first_contact is None:
            return 0
        return self._first_contact + min(visibility_ms // OUTAGE_PART, LONGEST_FIRST_WAIT_MS)

    def until(self, visibility_ms: int) -> int:
        """Return the instant from which deliveries of a group may be recovered; in the past when there is no grace.

        All reasons to wait lie in the past when they are noted, so no grace ends later than its length from now. While
        Redis is out of reach, one begins with each attempt that fails: a call that is made then would be among the
        first that are served.
        """
        wait = self.longest_ms(visibility_ms)
        counts_ms = self._counts_ms(visibility_ms)
        ends = [0, *(ended + wait for ended, lost_ms in self._outages if lost_ms > counts_ms)]
        if self._lost_ms(self._last_failure) > counts_ms:
            ends.append(self._last_failure + wait)
        if self._server_started is not None:
            ends.append(self._server_started + wait)
        return max(ends)

    def call_valid_ms(self, visibility_ms: int, now_ms: int) -> int:
        """Return for how long a call that recovers may wait to be run, if it is made now; negative: it is too late.

        One that is made out of contact may be the first that a server hears after an outage, before anybody knows of
        it: it is good for nothing once the outage would count.
        """
        if self._last_contact is None:
            return CALL_VALID_MS
        counts_from = self._last_contact + self._counts_ms(visibility_ms)
        least_ms = LEAST_VALID_MS if self._first_failure is None else -CALL_VALID_MS
        return min(CALL_VALID_MS, max(counts_from - now_ms, least_ms))

    @property
    def why(self) -> str:
        """What happened last of that which makes recovery wait; '' where nothing did."""
        if self._server_started is not None and self._server_started >= (self._outages[-1][0] if self._outages else 0):
            return "Redis has just started"
        return self._why

    def _counts_ms(self, visibility_ms: int) -> int:
        """Return from how much loss of contact on an outage counts for a group."""
        return min(self._outage_ms, visibility_ms // OUTAGE_PART)

    def _lost_ms(self, now_ms: int) -> int:
        """Return for how long Redis was out of reach; 0 where it was not, or where it was ourselves who did not run."""
        if self._last_contact is None or self._first_failure is None:
            return 0
        spread = self._last_failure - self._first_failure
        return now_ms - self._last_contact if spread >= LEAST_SPREAD_MS else 0

    def _wait_from(self, now_ms: int, why: str, lost_ms: float = math.inf) -> None:
        self._outages = [one for one in self._outages if one[1] > lost_ms] + [(now_ms, lost_ms)]
        self._why = why
        if lost_ms > self._outage_ms:
            logger.warning(
                "%s: recovery waits up to %.1f s, so that live workers come first", why, self._longest_ms / 1000
            )
        else:
            logger.info(
                "%s for %.1f s: recovery waits where the visibility timeout is shorter than %.1f s",
                why, lost_ms / 1000, OUTAGE_PART * lost_ms / 1000,
            )  # fmt: skip
