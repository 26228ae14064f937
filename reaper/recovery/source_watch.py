"""Watches one source of a group (the stream, or the group's retry stream): its timers, and the task that fires them.

A timer is a hint; the script decides.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import time_ns

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.recovery.ages import Ages
from reaper.recovery.context import TermContext
from reaper.recovery.notes import GroupNotes
from reaper.recovery.rate import RateLimit
from reaper.recovery.scanner import Scanner
from reaper.recovery.telemetry import GroupTelemetry
from reaper.recovery.timers import Cohort, Sight, Timers
from reaper.recovery.writer import GroupWriter
from workers.protocol.calls import CALL_VALID_MS
from workers.protocol.calls.recovery import ENDED, Outcome, Recovered
from workers.protocol.calls.refusals import Refusal
from workers.protocol.keys import READY_CONSUMER
from workers.protocol.messages import Pending, Redelivery, entry_order
from workers.runtime.clock import monotonic_ms
from workers.runtime.settings import to_ms

RETRY_MS = 1_000
"""When a delivery is tried again whose recovery call did not come back."""
LATEST_WAKE_S = 5.0
"""Insurance: the timer task looks again at least this often, should a wake-up ever be missed."""
CALLS_UNDER_WAY = 2
"""Recovery calls of one source at a time: while the server runs one, the answer to the other is worked through."""


@dataclass(slots=True, eq=False)
class SourceWatch:
    """Timers of one source, kept by its scanner and fired here."""

    context: TermContext
    writer: GroupWriter
    source: str
    notes: GroupNotes
    telemetry: GroupTelemetry
    rate: RateLimit
    made: Callable[[], int]
    """Tells when the group was made, as of the last look: the server's ms."""
    refused: Callable[[Refusal], None]
    wake_suspects: Callable[[], None]
    timers: Timers = field(default_factory=Timers)
    ages: Ages = field(init=False)
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
        self.ages = Ages(self._visibility_ms)
        self.scanner = Scanner(
            client=self.context.client,
            source=self.source,
            group=self.writer.group.group,
            visibility_ms=self._visibility_ms,
            page=self.context.settings.scan_page,
            timers=self.timers,
            ages=self.ages,
            armed=self._wake_if_earlier,
            ready_consumer=READY_CONSUMER.encode() if self._in_place else None,
        )

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
        if due is not None and (self._sleeps_until is None or due < self._sleeps_until):
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

    def _ready_at(self) -> int | None:
        """Return the instant of the next recovery: a timer is due, no grace holds, the rate allows it."""
        due = self.timers.next_due()
        if due is None:
            return None
        return max(due, self.context.grace.until(self._visibility_ms), self.rate.ready_at_ms(monotonic_ms()))

    # ---- firing

    async def _fire(self) -> None:
        try:
            await self._fire_batch()
        finally:
            self._room.release()

    async def _fire_batch(self) -> None:
        now = monotonic_ms()
        cohorts = self.timers.pop_cohorts(now, self.rate.most(self.context.settings.recover_batch, now))
        if not cohorts:
            return
        due = {entry_id: cohort for cohort, ids in cohorts for entry_id in ids}
        # Armed again before anything is sent: a lost reply loses no timer.
        for entry_id in due:
            self.timers.arm(entry_id, now + RETRY_MS, Sight.UNSURE)
        act = self._observe if self.context.settings.observe else self._recover
        try:
            await act(due)
        except (RedisError, OSError) as error:
            self.notes.failed("recover", error)
            self.wake_suspects()  # some may have been parked all the same
            await anyio.sleep(RETRY_MS / 1000)

    async def _recover(self, due: Mapping[bytes, Cohort]) -> None:
        self.rate.spend(len(due))  # before the call: another one may be under way
        not_after_ms = self.context.server_ms() + CALL_VALID_MS
        began_ns = time_ns()
        result = await self.writer.recover(
            self.source,
            sorted(due, key=entry_order),
            not_after_ms=not_after_ms,
            made=self.made(),
            steps=self.context.grace.steps.ahead,
        )
        if isinstance(result, Refusal):
            self.rate.spend(-len(due))
            self.refused(result)
            await anyio.sleep(RETRY_MS / 1000)
            return
        self.notes.call_done()
        self.timers.seen_ms = now = monotonic_ms()
        for row in result:
            self._apply(row, now)
            if row.asked_ms:
                self.notes.asks_too_long(row, to_ms(self.context.settings.longest_visibility_timeout))
            if row.outcome is Outcome.GONE:
                self.ages.add_gone(due[row.entry_id]._replace(timers=1), now)
                self.scanner.gone(row.entry_id)
        self.notes.batch(result)
        self.telemetry.recovered(result, began_ns)
        self.rate.spend(-sum(row.outcome not in ENDED for row in result))

    def _apply(self, row: Recovered, now: int) -> None:
        """Bring the timer in line with what the script found."""
        if row.outcome is Outcome.NOT_DUE:
            # Older than the group's timeout: the job has a longer one of its own.
            sight = Sight.DATED if row.idle_ms < self._visibility_ms else Sight.OVERDUE
            self.timers.arm(row.entry_id, now + int(row.detail), sight)
            self._note_claim(row.entry_id, row.consumer, row.delivery_count)
            return
        if row.outcome is Outcome.PUT_OFF:
            self.timers.arm(row.entry_id, now, Sight.UNSURE)
            return
        if self._in_place and row.outcome in (Outcome.REDELIVERED, Outcome.SUSPECTED):
            # It is pending still, with its old ID, which no tail of the scan meets again: taken now, it is due then.
            self.timers.arm(row.entry_id, now + self._visibility_ms)
        else:
            self.timers.disarm(row.entry_id)
        if row.outcome in (Outcome.SUSPECTED, Outcome.DEAD_LETTERED):
            self.wake_suspects()

    def _note_claim(self, entry_id: bytes, consumer: bytes, delivery_count: int) -> None:
        """Note a delivery that is not the first of its entry: somebody has claimed it. In place all of us do."""
        if delivery_count > 1 and not self._in_place:
            self.notes.claimed(entry_id, consumer)

    async def _observe(self, due: Mapping[bytes, Cohort]) -> None:
        """Report what would be recovered; write nothing."""
        self.timers.seen_ms = now = monotonic_ms()
        found = await overdue_now(
            self.context.client, self.source, self.writer.group.group, sorted(due, key=entry_order)
        )
        for entry_id in due:
            row = found.get(entry_id)
            if row is None:
                self.timers.disarm(entry_id)
            elif self._in_place and row.consumer == READY_CONSUMER.encode():
                self.timers.arm(entry_id, now + self._visibility_ms)
            elif 0 <= row.idle_ms < self._visibility_ms:
                self.timers.arm(entry_id, now + self._visibility_ms - row.idle_ms)
                self._note_claim(entry_id, row.consumer, row.delivery_count)
            else:
                self.timers.arm(entry_id, now + self._visibility_ms, Sight.OVERDUE)
                self.notes.would_recover(row)


async def overdue_now(client: Redis, source: str, group: str, entry_ids: Sequence[bytes]) -> dict[bytes, Pending]:
    """Return the rows of ``entry_ids`` that are still pending, for ``--observe``. Raises what redis-py raises."""
    pipeline = client.pipeline(transaction=False)
    for entry_id in entry_ids:
        pipeline.execute_command("XPENDING", source, group, entry_id, entry_id, 1)
    replies = await pipeline.execute()
    return {rows[0][0]: Pending(*rows[0]) for rows in replies if rows}
