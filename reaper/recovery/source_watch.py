"""Watches one source of a group (the stream, or the group's retry stream): its timers, and the task that fires them.

A timer is a hint; the script decides.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import time_ns
from typing import Any

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.recovery.ages import Ages
from reaper.recovery.backlogs import Backlogs, Held, is_foreign
from reaper.recovery.context import TermContext
from reaper.recovery.executions import Executions
from reaper.recovery.notes import GroupNotes
from reaper.recovery.rate import RateLimit
from reaper.recovery.scanner import Scanner
from reaper.recovery.telemetry import GroupTelemetry
from reaper.recovery.timers import Cohort, Sight, Timers
from reaper.recovery.verdict import LOOKS as FOLLOWED
from reaper.recovery.verdict import Verdict
from reaper.recovery.writer import GroupWriter
from workers.protocol.calls.recovery import ENDED, Outcome, Ready, Recovered, Recoveries
from workers.protocol.calls.refusals import Refusal
from workers.protocol.keys import LAID_ASIDE, NOBODY, READY_CONSUMER
from workers.protocol.messages import Pending, Redelivery, entry_order, in_order
from workers.runtime.clock import monotonic_ms
from workers.runtime.settings import to_ms

RETRY_MS = 1_000
"""When a delivery is tried again whose recovery call did not come back."""
LATEST_WAKE_S = 5.0
"""Insurance: the timer task looks again at least this often, should a wake-up ever be missed."""
_READY = frozenset({READY_CONSUMER.encode(), NOBODY.encode()})
"""Who holds what is ready where it is, by policy ``in-place``."""
CALLS_UNDER_WAY = 2
"""Recovery calls of one source at a time: while the server runs one, the answer to the other is worked through."""
SPARED = 10
"""Nothing is spared for longer than so many visibility timeouts, whatever its consumer settles beside it."""
OLD, LOOKS = 4, 8
"""What will be due within a fourth of the visibility timeout is looked after, every eighth of it."""


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
    verdict: Verdict | None = None
    """Where we observe."""
    timers: Timers = field(default_factory=Timers)
    ages: Ages = field(init=False)
    backlogs: Backlogs = field(init=False)
    scanner: Scanner = field(init=False)
    _visibility_ms: int = field(init=False)
    _in_place: bool = field(init=False)
    _armed: anyio.Event = field(default_factory=anyio.Event)
    _sleeps_until: int | None = None
    _next_look_ms: int = 0
    _began_ms: int = field(default_factory=monotonic_ms)
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _room: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(CALLS_UNDER_WAY))

    def __post_init__(self) -> None:
        self._visibility_ms = to_ms(self.writer.group.visibility_timeout)
        self._in_place = self.writer.group.redelivery is Redelivery.IN_PLACE
        self.ages = Ages(self._visibility_ms)
        self.backlogs = Backlogs(self._visibility_ms)
        self.scanner = Scanner(
            client=self.context.client,
            source=self.source,
            group=self.writer.group.group,
            visibility_ms=self._visibility_ms,
            page=self.context.settings.scan_page,
            timers=self.timers,
            ages=self.ages,
            backlogs=self.backlogs,
            armed=self._wake_if_earlier,
            ready_consumers=_READY if self._in_place else frozenset(),
            **self._counting(),
        )

    def _counting(self) -> dict[str, Any]:
        """Return how the scanner looks at counts: a group counts by what is seen, or is told that Redis counts more."""
        told = {"forgotten": self.verdict.gone} if self.verdict else {}
        if self.writer.group.foreign_workers:
            return told | {"executions": Executions()}
        return told | {"read_again": self.notes.read_again}

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

    async def look_at_backlogs(self) -> None:
        """Look who is at work on what will be due soon, where it is time, in one request. Raises what redis-py raises.

        Workers of ours prove that they live, and need not be looked after.
        """
        now, due_ms = monotonic_ms(), self.timers.next_due()
        if due_ms is None or now < self._next_look_ms:
            return
        if not self._spares and due_ms - now > self._visibility_ms // OLD:
            return
        if self.scanner.is_read_by_others:
            self._next_look_ms = now + self._visibility_ms // LOOKS
            first = self.timers.head(self.context.settings.scan_page)  # no more are seen at one look
            held = self.backlogs.first() if self._spares else None
            await self.scanner.look_at_backlogs(min((*first, held) if held else first, key=entry_order))

    @property
    def _spares(self) -> bool:
        return self.writer.group.spare_the_living

    @property
    def begins_ms(self) -> int:
        """When anything is recovered at the earliest: before, nobody can have been seen to live, or to stand still."""
        return self._began_ms + self._visibility_ms if self._spares else self._began_ms

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

    def _is_time(self) -> bool:
        ready_at = self._ready_at()
        return ready_at is not None and ready_at <= monotonic_ms()

    def _ready_at(self) -> int | None:
        """Return the instant of the next recovery: a timer is due, and the rate allows it."""
        due = self.timers.next_due()
        if due is None:
            return None
        return max(due, self.begins_ms, self.rate.ready_at_ms(monotonic_ms()))

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
        cohorts = self.timers.pop_cohorts(now, self.rate.most(self.context.settings.recover_batch, now))
        if not cohorts:
            return False
        due = {entry_id: cohort for cohort, ids in cohorts for entry_id in ids}
        # Armed again before anything is sent: a lost reply loses no timer.
        self.timers.arm_popped(due, now + RETRY_MS, Sight.UNSURE)
        held = self.backlogs.asks(due.keys())
        try:
            if self.context.settings.observe:
                await self._observe(due)
            else:
                await self._recover(due, held)
        except (RedisError, OSError) as error:
            self.notes.failed("recover", error)
            self.wake_suspects()  # some may have been parked all the same
            await anyio.sleep(RETRY_MS / 1000)
        return True

    async def _recover(self, due: Mapping[bytes, Cohort], held: Mapping[bytes, Held]) -> None:
        self.rate.spend(len(due))  # before the call: another one may be under way
        began_ns = time_ns()
        result = await self.writer.recover(
            self.source,
            in_order(due, bytes),
            made=self.made(),
            spared=self._spared(),
            executions=self.scanner.executions.of if self.scanner.executions else None,
        )
        self.backlogs.answered(due)
        if isinstance(result, Refusal):
            self.rate.spend(-len(due))
            self.refused(result)
            if result.wait:  # asked again only when it is over; other timers that fall due meanwhile are asked about
                for entry_id in due:
                    self.timers.arm(entry_id, monotonic_ms() + result.wait.left_ms, Sight.UNSURE)
            else:
                await anyio.sleep(RETRY_MS / 1000)
            return
        self.notes.call_done()
        self.timers.seen_ms = now = monotonic_ms()
        for together in result.ready:
            self._apply_ready(together, now)
        for row in result.others:
            self._apply(row, now)
            if row.asked_ms:
                self.notes.asks_too_long(row, to_ms(self.context.settings.longest_visibility_timeout))
            if row.outcome is Outcome.GONE:
                self.ages.add_gone(due[row.entry_id]._replace(timers=1), now)
                self.scanner.gone(row.entry_id)
                if row.entry_id in held:
                    self.backlogs.settled(held[row.entry_id], now)
        self._tell_of_the_living(result, now)
        self.notes.batch(result)
        self.telemetry.recovered(result, began_ns)
        self.rate.spend(-sum(row.outcome not in ENDED for row in result.others))

    def _tell_of_the_living(self, found: Recoveries, now: int) -> None:
        """Note what was taken from foreign consumers, and from which of them while they were at work on it."""
        taken: dict[bytes, list[int]] = {}
        for together in found.ready:
            if is_foreign(together.consumer):
                taken.setdefault(together.consumer, []).extend(together.idle_ms)
        for row in found.others:
            if row.outcome in ENDED and is_foreign(row.consumer):
                taken.setdefault(row.consumer, []).append(row.idle_ms)
        lately = now - self._visibility_ms // OLD
        for consumer, idle_ms in taken.items():
            handed_ms = [now - ms for ms in idle_ms if ms >= 0]
            at_work = self.backlogs.at_work(consumer, handed_ms, lately)
            server_ms = self.context.server_ms()
            self.notes.taken(consumer, now, server_ms, at_work=at_work, others=len(handed_ms) - at_work)
            self.telemetry.taken_from_living(at_work)

    def _apply_ready(self, together: Ready, now: int) -> None:
        self.scanner.recovered(together.entry_ids)
        self.timers.disarm_all(together.entry_ids)
        if self._in_place:
            # Pending still, with their old IDs, which no tail of the scan meets again: taken now, they are due then.
            self.timers.arm_popped(together.entry_ids, now + self._visibility_ms)

    def _apply(self, row: Recovered, now: int) -> None:
        """Bring the timer in line with what the script found."""
        if row.outcome is Outcome.NOT_DUE:
            # Older than the group's timeout: the job has a longer one of its own, or its consumer is spared.
            sight = Sight.DATED if row.idle_ms < self._visibility_ms else Sight.OVERDUE
            self.timers.arm(row.entry_id, self._due_again(row, now), sight)
            if row.consumer not in LAID_ASIDE:
                self.backlogs.seen(row.entry_id, row.consumer, row.idle_ms, now)
            if row.delivery_count > 1:
                self._delivered_again(row.entry_id, row.consumer)
            return
        if row.outcome is Outcome.PUT_OFF:
            self.timers.arm(row.entry_id, now, Sight.UNSURE)
            return
        if self._in_place and row.outcome in (Outcome.REDELIVERED, Outcome.SUSPECTED):  # as in `_apply_ready`
            self.timers.arm(row.entry_id, now + self._visibility_ms)
        else:
            self.timers.disarm(row.entry_id)
        self.scanner.recovered((row.entry_id,))
        if row.outcome in (Outcome.SUSPECTED, Outcome.DEAD_LETTERED):
            self.wake_suspects()

    def _delivered_again(self, entry_id: bytes, consumer: bytes) -> None:
        """Note that somebody else has handed a delivery out again: to its owner, or to another one."""
        if self._in_place:
            return  # all that is given back is
        if self.scanner.was_held_by(consumer, entry_id):
            self.notes.read_again(consumer)
        else:
            self.notes.claimed(entry_id, consumer)

    def _spared(self) -> dict[bytes, int]:
        """Return whose deliveries are left alone for now, and up to which idle time in ms."""
        if not self._spares:
            return {}
        now, most = monotonic_ms(), SPARED * self._visibility_ms
        return {consumer: min(now - since, most) for consumer, since in self.backlogs.at_work_on(now).items()}

    def _due_again(self, row: Recovered, now: int) -> int:
        """Return when a delivery is due that is not due: of one that is spared, when its consumer has stood still."""
        if self._spares and row.idle_ms >= self._visibility_ms:
            settled_ms = self.backlogs.settled_lately(row.consumer, now - row.idle_ms)
            if settled_ms is not None:
                capped = now - row.idle_ms + SPARED * self._visibility_ms
                return max(now + RETRY_MS, min(settled_ms + self._visibility_ms, capped))
        return now + int(row.detail)

    async def _observe(self, due: Mapping[bytes, Cohort]) -> None:
        """Report what would be recovered; write nothing."""
        self.timers.seen_ms = now = monotonic_ms()
        found = await overdue_now(self.context.client, self.source, self.writer.group.group, in_order(due, bytes))
        verdict = self.verdict or Verdict(now)
        self.backlogs.answered(due)
        for entry_id in due:
            row = found.get(entry_id)
            if row is None:
                self.timers.disarm(entry_id)
                verdict.gone([entry_id], now)
            elif self._in_place and row.consumer in LAID_ASIDE:
                self.timers.arm(entry_id, now + self._visibility_ms)
            elif 0 <= row.idle_ms < self._visibility_ms:
                verdict.found(entry_id, row.consumer, row.idle_ms, now, is_overdue=False)
                self.timers.arm(entry_id, now + self._visibility_ms - row.idle_ms)
                if row.delivery_count > 1:
                    self._delivered_again(entry_id, row.consumer)
            else:
                self.timers.arm(entry_id, now + max(row.idle_ms // FOLLOWED, RETRY_MS), Sight.OVERDUE)
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
