"""Reads with CLAIM return entries that are ready in place (policy ``in-place``) together with new ones.

An entry that is ready in place is idle for longer than any delivery can be. So a read claims no overdue delivery, and
recovery judges each one before a reader gets it.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.in_flight import Delivery
from workers.protocol.log_fields import fields
from workers.protocol.meaning import is_not_known
from workers.protocol.messages import CLAIM_READY_MS, ClaimedEntry, Redelivery, parse_claim_reply

logger = logging.getLogger(__name__)

Send = Callable[[Sequence[str | int]], Awaitable[Any]]
"""Reads, with more words for the command."""


class Answer(NamedTuple):
    """The reply of a read with CLAIM. The entries are pending for us, and some of them may belong to live workers."""

    entries: Sequence[ClaimedEntry]
    asked_at: float


class Claiming(WorkerPart):
    """Decides whether the reader's reads claim, and makes deliveries of their replies."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._moves = context.calls.moves
        self._by_key = {source.key.encode(): source for source in context.membership.both}
        self._refused_in = 0
        """The joining in which the server knew no CLAIM; it may be another server in the next one."""
        self._answer: Answer | None = None

    @property
    def is_on(self) -> bool:
        """Whether the next read claims."""
        membership = self._membership
        return membership.agreement.redelivery is Redelivery.IN_PLACE and membership.joins != self._refused_in

    async def deliveries(self, send: Send, asked_at: float) -> list[Delivery]:
        """Read by ``send``, which takes more words for the command, and make deliveries of the reply.

        Raises errors of redis-py, also if the reply is there: then it is `left`. If the server does not support CLAIM,
        there are no deliveries, and later reads are plain.
        """
        try:
            reply = await send(("CLAIM", CLAIM_READY_MS))
        except ResponseError as error:
            if not is_not_known(error):
                raise
            self._was_refused()
            return []
        self._answer = Answer(parse_claim_reply(reply), asked_at)
        return await self.left()

    @property
    def is_left(self) -> bool:
        """Whether a read has brought entries of which `left` has to make deliveries first."""
        return self._answer is not None

    async def left(self) -> list[Delivery]:
        """Make deliveries of the last reply. Raises errors of redis-py, and then the reply is still left."""
        if self._answer is None:
            return []
        entries, asked_at = self._answer
        await self._give_back([entry for entry in entries if entry.idle_ms < 0])
        max_deliveries, now_ms = self._membership.agreement.max_deliveries, self._membership.now_ms()
        deliveries = []
        for entry in entries:
            if entry.idle_ms < 0 or not self._is_to_run(entry, asked_at):
                continue
            job = Delivery(
                self._by_key[entry.stream],
                entry.entry_id,
                entry.fields,
                entry.deliveries_before + 1,  # the reply does not count this one (rule W7)
                max_deliveries,
                now_ms,
                asked_at,
            )
            job.has_unknown_wait = entry.deliveries_before > 0
            deliveries.append(job)
        self._answer = None
        return deliveries

    def _was_refused(self) -> None:
        self._refused_in = self._membership.joins
        logger.error(
            "redelivered jobs are not read, because XREADGROUP CLAIM needs Redis 8.4: %s",
            fields(group=self._settings.keys.pair, to_set="redelivery = 'retry-stream'"),
        )

    async def _give_back(self, taken: Sequence[ClaimedEntry]) -> None:
        """Give back deliveries of live workers.

        After a step back of the server's clock, their delivery times lie in the future, and Redis takes them for old.
        """
        if not taken:
            return
        for source in self._membership.both:
            theirs = [
                (entry.entry_id, entry.deliveries_before) for entry in taken if self._by_key[entry.stream] is source
            ]
            if theirs:
                await self._moves.return_taken(self._commands, source.key, self._consumer, theirs)
        logger.warning(
            "returned deliveries that a read took from live workers after a clock change: %s",
            fields(group=self._settings.keys.pair, deliveries=len(taken)),
        )

    def _is_to_run(self, entry: ClaimedEntry, asked_at: float) -> bool:
        """Take an entry that we had in hand from its handler: we were silent for so long that it was recovered."""
        source = self._by_key[entry.stream]
        if source.comes_again(entry.entry_id, entry.deliveries_before + 1, asked_at):
            return False
        return entry.entry_id not in source.kept
