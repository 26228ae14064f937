"""Writes verdicts to Redis, many in one call. New verdicts gather while a call is under way.

A call without an answer is sent again with its number until it is answered, and no other call before that (rule W2).
Runners wait meanwhile if too many verdicts have gathered.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter

import anyio
from anyio.lowlevel import checkpoint
from redis.exceptions import NoPermissionError, RedisError

from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.facts import DeliveryFacts
from workers.loop.in_flight import Delivery, Interruption, Source
from workers.loop.notifier import Notifier
from workers.protocol.calls import in_calls
from workers.protocol.calls.moves import Outcome, Settled, SettleEntry, SettleResult, Verdict
from workers.protocol.connection import drop_idle
from workers.protocol.meaning import Meaning, meaning_of, was_not_run
from workers.protocol.messages import entry_order
from workers.runtime.pauses import pause_s

ACK = Outcome.ACK  # in the class, it costs ten times the comparison
SETTLE_BATCH = 200
"""The maximum number of verdicts in a call. Two batches of a hundred jobs fit."""
GATHER_BATCHES = 4
"""Full batches that can gather before runners wait, so that memory is bounded in an outage."""
GATHER_S = 0.001
"""Time that a verdict waits for others in the same call. Its slot is free meanwhile."""
MAX_COPIED_BYTES = 1_048_576
"""The maximum payload that a call copies, plus one job, so that no call blocks the server for long."""


class Settlements(WorkerPart):
    """Gathers verdicts, and settles them with one call at a time."""

    def __init__(self, context: WorkerContext, are_answered: Callable[[], None]) -> None:
        """``are_answered`` is called after each answer."""
        super().__init__(context)
        self._are_answered = are_answered
        self._kept, self._moves, self._turn = context.kept, context.moves, context.turn
        self._facts = DeliveryFacts(self._settings, self._membership.now_ms)
        self._capacity = GATHER_BATCHES * SETTLE_BATCH
        self._acks, self._others = ({one.key: list[Delivery]() for one in self._membership.both} for _ in range(2))
        """Deliveries that wait, by the key of their stream, with acks and with other verdicts."""
        self._unanswered: Sequence[Delivery] = ()
        """The call without an answer, which stays the same until it is answered."""
        self._gathered = 0
        """Deliveries that wait, or are in the call without an answer."""
        self._one_by_one = 0
        """So many calls settle one delivery each, because the server has rejected that many together."""
        self._failures = 0
        self._arrived = Notifier()
        self._filled = Notifier()
        self._settled = Notifier()

    # ---- for runners

    def add(self, job: Delivery, verdict: Verdict, began: float, now: float) -> bool:
        """Add the verdict on a delivery that had its slot from ``began`` to ``now``. Returns at once.

        If the result is true, call `wait_for_room` before the next job.
        """
        job.end(verdict, int((now - began) * 1000 + 0.5))
        waiting = self._acks if verdict.outcome is ACK else self._others
        waiting[job.source.key].append(job)
        self._gathered = gathered = self._gathered + 1
        return (gathered == 1 or gathered >= SETTLE_BATCH) and self._are_enough(gathered - 1)

    def add_batch(self, jobs: Sequence[Delivery], verdicts: Sequence[Verdict | None], began: float, now: float) -> bool:
        """Add the verdicts on a batch in the same way. A delivery that is not ours any more has None."""
        acks, others, run_ms = self._acks, self._others, int((now - began) * 1000 + 0.5)
        for job, verdict in zip(jobs, verdicts, strict=True):
            if verdict is not None:
                job.end(verdict, run_ms)
                (acks if verdict.outcome is ACK else others)[job.source.key].append(job)
        before = self._gathered
        self._gathered += len(verdicts) - verdicts.count(None)
        return self._are_enough(before)

    def _are_enough(self, before: int) -> bool:
        """Wake the settler if it waits. Return whether runners wait for room. Fewer had gathered ``before``."""
        if before == 0:  # it waits only for the first one
            self._arrived.notify()
        if before < SETTLE_BATCH <= self._gathered:
            self._filled.notify()
        return self._gathered >= self._capacity

    async def wait_for_room(self) -> None:
        """Let other tasks run, and wait until there is room for more verdicts."""
        await checkpoint()
        while self._gathered >= self._capacity:
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
        """Make one call for each kind of verdict and stream, with a pause after each that fails."""
        for waiting in (*self._acks.values(), *self._others.values()):
            if not self._unanswered and not waiting:
                continue
            if await self._settle_some(waiting):
                self._failures = 0
                continue
            self._failures += 1
            await anyio.sleep(pause_s(self._failures))

    async def _settle_some(self, waiting: list[Delivery]) -> bool:
        """Make one call: the one without an answer, or the next one. Return False if it failed."""
        if not self._unanswered:
            await self._turn.lock.acquire()
            self._unanswered = self._next_batch(waiting)
        batch = self._unanswered
        began = perf_counter()
        try:
            results = await self._send(batch)
        except (RedisError, OSError) as error:
            return await self._failed(batch, error)
        is_done = self._answered(batch, results)
        self._telemetry.settled(batch, results, perf_counter() - began)
        return is_done

    def _next_batch(self, waiting: list[Delivery]) -> list[Delivery]:
        """Take the first verdicts that fit into one call, by number and by bytes to copy."""
        most = 1 if self._one_by_one else SETTLE_BATCH
        self._one_by_one = max(0, self._one_by_one - 1)
        if waiting[0].verdict.outcome is Outcome.ACK:  # an ack has no use for neighbours
            batch = waiting[:most]
            del waiting[:most]
            return batch
        batch = next(in_calls(waiting, _bytes_to_copy, most=most, most_bytes=MAX_COPIED_BYTES))
        del waiting[: len(batch)]
        return sorted(batch, key=lambda job: entry_order(job.raw_entry_id))

    async def _send(self, batch: Sequence[Delivery]) -> Sequence[Settled] | None:
        """Return the results. None means that all are acknowledged."""
        key, number, journals = batch[0].source.key, self._turn.answered + 1, self._moves.journal_limit > 0
        if batch[0].verdict.outcome is not Outcome.ACK:
            entries = [
                SettleEntry(
                    job.raw_entry_id,
                    job.times_delivered,
                    job.verdict,
                    self._facts.of_settlement(job) if journals else (),
                )
                for job in batch
            ]
            return await self._moves.settle(self._kept, key, entries, number=number)
        done = await self._moves.ack(
            self._kept,
            key,
            [job.raw_entry_id for job in batch],
            number=number,
            deletes=self._settings.delete_settled,
            fields=self._facts.of_acks(batch) if journals else (),
        )
        return None if done is None else [Settled(SettleResult.DONE if one else SettleResult.REJECTED) for one in done]

    # ---- results

    async def _failed(self, batch: Sequence[Delivery], error: Exception) -> bool:
        source, meaning = batch[0].source, meaning_of(error)
        if meaning is Meaning.NO_GROUP or "NOSETTINGS" in str(error):  # the call had no effect
            if self._membership.is_gone(source, error):
                return self._answered(batch, [Settled(SettleResult.REJECTED)] * len(batch))
            self._membership.join_again()
        elif meaning in (Meaning.UNCLEAR, Meaning.OTHER_CODE) or was_not_run(error):
            waiting = self._waiting_beside(batch[0])
            if meaning in (Meaning.UNCLEAR, Meaning.OTHER_CODE) and len(batch) > 1:
                self._one_by_one = len(batch)  # one of them may be the cause
                waiting[:0] = batch
            else:
                waiting += batch  # behind the others, so that these are settled first
            self._end_call()
        self._reporter.failed(_part(source), error)
        await drop_idle(self._commands, error)
        return False

    def _waiting_beside(self, job: Delivery) -> list[Delivery]:
        """Return the deliveries that wait for the same kind of call."""
        return (self._acks if job.verdict.outcome is Outcome.ACK else self._others)[job.source.key]

    def _end_call(self) -> None:
        """Note that the call was answered, or certainly had no effect."""
        self._unanswered = ()
        self._turn.answered += 1
        self._turn.lock.release()

    def _answered(self, batch: Sequence[Delivery], results: Sequence[Settled] | None) -> bool:
        """Note the results of a call. Returns False if a part must be repeated."""
        self._end_call()
        source = batch[0].source
        denied = list[Delivery]()
        if results is None:
            self._reporter.counts.acked += len(batch)
        else:
            for job, settled in zip(batch, results, strict=True):
                if settled.result is SettleResult.HELD and meaning_of(settled.detail) is Meaning.DENIED:
                    self._reporter.failed(_part(source), NoPermissionError(settled.detail))
                    denied.append(job)
                else:
                    self._count(job, settled)
        source.forget(batch)
        source.hold(denied)
        self._waiting_beside(batch[0]).extend(denied)
        self._gathered -= len(batch) - len(denied)
        if not denied:
            self._reporter.works(_part(source))
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
                    self._reporter.rejected(job, verdict.outcome, job.run_ms)
            case SettleResult.LOST:
                self._reporter.lost(job, verdict)
            case SettleResult.DEAD:
                self._reporter.dead_lettered(
                    job.id,
                    entry=job.entry_id,
                    delivery=job.deliveries,
                    limit=self._membership.group_settings.max_deliveries,
                    consumer=self._consumer,
                    reason=verdict.reason,
                    error=verdict.error,
                    dead_letter=settled.detail,
                )
            case SettleResult.HELD:
                job.source.kept.add(job.raw_entry_id)
                self._reporter.held(job, verdict, settled.detail)


def _part(source: Source) -> str:
    """Return the name of this part in errors."""
    return f"settling {source.key}"


def _bytes_to_copy(job: Delivery) -> int:
    return job.payload_bytes + len(job.verdict.traceback)
