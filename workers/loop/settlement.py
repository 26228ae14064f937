"""Writes verdicts to Redis, many in one call. New verdicts gather while a call is under way.

A call without an answer is sent again with its number until it is answered, and no other call before that (rule W2).
Runners wait meanwhile if too many verdicts have gathered.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import anyio
from anyio.lowlevel import checkpoint
from redis.exceptions import NoPermissionError, RedisError

from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.in_flight import Delivery, Interruption, Source
from workers.loop.notifier import Notifier
from workers.protocol.calls.moves import Outcome, Settled, SettleEntry, SettleResult, Verdict
from workers.protocol.connection import drop_idle
from workers.protocol.meaning import Meaning, meaning_of, was_not_run
from workers.protocol.messages import entry_order
from workers.runtime.pauses import pause_s

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
    limit: int
    """Maximum batch. It is smaller while the server rejects calls."""
    waiting: list[Delivery] = field(default_factory=list)


class Settlements(WorkerPart):
    """Gathers verdicts, and settles them with one call at a time."""

    def __init__(self, context: WorkerContext, are_answered: Callable[[], None]) -> None:
        """``are_answered`` is called after each answer."""
        super().__init__(context)
        self._are_answered = are_answered
        self._calls = context.calls
        self._facts = context.facts()
        self._capacity = GATHER_BATCHES * SETTLE_BATCH
        self._acks, self._others = (
            {
                source.key: _VerdictQueue(source, are_acks, f"settling {source.key}", SETTLE_BATCH)
                for source in self._membership.both
            }
            for are_acks in (True, False)
        )
        self._queues = (*self._acks.values(), *self._others.values())
        self._unanswered: tuple[_VerdictQueue, Sequence[Delivery]] | None = None
        """The call without an answer, which stays the same until it is answered."""
        self._gathered = 0
        self._failures = 0
        self._arrived = Notifier()
        self._filled = Notifier()
        self._settled = Notifier()

    # ---- for runners

    def add(self, job: Delivery, verdict: Verdict, began: float, now: float) -> bool:
        """Add the verdict on a delivery that had its slot from ``began`` to ``now``. Returns at once.

        If the result is true, call `wait_for_room` before the next job.
        """
        job.end(verdict, began, now)
        queues = self._acks if verdict.outcome is Outcome.ACK else self._others
        queues[job.source.key].waiting.append(job)
        self._gathered = gathered = self._gathered + 1
        if gathered == 1:  # the settler waits only for the first one
            self._arrived.notify()
        if gathered < SETTLE_BATCH:
            return False
        if gathered == SETTLE_BATCH:
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
        if self._gathered >= SETTLE_BATCH:
            return
        timer = asyncio.get_running_loop().call_later(GATHER_S, self._filled.notify)
        try:
            await self._filled.wait()
        finally:
            timer.cancel()

    async def _settle_what_waits(self) -> None:
        """Make one call for each queue with verdicts, until one fails."""
        for queue in self._queues:
            if self._unanswered is None and not queue.waiting:
                continue
            if not await self._settle_some(queue):
                self._failures += 1
                await anyio.sleep(pause_s(self._failures))
                return
            self._failures = 0

    async def _settle_some(self, queue: _VerdictQueue) -> bool:
        """Make one call: the one without an answer, or the next one of this queue. Returns False if it failed."""
        if self._unanswered is None:
            await self._calls.settling.acquire()
            self._unanswered = queue, self._next_batch(queue)
        queue, batch = self._unanswered
        began = perf_counter()
        try:
            results = await self._send(queue, batch)
        except (RedisError, OSError) as error:
            return await self._failed(queue, batch, error)
        is_done = self._answered(queue, batch, results)
        self._telemetry.settled(batch, results, perf_counter() - began)
        queue.limit = SETTLE_BATCH
        return is_done

    def _next_batch(self, queue: _VerdictQueue) -> list[Delivery]:
        """Take the first verdicts that fit into one call, by number and by bytes to copy."""
        batch = queue.waiting[: queue.limit]
        if not queue.are_acks:
            _cut(batch)
        del queue.waiting[: len(batch)]
        return batch if queue.are_acks else sorted(batch, key=_entry_order)  # an ack has no use for neighbours

    async def _send(self, queue: _VerdictQueue, batch: Sequence[Delivery]) -> Sequence[Settled] | None:
        """Return the results. None means that all are acknowledged."""
        calls, journals = self._calls, self._calls.moves.journal_limit > 0
        if queue.are_acks:
            facts = self._facts.of_acks(batch) if journals else ()
            done = await self._ack(queue.source, [job.raw_entry_id for job in batch], facts)
            return (
                None if done is None else [Settled(SettleResult.DONE if one else SettleResult.REJECTED) for one in done]
            )
        return await calls.moves.settle(
            calls.connection,
            queue.source.key,
            [
                SettleEntry(
                    job.raw_entry_id,
                    job.times_delivered,
                    job.verdict,
                    self._facts.of_settlement(job) if journals else (),
                )
                for job in batch
            ],
            number=calls.answered + 1,
        )

    async def _ack(
        self, source: Source, ids: Sequence[bytes], facts: Sequence[str | bytes | int] = ()
    ) -> Sequence[bool] | None:
        calls = self._calls
        return await calls.moves.ack(
            calls.connection,
            source.key,
            ids,
            number=calls.answered + 1,
            deletes=self._settings.delete_settled,
            fields=facts,
        )

    # ---- results

    async def _failed(self, queue: _VerdictQueue, batch: Sequence[Delivery], error: Exception) -> bool:
        meaning = meaning_of(error)
        if meaning is Meaning.NO_GROUP or "NOSETTINGS" in str(error):  # the call had no effect
            if self._membership.is_gone(queue.source, error):
                return self._answered(queue, batch, [Settled(SettleResult.REJECTED)] * len(batch))
            self._membership.join_again()
        elif meaning is Meaning.UNCLEAR and len(batch) == 1 and await self._would_settle_others(queue.source):
            # The others must not wait for it.
            return self._answered(queue, batch, [Settled(SettleResult.HELD, str(error))])
        elif meaning in (Meaning.UNCLEAR, Meaning.REFUSED) or was_not_run(error):
            if meaning in (Meaning.UNCLEAR, Meaning.REFUSED):
                queue.limit = max(1, len(batch) // 2)
            queue.waiting[:0] = batch
            self._end_call()
        self._reporter.failed(queue.part, error)
        await drop_idle(self._commands, error)
        return False

    def _end_call(self) -> None:
        """Note that the call was answered, or certainly had no effect."""
        self._unanswered = None
        self._calls.answered += 1
        self._calls.settling.release()

    async def _would_settle_others(self, source: Source) -> bool:
        """Return whether the server takes calls of other content, by an ack of an absent entry."""
        self._calls.answered += 1
        try:
            await self._ack(source, [_ABSENT])
        except (RedisError, OSError):
            self._calls.answered += 1  # no other call may have its number
            return False
        return True

    def _answered(self, queue: _VerdictQueue, batch: Sequence[Delivery], results: Sequence[Settled] | None) -> bool:
        """Note the results of a call. Returns False if a part must be repeated."""
        self._end_call()
        queue.source.forget(batch)
        self._gathered -= len(batch)
        denied = list[Delivery]()
        if results is None:
            self._reporter.counts.acked += len(batch)
        else:
            for job, settled in zip(batch, results, strict=True):
                if _is_denied(settled):  # our user lacks a right: that is no fault of the job
                    self._reporter.failed(queue.part, NoPermissionError(settled.detail))
                    denied.append(job)
                else:
                    self._count(job, settled)
            queue.source.hold(denied)
            queue.waiting += denied
            self._gathered += len(denied)
        if not denied:
            self._reporter.works(queue.part)
        self._settled.notify()
        self._are_answered()
        return not denied

    def _count(self, job: Delivery, settled: Settled) -> None:
        verdict, counts = job.verdict, self._reporter.counts
        match settled.result:
            case SettleResult.DONE if verdict.outcome is Outcome.ACK:
                counts.acked += 1
            case SettleResult.DONE if verdict.outcome is Outcome.HAND_BACK:
                counts.handed_back += 1
            case SettleResult.DONE:
                counts.nacked += 1
            case SettleResult.REJECTED:
                if job.interruption is not Interruption.LOST:  # else that is logged already
                    self._reporter.refused(job, verdict.outcome, job.run_ms)
            case SettleResult.LOST:
                self._reporter.lost(job, verdict)
            case SettleResult.DEAD:
                limit = self._membership.group_settings.max_deliveries
                self._reporter.dead_lettered(job, verdict, settled.detail, limit)
            case SettleResult.HELD:
                job.source.kept.add(job.raw_entry_id)
                self._reporter.held(job, verdict, settled.detail)


def _cut(batch: list[Delivery]) -> None:
    """Remove the last verdicts if the first ones have enough bytes to copy."""
    copied = 0
    for at, job in enumerate(batch, start=1):
        copied += job.payload_bytes + len(job.verdict.traceback)
        if copied >= MAX_COPIED_BYTES:
            del batch[at:]
            break


def _is_denied(settled: Settled) -> bool:
    return settled.result is SettleResult.HELD and meaning_of(settled.detail) is Meaning.DENIED


def _entry_order(job: Delivery) -> tuple[object, ...]:
    return entry_order(job.raw_entry_id)
