"""Writes verdicts to Redis, many in one call: for a moment, and while a call is on its way, the next ones gather.

A settlement is never given up because contact was lost: it is sent again until it is answered, and told to the script
as such, since the first call may have done the work. Meanwhile runners wait once `capacity` verdicts have gathered.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from time import time_ns
from typing import NamedTuple

import anyio
from redis.exceptions import NoPermissionError, RedisError

from workers.loop.change import Change
from workers.loop.context import Part, WorkerContext
from workers.loop.execution import ACKED
from workers.loop.held import Held, Interruption, Source
from workers.protocol.calls.settlement import Outcome, Result, Settled, Verdict, settle
from workers.protocol.connection import drop_idle
from workers.protocol.meaning import Meaning, meaning_of, meaning_of_text, was_not_run
from workers.protocol.messages import in_order
from workers.runtime.clock import monotonic
from workers.runtime.pauses import pause_s

ENDED = frozenset({Result.DONE, Result.DEAD, Result.LOST})
"""The call has ended the delivery."""
SETTLE_BATCH = 128
"""Settlements in one call at most."""
GATHER_BATCHES = 4
"""How many full batches may gather before runners wait: memory stays bounded through an outage."""

GATHER_S = 0.001
"""How long a verdict waits for others to fill its call. Its slot is free meanwhile."""

MAX_COPIED_BYTES = 1_048_576
"""Payload that one call may copy, give or take one job: no call blocks the server for long."""


@dataclass(slots=True)
class _Pile:
    """Verdicts on deliveries of one source."""

    source: Source
    waiting: deque[Held] = field(default_factory=deque)
    reply_was_lost: int = 0
    """So many of the first ones have been sent before, without an answer."""
    part: str = ""
    """What settling these is called where it fails."""
    limit: int = 0
    """How many to send at a time while the server refuses a call; 0 = as many as the settings allow."""


class Settlements(Part):
    """Gathers verdicts and settles them, one call at a time."""

    def __init__(self, context: WorkerContext, are_answered: Callable[[], None]) -> None:
        """``are_answered`` is called after each answer."""
        super().__init__(context)
        self._are_answered = are_answered
        self._connection = context.kept
        self._proof = context.proof
        self._keys = context.settings.keys
        self._facts = context.facts()
        self._journal = context.journal
        self._full = SETTLE_BATCH
        self._capacity = GATHER_BATCHES * self._full
        self._piles = {source.key: _Pile(source, part=f"settling {source.key}") for source in context.membership.both}
        self._gathered = 0
        self._failures = 0
        self._arrived = Change()
        self._filled = Change()
        self._settled = Change()

    # ---- for runners

    def add(self, held: Held, verdict: Verdict, began: float, now: float) -> bool:
        """Gather the verdict on a delivery that came into its slot then, and ends now; returns at once.

        Returns whether more wait than may: then `wait_for_room` before the next job is run.
        """
        held.end(verdict, began, now)
        self._piles[held.source.key].waiting.append(held)
        self._gathered = gathered = self._gathered + 1
        if gathered == 1:  # the settler waits for a first one only
            self._arrived.notify()
        if gathered < self._full:
            return False
        if gathered == self._full:
            self._filled.notify()
        return gathered >= self._capacity

    async def wait_for_room(self) -> None:
        """Wait until verdicts may gather again."""
        while self._gathered >= self._capacity:
            await self._settled.wait()

    async def wait_until_settled(self) -> None:
        """Wait until every verdict is answered; `run` must be running."""
        while self._gathered:
            await self._settled.wait()

    # ---- the settler

    async def run(self) -> None:
        """Settle what gathers until cancelled. What was being sent then counts as sent without an answer."""
        while True:
            if not self._gathered:
                await self._arrived.wait()
            await self._wait_for_more()
            await self._settle_what_waits()

    async def flush(self) -> None:
        """Settle everything that has gathered, however long Redis is out of reach. Not while `run` is running."""
        while self._gathered:
            await self._settle_what_waits()

    async def _wait_for_more(self) -> None:
        """Let others join the first verdict, for a moment: a call costs as much as dozens of verdicts."""
        if self._gathered >= self._full:
            return
        timer = asyncio.get_running_loop().call_later(GATHER_S, self._filled.notify)
        try:
            await self._filled.wait()
        finally:
            timer.cancel()

    async def _settle_what_waits(self) -> None:
        answered = [await self._settle_some(pile) for pile in self._piles.values() if pile.waiting]
        if all(answered):
            self._failures = 0
        else:
            self._failures += 1
            await anyio.sleep(pause_s(self._failures))

    async def _settle_some(self, pile: _Pile) -> bool:
        """Make one call. Returns False where it failed and has to be made again."""
        batch = self._next_batch(pile)
        lost_before = pile.reply_was_lost
        lost = lost_before > 0
        pile.reply_was_lost = max(pile.reply_was_lost, len(batch))
        began_ns = time_ns() if self._telemetry else 0
        asked_at = monotonic()
        try:
            results = await self._send(pile.source, batch, lost=lost)
        except (RedisError, OSError) as error:
            return await self._failed(pile, batch, error, lost_before)
        if results is None or not any(map(_is_denied, results)):
            self._reporter.works(pile.part)
        is_done = self._answered(pile, batch, results, asked_at)
        if self._telemetry:
            self._telemetry.settled(batch, results, began_ns)
        pile.limit = 0
        return is_done

    def _next_batch(self, pile: _Pile) -> list[Held]:
        """Choose the first verdicts that fit into one call: by their number, and by the bytes it has to copy."""
        size = min(pile.limit or self._full, len(pile.waiting))
        if pile.reply_was_lost:  # never mixed with new ones: a new one is not "unknown"
            size = min(size, pile.reply_was_lost)
        batch = list(islice(pile.waiting, size))
        cut_by_proofs(batch, self._membership.shows_from(monotonic()))
        if [held.verdict for held in batch].count(ACKED) < size:
            _cut(batch)
        return in_order(batch, _entry_id)

    async def _send(self, source: Source, batch: Sequence[Held], *, lost: bool) -> Sequence[Settled] | None:
        return await settle(
            self._connection,
            source.key,
            self._keys,
            batch,
            consumer=self._consumer,
            agreement=self._membership.agreement,
            journal=self._journal,
            deletes=self._settings.delete_settled,
            reply_was_lost=lost,
            facts=self._facts,
            proof=self._proof.of(batch),
        )

    # ---- what came of it

    async def _failed(self, pile: _Pile, batch: Sequence[Held], error: Exception, lost_before: int) -> bool:
        meaning = meaning_of(error)
        if meaning is Meaning.NO_GROUP or was_not_run(error):
            pile.reply_was_lost = lost_before
        if meaning is Meaning.NO_GROUP:  # it is settled in the group that is made again
            if self._membership.is_gone(pile.source, error):
                result = Result.UNKNOWN if lost_before else Result.REFUSED
                return self._answered(pile, batch, [Settled(result)] * len(batch))
            self._membership.join_again()
            self._reporter.failed(pile.part, error)
            return False
        if meaning is Meaning.UNCLEAR and len(batch) == 1 and await self._would_settle_others(pile.source):
            return self._answered(pile, batch, [Settled(Result.HELD, str(error))])  # the others must not wait for it
        if meaning in (Meaning.UNCLEAR, Meaning.REFUSED):
            pile.limit = max(1, len(batch) // 2)
        self._reporter.failed(pile.part, error)
        await drop_idle(self._commands, error)
        return False

    async def _would_settle_others(self, source: Source) -> bool:
        """Ask the server whether a call was refused for what was in it: settle a delivery that there is not."""
        try:
            await settle(
                self._connection,
                source.key,
                self._keys,
                [_NOTHING],
                consumer=self._consumer,
                agreement=self._membership.agreement,
                journal=self._journal._replace(writes=0),
                deletes=False,
                reply_was_lost=True,
                facts=None,
            )
        except (RedisError, OSError):
            return False
        return True

    def _answered(
        self, pile: _Pile, batch: Sequence[Held], results: Sequence[Settled] | None, asked_at: float = inf
    ) -> bool:
        """Note what came of a call that was made then. Returns False where something of it has to be asked again."""
        waiting = pile.waiting
        for _ in batch:
            waiting.popleft()
        pile.source.forget_all(batch)
        self._gathered -= len(batch)
        pile.reply_was_lost = max(0, pile.reply_was_lost - len(batch))
        is_done = True
        if results is None:  # every one was acknowledged
            self._reporter.counts.acked += len(batch)
            pile.source.are_settled(batch)
        else:
            pile.source.are_settled([held for held, one in zip(batch, results, strict=True) if one.result in ENDED])
            for held, settled in zip(batch, results, strict=True):
                if _is_denied(settled):  # our user may not: that is no fault of the job
                    self._reporter.failed(pile.part, NoPermissionError(settled.detail))
                elif not _is_to_be_asked_again(held, settled.result, asked_at):
                    self._count(held, settled)
                    continue
                is_done = False
                pile.source.hold(held)
                waiting.append(held)
                self._gathered += 1
        self._settled.notify()
        self._are_answered()
        return is_done

    def _count(self, held: Held, settled: Settled) -> None:
        job, verdict = held.job, held.verdict
        if settled.result is Result.DONE:
            if verdict.outcome is Outcome.ACK:
                self._reporter.counts.acked += 1
            elif verdict.outcome is Outcome.HAND_BACK:
                self._reporter.counts.handed_back += 1
            else:
                self._reporter.counts.nacked += 1
        elif settled.result is Result.REFUSED:
            if held.interruption is not Interruption.LOST:  # else that is told already
                self._reporter.refused(job, verdict.outcome, held.run_ms)
        elif settled.result is Result.LOST:
            self._reporter.lost(job, verdict)
        elif settled.result is Result.UNKNOWN:
            self._reporter.counts.unknown += 1
        elif settled.result is Result.DEAD:
            limit = self._membership.agreement.max_deliveries
            self._reporter.dead_lettered(job, verdict, settled.detail, limit)
        else:
            held.keep()
            self._reporter.held(job, verdict, settled.detail)


@dataclass(slots=True)
class _NoDelivery:
    """A delivery that there is not: no stream has such an entry."""

    raw_entry_id: bytes = b"0-1"
    raw_id: bytes = b"0-1"
    times_delivered: int = 1


class _Nothing(NamedTuple):
    job: _NoDelivery
    verdict: Verdict
    run_ms: int
    started: float
    has_lost_payload: bool = False


_NOTHING = _Nothing(_NoDelivery(), ACKED, 0, -inf)


def cut_by_proofs(batch: list[Held], shows_from: float) -> None:
    """Leave the last ones out where not all have been proven since then: have something to show for being ours.

    A call says of all what is true of the oldest proof, and some may have ended long ago, while the loop hung.
    """
    are_old = [held.proven < shows_from for held in batch]
    if True in are_old and False in are_old:
        del batch[are_old.index(not are_old[0]) :]


def _cut(batch: list[Held]) -> None:
    """Leave the last ones out where the first ones have enough to copy."""
    copied = 0
    for at, held in enumerate(batch, start=1):
        if held.verdict.outcome is not Outcome.ACK:
            copied += held.job.payload_bytes + len(held.verdict.traceback)
            if copied >= MAX_COPIED_BYTES:
                del batch[at:]
                break


def _is_denied(settled: Settled) -> bool:
    return settled.result is Result.HELD and meaning_of_text(settled.detail) is Meaning.DENIED


def _is_to_be_asked_again(held: Held, result: Result, asked_at: float) -> bool:
    """Tell whether an answer to a call that was made then says nothing of the delivery that is in hand."""
    return result is Result.LATE or (held.again_at >= asked_at and result in (Result.REFUSED, Result.UNKNOWN))


def _entry_id(held: Held) -> bytes:
    return held.job.raw_entry_id
