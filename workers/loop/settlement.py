"""Writes verdicts to Redis, many in one call. New verdicts gather while a call is under way.

A call without an answer is sent again with its number until it is answered, and no other call before that (rule W2).
Runners wait meanwhile if too many verdicts have gathered.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import time_ns

import anyio
from anyio.lowlevel import checkpoint
from redis.exceptions import NoPermissionError, RedisError

from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.held import Held, Interruption, Source
from workers.loop.notifier import Notifier
from workers.protocol.calls.moves import Item, Result, Settled
from workers.protocol.calls.settlement import Outcome, Verdict
from workers.protocol.connection import drop_idle
from workers.protocol.meaning import Meaning, meaning_of, meaning_of_text, was_not_run
from workers.protocol.messages import in_order
from workers.runtime.clock import monotonic
from workers.runtime.pauses import pause_s

ENDED = frozenset({Result.DONE, Result.DEAD, Result.LOST})
"""Results that end the delivery."""
SETTLE_BATCH = 128
"""The maximum number of verdicts in a call."""
GATHER_BATCHES = 4
"""Full batches that can gather before runners wait, so that memory is bounded in an outage."""

GATHER_S = 0.001
"""Time that a verdict waits for others in the same call. Its slot is free meanwhile."""

MAX_COPIED_BYTES = 1_048_576
"""The maximum payload that a call copies, plus one job, so that no call blocks the server for long."""
_ABSENT = b"0-1"
"""An entry ID that no stream has."""


@dataclass(slots=True)
class _VerdictQueue:
    """Verdicts on deliveries of one source: acks, or other verdicts."""

    source: Source
    are_acks: bool
    part: str
    """The name of this part in errors."""
    waiting: list[Held] = field(default_factory=list)
    limit: int = 0
    """Maximum batch while the server rejects calls. 0 without such a limit."""


@dataclass(frozen=True, slots=True)
class _SettleCall:
    """A call, which stays the same until it is answered."""

    queue: _VerdictQueue
    batch: Sequence[Held]
    number: int


class Settlements(WorkerPart):
    """Gathers verdicts, and settles them with one call at a time."""

    def __init__(self, context: WorkerContext, are_answered: Callable[[], None]) -> None:
        """``are_answered`` is called after each answer."""
        super().__init__(context)
        self._are_answered = are_answered
        self._connection = context.kept
        self._moves = context.moves
        self._numbers = context.numbers
        self._facts = context.facts()
        self._full = SETTLE_BATCH
        self._capacity = GATHER_BATCHES * self._full
        self._acks, self._others = (
            {
                source.key: _VerdictQueue(source, are_acks, f"settling {source.key}")
                for source in context.membership.both
            }
            for are_acks in (True, False)
        )
        self._queues = (*self._acks.values(), *self._others.values())
        self._call: _SettleCall | None = None
        """The call without an answer."""
        self._gathered = 0
        self._failures = 0
        self._arrived = Notifier()
        self._filled = Notifier()
        self._settled = Notifier()

    # ---- for runners

    def add(self, held: Held, verdict: Verdict, began: float, now: float) -> bool:
        """Add the verdict on a delivery that had its slot from ``began`` to ``now``. Returns at once.

        If the result is true, call `wait_for_room` before the next job.
        """
        held.end(verdict, began, now)
        queues = self._acks if verdict.outcome is Outcome.ACK else self._others
        queues[held.source.key].waiting.append(held)
        self._gathered = gathered = self._gathered + 1
        if gathered == 1:  # the settler waits only for the first one
            self._arrived.notify()
        if gathered < self._full:
            return False
        if gathered == self._full:
            self._filled.notify()
        return gathered >= self._capacity

    async def wait_for_room(self) -> None:
        """Let other tasks run, and wait until there is room for more verdicts."""
        await checkpoint()
        while self._gathered >= self._capacity:
            await self._settled.wait()

    async def wait_until_settled(self) -> None:
        """Wait until every verdict is answered. `run` must be running."""
        while self._gathered:
            await self._settled.wait()

    # ---- the settler

    async def run(self) -> None:
        """Settle verdicts until cancelled. A call that is under way then has no answer."""
        while True:
            if not self._gathered:
                await self._arrived.wait()
            await self._wait_for_more()
            await self._settle_what_waits()

    async def flush(self) -> None:
        """Settle all verdicts, also through an outage. Not while `run` is running."""
        while self._gathered:
            await self._settle_what_waits()

    async def _wait_for_more(self) -> None:
        """Wait for more verdicts, because a call costs as much as dozens of verdicts."""
        if self._gathered >= self._full:
            return
        timer = asyncio.get_running_loop().call_later(GATHER_S, self._filled.notify)
        try:
            await self._filled.wait()
        finally:
            timer.cancel()

    async def _settle_what_waits(self) -> None:
        """Make one call for each queue with verdicts, until one fails."""
        for queue in self._queues:
            if self._call is None and not queue.waiting:
                continue
            if not await self._settle_some(queue):
                self._failures += 1
                await anyio.sleep(pause_s(self._failures))
                return
            self._failures = 0

    async def _settle_some(self, queue: _VerdictQueue) -> bool:
        """Make one call: the one without an answer, or the next one of this queue. Returns False if it failed."""
        if self._call is None:
            self._call = _SettleCall(queue, self._next_batch(queue), self._numbers.begin())
        call = self._call
        began_ns = time_ns() if self._telemetry else 0
        asked_at = monotonic()
        try:
            results = await self._send(call)
        except (RedisError, OSError) as error:
            return await self._failed(call, error)
        if results is None or not any(map(_is_denied, results)):
            self._reporter.works(call.queue.part)
        is_done = self._answered(call, results, asked_at)
        if self._telemetry:
            self._telemetry.settled(call.batch, results, began_ns)
        call.queue.limit = 0
        return is_done

    def _next_batch(self, queue: _VerdictQueue) -> list[Held]:
        """Take the first verdicts that fit into one call, by number and by bytes to copy."""
        most = queue.limit or self._full
        batch = queue.waiting[:most]
        if not queue.are_acks:
            _cut(batch)
        del queue.waiting[: len(batch)]
        return batch if queue.are_acks else in_order(batch, _entry_id)  # an ack has no use for neighbours

    async def _send(self, call: _SettleCall) -> Sequence[Settled] | None:
        """Return the results. None means that all are acknowledged."""
        source, batch = call.queue.source.key, call.batch
        who = {"consumer": self._consumer, "caller": self._numbers.caller}
        tells = self._moves.maxlen > 0
        if call.queue.are_acks:
            done = await self._moves.ack(
                self._connection,
                source,
                [held.raw_entry_id for held in batch],
                number=call.number,
                deletes=self._settings.delete_settled,
                fields=self._facts.of_acks(batch) if tells else (),
                **who,
            )
            return None if done is None else [Settled(Result.DONE if one else Result.REJECTED) for one in done]
        items = [
            Item(
                held.raw_entry_id,
                held.times_delivered,
                held.verdict,
                self._facts.of_settlement(held) if tells else (),
            )
            for held in batch
        ]
        return await self._moves.settle(self._connection, source, items, number=call.number, **who)

    # ---- results

    async def _failed(self, call: _SettleCall, error: Exception) -> bool:
        queue, batch, meaning = call.queue, call.batch, meaning_of(error)
        if meaning is Meaning.NO_GROUP or "NOSETTINGS" in str(error):  # the call had no effect
            if self._membership.is_gone(queue.source, error):
                return self._answered(call, [Settled(Result.REJECTED)] * len(batch))
            self._membership.join_again()
        elif meaning is Meaning.UNCLEAR and len(batch) == 1 and await self._would_settle_others(queue.source):
            return self._answered(call, [Settled(Result.HELD, str(error))])  # the others must not wait for it
        elif meaning in (Meaning.UNCLEAR, Meaning.REFUSED):
            queue.limit = max(1, len(batch) // 2)
            self._give_up(call)
        elif was_not_run(error):
            self._give_up(call)
        self._reporter.failed(queue.part, error)
        await drop_idle(self._commands, error)
        return False

    def _give_up(self, call: _SettleCall) -> None:
        """Put back the verdicts of a call that had no effect."""
        call.queue.waiting[:0] = call.batch
        self._call = None
        self._numbers.end()

    async def _would_settle_others(self, source: Source) -> bool:
        """Return whether the server takes calls of other content, by an ack of an absent entry."""
        self._numbers.end()
        number = self._numbers.begin()
        try:
            await self._moves.ack(
                self._connection,
                source.key,
                [_ABSENT],
                consumer=self._consumer,
                caller=self._numbers.caller,
                number=number,
            )
        except (RedisError, OSError):
            return False
        return True

    def _answered(self, call: _SettleCall, results: Sequence[Settled] | None, asked_at: float = -1.0) -> bool:
        """Note the results of a call that was sent at ``asked_at``. Returns False if a part must be repeated."""
        queue, batch = call.queue, call.batch
        self._call = None
        self._numbers.end()
        queue.source.forget_all(batch)
        self._gathered -= len(batch)
        is_done = True
        if results is None:
            self._reporter.counts.acked += len(batch)
            queue.source.are_settled(batch)
        else:
            queue.source.are_settled([held for held, one in zip(batch, results, strict=True) if one.result in ENDED])
            for held, settled in zip(batch, results, strict=True):
                if _is_denied(settled):  # our user may not: that is no fault of the job
                    self._reporter.failed(queue.part, NoPermissionError(settled.detail))
                elif not (settled.result is Result.REJECTED and 0 <= asked_at <= held.again_at):
                    self._count(held, settled)
                    continue
                is_done = False
                queue.source.hold(held)
                queue.waiting.append(held)
                self._gathered += 1
        self._settled.notify()
        self._are_answered()
        return is_done

    def _count(self, held: Held, settled: Settled) -> None:
        verdict = held.verdict
        if settled.result is Result.DONE:
            if verdict.outcome is Outcome.ACK:
                self._reporter.counts.acked += 1
            elif verdict.outcome is Outcome.HAND_BACK:
                self._reporter.counts.handed_back += 1
            else:
                self._reporter.counts.nacked += 1
        elif settled.result is Result.REJECTED:
            if held.interruption is not Interruption.LOST:  # else that is told already
                self._reporter.refused(held, verdict.outcome, held.run_ms)
        elif settled.result is Result.LOST:
            self._reporter.lost(held, verdict)
        elif settled.result is Result.DEAD:
            limit = self._membership.agreement.max_deliveries
            self._reporter.dead_lettered(held, verdict, settled.detail, limit)
        else:
            held.keep()
            self._reporter.held(held, verdict, settled.detail)


def _cut(batch: list[Held]) -> None:
    """Remove the last verdicts if the first ones have enough bytes to copy."""
    copied = 0
    for at, held in enumerate(batch, start=1):
        if held.verdict.outcome is not Outcome.ACK:
            copied += held.payload_bytes + len(held.verdict.traceback)
            if copied >= MAX_COPIED_BYTES:
                del batch[at:]
                break


def _is_denied(settled: Settled) -> bool:
    return settled.result is Result.HELD and meaning_of_text(settled.detail) is Meaning.DENIED


def _entry_id(held: Held) -> bytes:
    return held.raw_entry_id
