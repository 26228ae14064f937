"""Whether Redis was there all the time: after an outage everything looks idle, while its workers live.

Recovery then waits once, so that live workers come first. The rules are `Grace`'s; this feeds it with what whoever asks
Redis for something meets: answers, errors, and answers that do not come.
"""

import math
from collections.abc import Callable

import anyio
from redis.asyncio import Redis

from workers.protocol.cluster import moves_of
from workers.protocol.meaning import is_outage
from workers.runtime.clock import monotonic
from workers.runtime.denials import Denials
from workers.runtime.grace import Grace

LONGEST_GRACE_MS = 30_000
LONGEST_OUTAGE_MS = 7_000
LOOK_S = 0.25
"""How often answers are looked for that do not come."""
PAUSED_S = 1.0
"""We ourselves did not run, where we come this late: the gap says nothing about Redis."""


def grace_of_workers() -> Grace:
    """Return the grace of embedded recovery, where nobody is trusted for a time that would say what an outage is."""
    return Grace(LONGEST_GRACE_MS, LONGEST_OUTAGE_MS)


class Contact:
    """What one who asks Redis, one call after the other, knows of it. `run` must be running.

    Instants are seconds of ``clock``.
    """

    def __init__(
        self,
        client: Redis,
        grace: Grace,
        *,
        look_s: float = LOOK_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._client = client
        self._grace = grace
        self._look_s = look_s
        self._clock = clock
        self._answer_due: float | None = None
        self._uptime_unknown = True
        self._last_answer = -math.inf
        self._moves = moves_of(client)
        self.denials = Denials()

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)

    # ---- what was asked, and what came of it

    def ask(self, wait_s: float = 0.0) -> None:
        """Note that Redis owes an answer, after ``wait_s`` at the latest."""
        self._answer_due = self._clock() + wait_s

    def answered(self, server_ms: int | None = None) -> bool:
        """Note that it answered, and what time it has where it said so; return whether the answer came promptly.

        One that did not says nothing of the time: perhaps we were paused with the answer at hand.
        """
        now = self._clock()
        is_prompt = self._answer_due is not None and now - self._answer_due <= PAUSED_S
        self._last_answer = now
        self._grace.contact(round(now * 1000), server_ms if is_prompt else None)
        self._note_moves()
        self._answer_due = None
        return is_prompt

    def _note_moves(self) -> None:
        if self._moves != moves_of(self._client):
            self._moves = moves_of(self._client)
            self._grace.moved(self._now_ms())

    def failed(self, error: BaseException) -> bool:
        """Note that an attempt failed; return whether Redis was away. A server that refuses was there, and answered."""
        if not is_outage(error):
            self._answer_due = None
            return False
        self._grace.failed(self._now_ms())
        self._uptime_unknown = True
        return True

    @property
    def silence_s(self) -> float:
        """For how many seconds nothing was heard of Redis; inf where nothing ever was."""
        return self._clock() - self._last_answer

    async def learn_uptime(self) -> None:
        """Ask how long the server has been up: one that has just started answers as if nothing had been.

        Raises what redis-py raises.
        """
        self.ask()
        info = await self._client.info("server")
        self.answered()
        self._grace.server_uptime(self._now_ms(), int(info["uptime_in_seconds"]) * 1000)
        self._uptime_unknown = False

    async def run(self) -> None:
        """Look for answers that do not come, until cancelled. A hung attempt that is cancelled fails nowhere else."""
        last = self._clock()
        while True:
            await anyio.sleep(self._look_s)
            now = self._clock()
            if now - last > PAUSED_S:
                self._grace.paused(round(now * 1000), round((now - last) * 1000))
            elif self._answer_due is not None and now > self._answer_due + self._look_s:
                self._grace.failed(round(now * 1000))
            last = now

    # ---- what follows for recovery

    def in_grace(self, visibility_s: float) -> bool:
        """Tell whether recovery waits after an outage, as far as is known."""
        self._note_moves()
        return self._until_ms(visibility_s) > self._now_ms()

    def call_valid_ms(self, visibility_s: float) -> int:
        """Return for how long a call that recovers may wait to be run, if it is made now."""
        return self._grace.call_valid_ms(round(visibility_s * 1000), self._now_ms())

    def _until_ms(self, visibility_s: float) -> int:
        visibility_ms = round(visibility_s * 1000)
        return max(self._grace.until(visibility_ms), self.denials.until(self._grace.longest_ms(visibility_ms)))

    async def wait_s(self, visibility_s: float) -> float:
        """Return for how many seconds recovery has to wait; negative: not at all. Raises what redis-py raises."""
        if self._uptime_unknown:
            await self.learn_uptime()
        self._note_moves()
        wait_until_ms = max(self._until_ms(visibility_s), self._grace.begins_ms(round(visibility_s * 1000)))
        return wait_until_ms / 1000 - self._clock()
