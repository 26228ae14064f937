"""Reads with CLAIM: how a worker gets what is given back where it is (policy ``in-place``).

What is ready there is idle for longer than any delivery can be. So while somebody serves the group, only that is
claimed, whatever visibility timeout jobs and workers go by. Where no leader has served it for long, workers take what
stalls by themselves, late: somebody has to.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from workers.loop.context import Part, WorkerContext
from workers.loop.held import Held
from workers.protocol.calls.beat import BEAT_FIELDS, recovery_wait
from workers.protocol.calls.membership import Agreement
from workers.protocol.calls.recovery import return_taken
from workers.protocol.log_fields import fields
from workers.protocol.meaning import is_not_known
from workers.protocol.messages import (
    CLAIM_READY_MS,
    ClaimedEntry,
    RecoveryMode,
    Redelivery,
    parse_claim_reply,
    text,
)
from workers.runtime.clock import monotonic, time_ms

logger = logging.getLogger(__name__)

SELF_RECOVERY_TIMES, SELF_RECOVERY_LEAST_MS = 10, 600_000
"""Without a leader a delivery is taken that was idle for so many visibility timeouts, and at least for so long."""


def claim_idle_ms(agreement: Agreement, unserved_s: float) -> int | None:
    """Return how long idle is what a read is to claim, in ms; None = it is to claim nothing. Pure.

    ``unserved_s``: for how long nobody has been known to serve the group. A leader may be on its way, and after an
    outage living workers are to prove their lives first, so it has to be a visibility timeout.
    """
    if agreement.redelivery is not Redelivery.IN_PLACE:
        return None
    if agreement.recovery is RecoveryMode.REAPER and unserved_s * 1000 >= agreement.visibility_ms:
        return max(SELF_RECOVERY_TIMES * agreement.visibility_ms, SELF_RECOVERY_LEAST_MS)
    return CLAIM_READY_MS


class Answer(NamedTuple):
    """What a read with CLAIM has brought: it is ours, and not yet known what of it is to run."""

    entries: Sequence[ClaimedEntry]
    idle_ms: int
    """What it was to claim."""
    asked_at: float


class Claiming(Part):
    """What the reader's reads claim, and what becomes of it."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._by_key = {source.key.encode(): source for source in context.membership.both}
        self._refused_in = 0
        """The joining in which the server knew no CLAIM; it may be another server in the next one."""
        self._answer: Answer | None = None

    def idle_ms(self) -> int | None:
        """Return what the next read is to claim, as `claim_idle_ms` does."""
        membership = self._membership
        if membership.joins == self._refused_in:
            return None
        return claim_idle_ms(membership.agreement, membership.unserved_s)

    async def deliveries(
        self, send: Callable[[Sequence[str | int]], Awaitable[Any]], idle_ms: int, asked_at: float
    ) -> list[Held]:
        """Read by ``send``, which takes more words for the command, and make deliveries of the reply.

        Raises what redis-py raises, also where the deliveries are ours: then they are `left`. Where the server knows no
        CLAIM, there are none, and reads are plain from now on.
        """
        try:
            reply = await send(("CLAIM", idle_ms))
        except ResponseError as error:
            if not is_not_known(error):
                raise
            self._was_refused()
            return []
        self._answer = Answer(parse_claim_reply(reply), idle_ms, asked_at)
        return await self.left()

    @property
    def is_left(self) -> bool:
        """Tell whether a read has brought something that `left` is to tell first: it may be somebody else's."""
        return self._answer is not None

    async def left(self) -> list[Held]:
        """Make deliveries of what the last read has brought. Raises what redis-py raises; then it is still left."""
        if self._answer is None:
            return []
        entries, idle_ms, asked_at = self._answer
        taken = await self._taken_from_live_workers(entries, idle_ms)
        if taken:
            await self._give_back(taken)
        entries = [entry for entry in entries if entry not in taken and self._is_to_run(entry, asked_at)]
        max_deliveries, now_ms = self._membership.agreement.max_deliveries, self._membership.now_ms()
        deliveries = []
        for entry in entries:
            held = Held(
                self._by_key[entry.stream],
                entry.entry_id,
                entry.fields,
                entry.deliveries_before + 1,  # the reply does not count this one (rule W7)
                max_deliveries,
                now_ms,
                asked_at,
            )
            # What is ready was judged by whoever made it so, and is to run, also where the limit is lower now.
            held.job.has_unknown_wait = entry.deliveries_before > 0
            held.is_used_up = entry.idle_ms < CLAIM_READY_MS and held.job.deliveries > max_deliveries
            deliveries.append(held)
        self._answer = None
        return deliveries

    def _was_refused(self) -> None:
        self._refused_in = self._membership.joins
        logger.error(
            "redelivered jobs are not read, because XREADGROUP CLAIM needs Redis 8.4: %s",
            fields(
                group=self._settings.keys.pair,
                to_set="recovery = 'embedded'" if self._membership.recovers else "redelivery = 'retry-stream'",
            ),
        )

    async def _taken_from_live_workers(self, entries: Sequence[ClaimedEntry], idle_ms: int) -> list[ClaimedEntry]:
        """Return the deliveries that were perhaps taken from live workers.

        That is so if one was delivered in the future, because the clock was set back. And if a read claims what stalls,
        because no leader serves the group, while recovery has to wait (`workers.protocol.calls.beat`): the clock was
        set ahead, or there was an outage. An entry that is ready in place is idle for 46 days.
        """
        again = [one for one in entries if one.idle_ms < 0 or (one.deliveries_before and one.idle_ms < CLAIM_READY_MS)]
        if not again:
            return []
        asked = monotonic()
        pipeline = self._commands.pipeline(transaction=False)
        pipeline.execute_command("HMGET", self._settings.keys.agreement, *BEAT_FIELDS)
        pipeline.execute_command("TIME")
        values, time = await pipeline.execute()
        settings = {name: text(value) for name, value in zip(BEAT_FIELDS, values, strict=True) if value is not None}
        self._membership.set_clock(time_ms(time), asked)
        waits = recovery_wait(settings, time_ms(time)) is not None
        return [one for one in again if one.idle_ms < 0 or (waits and idle_ms <= one.idle_ms < CLAIM_READY_MS)]

    async def _give_back(self, taken: Sequence[ClaimedEntry]) -> None:
        for source in self._membership.both:
            theirs = [
                (entry.entry_id, entry.deliveries_before) for entry in taken if self._by_key[entry.stream] is source
            ]
            if theirs:
                await return_taken(self._commands, source.key, self._settings.group, self._consumer, theirs)
        self._membership.join_again()  # our word is dated by the clock as it was
        logger.warning(
            "returned deliveries that a read took from live workers after a clock change: %s",
            fields(group=self._settings.keys.pair, deliveries=len(taken)),
        )

    def _is_to_run(self, entry: ClaimedEntry, asked_at: float) -> bool:
        """Take what we had in hand from its handler: we were silent for so long that we have claimed it ourselves."""
        source = self._by_key[entry.stream]
        if source.comes_again(entry.entry_id, entry.deliveries_before + 1, asked_at):
            return False
        return entry.entry_id not in source.kept
