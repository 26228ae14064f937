"""Watches one source of a group (the stream, or the group's retry stream): its timers, and the task that fires them.

A timer is a hint; the script decides.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from time import time_ns

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.recovery.context import ReplicaContext
from reaper.recovery.notes import GroupNotes
from reaper.recovery.rate import RateLimit
from reaper.recovery.scanner import Scanner
from reaper.recovery.telemetry import GroupTelemetry
from reaper.recovery.timers import Timers
from reaper.recovery.verdict import LOOKS as FOLLOWED
from reaper.recovery.verdict import Verdict
from reaper.recovery.writer import GroupWriter
from workers.protocol.calls.recovery import ENDED, Outcome, Recovered
from workers.protocol.calls.refusals import Refusal
from workers.protocol.messages import CLAIM_READY_MS, Pending, Redelivery, in_order
from workers.runtime.clock import monotonic_ms
from workers.runtime.settings import to_ms

RETRY_MS = 1_000
"""When a delivery is tried again whose recovery call did not come back."""
LATEST_WAKE_S = 60.0
"""Insurance: the timer task looks again at least this often, should a wake-up ever be missed."""
SCAN_PAGE = 500
"""Pending entries that a scan asks for at a time."""
RECOVER_BATCH = 96
"""Deliveries in one call. More recover a mass a little faster, and let others wait longer for the server."""
CALLS_UNDER_WAY = 2
"""Recovery calls of one source at a time: while the server runs one, the answer to the other is worked through."""


@dataclass(slots=True, eq=False)
class SourceWatch:
    """Timers of one source, kept by its scanner and fired here."""

    context: ReplicaContext
    writer: GroupWriter
    source: str
    notes: GroupNotes
    telemetry: GroupTelemetry
    rate: RateLimit
    refused: Callable[[Refusal], None]
    wake_quarantine: Callable[[], None]
    verdict: Verdict | None = None
    """Where we observe."""
    is_needed: Callable[[], None] = lambda: None
    """Called when a timer was armed: `run` must be running from now on."""
    timers: Timers = field(default_factory=Timers)
    scanner: Scanner = field(init=False)
    _visibility_ms: int = field(init=False)
    _in_place: bool = field(init=False)
    _armed: anyio.Event = field(default_factory=anyio.Event)
    _sleeps_until: int | None = None
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _room: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(CALLS_UNDER_WAY))

    def __post_init__(self) -> None:
        self._visibility_ms = to_ms(self.writer.group.visibility_timeout)
        self._in_place = self.writer.group.redelivery is Redelivery.IN_PLACE
        self.scanner = Scanner(
            client=self.context.client,
            source=self.source,
            group=self.writer.group.group,
            visibility_ms=self._visibility_ms,
            page=SCAN_PAGE,
            timers=self.timers,
            armed=self._wake_if_earlier,
            in_place=self._in_place,
            forgotten=self._gone,
        )

    def _gone(self, entry_ids: Sequence[bytes], now_ms: int) -> None:
        """Take entries that are not pending any more, and not by us."""
        if self.verdict:
            self.verdict.gone(entry_ids, now_ms)
        for consumer, deliveries in Counter(self.scanner.false_recoveries.gone(entry_ids)).items():
            self.notes.false_recovery(consumer, deliveries)
            self.telemetry.false_recovery(deliveries)

    async def run(self) -> None:
        """Fire timers until cancelled or stopped."""
        with self._scope:
            async with anyio.create_task_group() as calls:
                while True:
                    await self._sleep_until_due()
                    await self._room.acquire()
                    calls.start_soon(self._fire)

    def stop(self) -> None:
        """Stop firing (the stream is gone)."""
        self._scope.cancel()

    # ---- sleeping

    def _wake_if_earlier(self) -> None:
        due = self.timers.next_due()
        if due is not None:
            self.is_needed()
            if self._sleeps_until is None or due < self._sleeps_until:
                self._armed.set()

    async def _sleep_until_due(self) -> None:
        while True:
            now, ready_at = monotonic_ms(), self._ready_at()
            if ready_at is not None and ready_at <= now:
                return
            self._sleeps_until = ready_at
            with anyio.move_on_after(
                LATEST_WAKE_S if ready_at is None else min(LATEST_WAKE_S, (ready_at - now) / 1000)
            ):
                await self._armed.wait()
            self._armed = anyio.Event()

    def _is_time(self) -> bool:
        ready_at = self._ready_at()
        return ready_at is not None and ready_at <= monotonic_ms()

    def _ready_at(self) -> int | None:
        """Return the instant of the next recovery: a timer is due, and the rate allows it."""
        due = self.timers.next_due()
        if due is None:
            return None
        return max(due, self.rate.ready_at_ms(monotonic_ms()))

    # ---- firing

    async def _fire(self) -> None:
        try:
            # Asked anew: there may have been no room until now, and the answer to a call that had it begun a wait.
            while self._is_time() and await self._fire_batch():
                pass  # a mass is worked off in this task: one for each call costs as much as ten of its entries
        finally:
            self._room.release()

    async def _fire_batch(self) -> bool:
        """Make one call; return whether anything was due."""
        now = monotonic_ms()
        due = self.timers.pop_due(now, self.rate.most(RECOVER_BATCH, now))
        if not due:
            return False
        # Armed again before anything is sent: a lost reply loses no timer.
        self.timers.arm_popped(due, now + RETRY_MS)
        try:
            if self.context.settings.observe:
                await self._observe(due)
            else:
                await self._recover(due)
        except (RedisError, OSError) as error:
            self.scanner.false_recoveries.forget(due)
            self.notes.failed("recover", error)
            self.wake_quarantine()  # some may have been quarantined all the same
            await anyio.sleep(RETRY_MS / 1000)
        return True

    async def _recover(self, due: Collection[bytes]) -> None:
        self.rate.spend(len(due))  # before the call: another one may be under way
        began_ns = time_ns()
        result = await self.writer.recover(self.source, in_order(due, bytes))
        if isinstance(result, Refusal):
            self.rate.spend(-len(due))
            self.refused(result)
            if result.wait:  # asked again only when it is over; other timers that fall due meanwhile are asked about
                for entry_id in due:
                    self.timers.arm(entry_id, monotonic_ms() + result.wait.left_ms)
            else:
                await anyio.sleep(RETRY_MS / 1000)
            return
        self.notes.call_done()
        now = monotonic_ms()
        for row in result:
            self._apply(row, now)
            if row.outcome is Outcome.GONE:
                self.scanner.gone(row.entry_id)
                self._gone([row.entry_id], now)
        self._watch_third_parties(result)
        self.notes.batch(result)
        self.telemetry.recovered(result, began_ns)
        self.rate.spend(-sum(row.outcome not in ENDED for row in result))

    def _watch_third_parties(self, found: Sequence[Recovered]) -> None:
        """Watch what else those consumers hold from which something was recovered. In place, it changes hands."""
        if self._in_place:
            return
        self.scanner.false_recoveries.forget(row.entry_id for row in found if row.outcome in ENDED)
        for consumer in {row.consumer for row in found if row.outcome in ENDED}:
            self.scanner.recovered_from(consumer)

    def _apply(self, row: Recovered, now: int) -> None:
        """Bring the timer in line with what the script found."""
        if row.outcome is Outcome.NOT_DUE:
            self.timers.arm(row.entry_id, now + int(row.detail))
            return
        if row.outcome is Outcome.PUT_OFF:
            self.timers.arm(row.entry_id, now)
            return
        if row.outcome is Outcome.REDELIVERED and row.detail == row.entry_id:
            # Pending still, with its old ID, which no tail of the scan meets again: taken now, it is due then.
            self.timers.arm(row.entry_id, now + self._visibility_ms)
        else:
            self.timers.disarm(row.entry_id)
        self.scanner.recovered((row.entry_id,))
        if row.outcome in (Outcome.QUARANTINED, Outcome.DEAD_LETTERED):
            self.wake_quarantine()

    async def _observe(self, due: Collection[bytes]) -> None:
        """Report what would be recovered; write nothing."""
        now = monotonic_ms()
        found = await overdue_now(self.context.client, self.source, self.writer.group.group, in_order(due, bytes))
        verdict = self.verdict or Verdict(now)
        for entry_id in due:
            row = found.get(entry_id)
            if row is None:
                self.timers.disarm(entry_id)
                verdict.gone([entry_id], now)
            elif self._in_place and not 0 <= row.idle_ms < CLAIM_READY_MS:
                self.timers.arm(entry_id, now + self._visibility_ms)
            elif 0 <= row.idle_ms < self._visibility_ms:
                verdict.found(entry_id, row.consumer, row.idle_ms, now, is_overdue=False)
                self.timers.arm(entry_id, now + self._visibility_ms - row.idle_ms)
            else:
                self.timers.arm(entry_id, now + max(row.idle_ms // FOLLOWED, RETRY_MS))
                if verdict.found(entry_id, row.consumer, row.idle_ms, now, is_overdue=True):
                    self.notes.would_recover(row)
        self.notes.verdict(verdict)


async def overdue_now(client: Redis, source: str, group: str, entry_ids: Sequence[bytes]) -> dict[bytes, Pending]:
    """Return the rows of ``entry_ids`` that are still pending, for ``--observe``. Raises what redis-py raises."""
    pipeline = client.pipeline(transaction=False)
    for entry_id in entry_ids:
        pipeline.execute_command("XPENDING", source, group, entry_id, entry_id, 1)
    replies = await pipeline.execute()
    return {rows[0][0]: Pending(*rows[0]) for rows in replies if rows}
