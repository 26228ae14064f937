"""Watches one source of a group, which is the stream or the retry stream. Its timers cause the recovery calls."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import anyio
from redis.exceptions import RedisError

from reaper.recovery.notes import GroupNotes
from reaper.recovery.scanner import Scanner
from reaper.recovery.timers import Timers
from reaper.recovery.writer import GroupWriter
from reaper.tasks import Chores
from workers.protocol.calls.declined import Declined
from workers.protocol.calls.group_moves import ENDED, Outcome, Recovered
from workers.protocol.messages import Redelivery, entry_order
from workers.runtime.clock import monotonic_ms
from workers.runtime.settings import to_ms

RETRY_MS = 1_000
"""Pause before a delivery is tried again after its recovery call failed."""
RECOVER_BATCH = 96
"""Deliveries in one call. A larger batch recovers a mass a little faster, but blocks the server for longer."""


class SourceWatch:
    """Timers of one source, kept by its scanner and fired here."""

    def __init__(
        self,
        writer: GroupWriter,
        source: str,
        *,
        notes: GroupNotes,
        chores: Chores,
        declined: Callable[[Declined], None],
        wake_moves: Callable[[], None],
    ) -> None:
        """``wake_moves`` is called if a job may be quarantined."""
        self._chores = chores
        self._writer = writer
        self._source = source
        self._notes = notes
        self._declined = declined
        self._wake_moves = wake_moves
        self._visibility_ms = to_ms(writer.group.visibility_timeout)
        self._in_place = writer.group.redelivery is Redelivery.IN_PLACE
        self._is_stopped = False
        self.timers = Timers()
        self.scanner = Scanner(
            client=writer.reads,
            source=source,
            group=writer.group.group,
            visibility_ms=self._visibility_ms,
            timers=self.timers,
            armed=self._armed,
            in_place=self._in_place,
            forgotten=self._gone,
        )

    def stop(self) -> None:
        """Stop firing, because the stream does not exist any more."""
        self._is_stopped = True

    def _gone(self, entry_ids: Sequence[bytes]) -> None:
        """Note entries that are not pending any more, and were not recovered."""
        self._writer.gone(entry_ids)
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
        return (due - now) / 1000 if due > now else await self._fire_batch(now)

    async def _help(self) -> float | None:
        """Make a second call. While the server runs it, the replica reads the answer to the first one."""
        pause_s = await self._fire()
        return None if pause_s else pause_s

    async def _fire_batch(self, now: int) -> float:
        due = self.timers.pop_due(now, RECOVER_BATCH)
        # Armed again before the call is sent, so a lost reply loses no timer.
        for entry_id in due:
            self.timers.arm(entry_id, now + RETRY_MS)
        if len(due) == RECOVER_BATCH:
            self._chores.wake(self._help)
        try:
            await self._recover(due)
        except (RedisError, OSError) as error:
            self.scanner.false_recoveries.forget(due)
            self._notes.failed("recover", error)
            self._wake_moves()  # the script may have quarantined jobs before the reply was lost
            await anyio.sleep(RETRY_MS / 1000)
        return 0

    async def _recover(self, due: Collection[bytes]) -> None:
        result = await self._writer.recover(self._source, sorted(due, key=entry_order))
        if isinstance(result, Declined):
            self._declined(result)
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
                self._gone([row.entry_id])
        self._watch_third_parties(result)
        self._notes.batch(result)

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
