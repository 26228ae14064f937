"""Watches one source of a group, which is the stream or the retry stream. Its timers cause the recovery calls.

A timer is a hint, and the script decides.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.recovery.context import ReplicaContext
from reaper.recovery.notes import GroupNotes
from reaper.recovery.rate import RateLimit
from reaper.recovery.scanner import Scanner
from reaper.recovery.timers import Timers
from reaper.recovery.verdict import LOOKS as FOLLOWED
from reaper.recovery.verdict import Verdict
from reaper.recovery.writer import GroupWriter
from reaper.tasks import Chores
from workers.protocol.calls.recovery import ENDED, Outcome, Recovered
from workers.protocol.calls.refusals import Refusal
from workers.protocol.messages import CLAIM_READY_MS, Pending, Redelivery, entry_order
from workers.runtime.clock import monotonic_ms
from workers.runtime.settings import to_ms

RETRY_MS = 1_000
"""When a delivery is tried again whose recovery call did not come back."""
SCAN_PAGE = 500
"""Pending entries that a scan asks for at a time."""
RECOVER_BATCH = 96
"""Deliveries in one call. More recover a mass a little faster, and let others wait longer for the server."""


class SourceWatch:
    """Timers of one source, kept by its scanner and fired here."""

    __slots__ = (
        "_chores", "_context", "_in_place", "_is_stopped", "_notes", "_rate", "_refused", "_source", "_verdict",
        "_visibility_ms", "_wake_moves", "_writer", "scanner", "timers",
    )  # fmt: skip

    def __init__(
        self,
        context: ReplicaContext,
        writer: GroupWriter,
        source: str,
        *,
        notes: GroupNotes,
        rate: RateLimit,
        chores: Chores,
        refused: Callable[[Refusal], None],
        wake_moves: Callable[[], None],
        verdict: Verdict | None = None,
    ) -> None:
        """``wake_moves`` is called if a job may be quarantined. An observer has a verdict."""
        self._context = context
        self._chores = chores
        self._writer = writer
        self._source = source
        self._notes = notes
        self._rate = rate
        self._refused = refused
        self._wake_moves = wake_moves
        self._verdict = verdict
        self._visibility_ms = to_ms(writer.group.visibility_timeout)
        self._in_place = writer.group.redelivery is Redelivery.IN_PLACE
        self._is_stopped = False
        self.timers = Timers()
        self.scanner = Scanner(
            client=context.reads,
            source=source,
            group=writer.group.group,
            visibility_ms=self._visibility_ms,
            page=SCAN_PAGE,
            timers=self.timers,
            armed=self._armed,
            in_place=self._in_place,
            forgotten=self._gone,
        )

    def stop(self) -> None:
        """Stop firing (the stream is gone)."""
        self._is_stopped = True

    def _gone(self, entry_ids: Sequence[bytes], now_ms: int) -> None:
        """Take entries that are not pending any more, and not by us."""
        if self._verdict:
            self._verdict.gone(entry_ids, now_ms)
        for consumer, deliveries in Counter(self.scanner.false_recoveries.gone(entry_ids)).items():
            self._notes.false_recovery(consumer, deliveries)

    # ---- firing

    def _armed(self) -> None:
        """Fire when the first timer is due."""
        due = self.timers.next_due()
        if due is not None:
            self._chores.wake(self._fire, (due - monotonic_ms()) / 1000)

    async def _fire(self) -> float | None:
        """Recover a batch that is due. Return the seconds until the next one."""
        due = None if self._is_stopped else self.timers.next_due()
        if due is None:
            return None
        now = monotonic_ms()
        ready_at = max(due, self._rate.ready_at_ms(now))
        return (ready_at - now) / 1000 if ready_at > now else await self._fire_batch(now)

    async def _help(self) -> float | None:
        """Make a second call. While the server runs one, the replica reads the answer to the other."""
        pause_s = await self._fire()
        return None if pause_s else pause_s

    async def _fire_batch(self, now: int) -> float:
        due = self.timers.pop_due(now, self._rate.most(RECOVER_BATCH, now))
        # Armed again before the call is sent, so a lost reply loses no timer.
        self.timers.arm_popped(due, now + RETRY_MS)
        if len(due) == RECOVER_BATCH:
            self._chores.wake(self._help)
        try:
            if self._verdict:
                await self._observe(due, self._verdict)
            else:
                await self._recover(due)
        except (RedisError, OSError) as error:
            self.scanner.false_recoveries.forget(due)
            self._notes.failed("recover", error)
            self._wake_moves()  # some may have been quarantined all the same
            await anyio.sleep(RETRY_MS / 1000)
        return 0

    async def _recover(self, due: Collection[bytes]) -> None:
        self._rate.spend(len(due))  # before the call: another one may be under way
        result = await self._writer.recover(self._source, sorted(due, key=entry_order))
        if isinstance(result, Refusal):
            self._rate.spend(-len(due))
            self._refused(result)
            if result.wait:  # these are tried when the wait is over, and other timers when they are due
                for entry_id in due:
                    self.timers.arm(entry_id, monotonic_ms() + result.wait.left_ms)
            else:
                await anyio.sleep(RETRY_MS / 1000)
            return
        self._notes.call_done()
        now = monotonic_ms()
        for row in result:
            self._apply(row, now)
            if row.outcome is Outcome.GONE:
                self.scanner.gone(row.entry_id)
                self._gone([row.entry_id], now)
        self._watch_third_parties(result)
        self._notes.batch(result)
        self._rate.spend(-sum(row.outcome not in ENDED for row in result))

    def _watch_third_parties(self, found: Sequence[Recovered]) -> None:
        """Watch the other deliveries of consumers that lost one. In place, they change hands."""
        if self._in_place:
            return
        ended = [row for row in found if row.outcome in ENDED]
        self.scanner.false_recoveries.forget(row.entry_id for row in ended)
        for consumer in {row.consumer for row in ended}:
            self.scanner.recovered_from(consumer)

    def _apply(self, row: Recovered, now: int) -> None:
        """Set the timer to the result of the script."""
        if row.outcome is Outcome.NOT_DUE:
            self.timers.arm(row.entry_id, now + int(row.detail))
            return
        if row.outcome is Outcome.PUT_OFF:
            self.timers.arm(row.entry_id, now)
            return
        if row.outcome is Outcome.REDELIVERED and row.detail == row.entry_id:
            # Still pending, with its old ID, which no tail scan reads again. If a worker takes it now, it is due then.
            self.timers.arm(row.entry_id, now + self._visibility_ms)
        else:
            self.timers.disarm(row.entry_id)
        self.scanner.recovered((row.entry_id,))
        if row.outcome in (Outcome.QUARANTINED, Outcome.DEAD_LETTERED):
            self._wake_moves()

    async def _observe(self, due: Collection[bytes], verdict: Verdict) -> None:
        """Report the deliveries that would be recovered, without a write."""
        now = monotonic_ms()
        found = await overdue_now(
            self._context.client, self._source, self._writer.group.group, sorted(due, key=entry_order)
        )
        for entry_id in due:
            row = found.get(entry_id)
            if row is None:
                self.timers.disarm(entry_id)
                verdict.gone([entry_id], now)
            elif self._in_place and not 0 <= row.idle_ms < CLAIM_READY_MS:
                self.timers.arm(entry_id, now + self._visibility_ms)
            else:
                is_overdue = not 0 <= row.idle_ms < self._visibility_ms
                wait_ms = max(row.idle_ms // FOLLOWED, RETRY_MS) if is_overdue else self._visibility_ms - row.idle_ms
                self.timers.arm(entry_id, now + wait_ms)
                if verdict.found(entry_id, row.consumer, row.idle_ms, now, is_overdue=is_overdue):
                    self._notes.would_recover(row)
        self._notes.verdict(verdict)


async def overdue_now(client: Redis, source: str, group: str, entry_ids: Sequence[bytes]) -> dict[bytes, Pending]:
    """Return the rows of ``entry_ids`` that are still pending, for ``--observe``. Raises what redis-py raises."""
    pipeline = client.pipeline(transaction=False)
    for entry_id in entry_ids:
        pipeline.execute_command("XPENDING", source, group, entry_id, entry_id, 1)
    replies = await pipeline.execute()
    return {rows[0][0]: Pending(*rows[0]) for rows in replies if rows}
