"""Reads deliveries: as many as there are free slots, and never so that a reply could get lost on our side.

A read ends only between reads. A cancelled one would leave entries with us that we never hear of.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from time import monotonic

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from workers.embedded.autoclaim import Autoclaim
from workers.loop.adoption import Adoption
from workers.loop.change import Change
from workers.loop.job import Job
from workers.loop.journal import JournalWriter
from workers.loop.membership import Membership
from workers.loop.planner import Planner
from workers.loop.reporting import Reporter
from workers.loop.slots import Slots
from workers.protocol.connection import BLOCK_MS, KeptConnection, is_contact_error
from workers.protocol.errors import UnexpectedReplyError
from workers.protocol.events import EventName
from workers.protocol.messages import RecoveryMode, parse_read_reply
from workers.runtime.contact import Contact
from workers.runtime.pauses import pause_s
from workers.settings import WorkerSettings

logger = logging.getLogger(__name__)

SUSPECT_WAIT_MS = 100
"""How long a read blocks while a suspect waits for the one before it."""
UNBLOCK_AGAIN_S = 0.05
_NOT_ALLOWED = 0
"""Stands for the ID of a connection whose user may not ask for it."""


class Reader:
    """Reads until told to stop, and puts what it has read into slots."""

    def __init__(
        self,
        client: Redis,
        settings: WorkerSettings,
        consumer: str,
        membership: Membership,
        adoption: Adoption,
        autoclaim: Autoclaim,
        slots: Slots,
        reporter: Reporter,
        journal: JournalWriter | None = None,
        contact: Contact | None = None,
    ) -> None:
        """``contact`` is told how Redis answers."""
        self._client = client
        self._connection = KeptConnection(client)
        self._settings = settings
        self._consumer = consumer
        self._membership = membership
        self._adoption = adoption
        self._autoclaim = autoclaim
        self._slots = slots
        self._reporter = reporter
        self._journal = journal
        self._contact = contact
        self._by_key = {source.key.encode(): source for source in (membership.main, membership.retries)}
        self._planner = Planner()
        self._warns_of_visibility = settings.recovery is RecoveryMode.EMBEDDED
        self._late = Change()
        self._stopping = anyio.Event()
        self._stopped = anyio.Event()
        self._under_way = anyio.CancelScope()
        self._connection_id: int | None = None
        self._stock_taken = membership.joins

    # ---- the loop

    async def run(self) -> None:
        """Read until `stop`. Outages are waited out."""
        failures = 0
        try:
            while not self._stopping.is_set() or self._autoclaim.is_under_way:
                if not self._autoclaim.is_under_way:
                    await checkpoint_if_cancelled()  # nothing else in this loop can be cancelled while slots are free
                if not self._slots.free and not self._autoclaim.is_due(0):
                    await self._wait_for_slot()
                    continue
                try:
                    with anyio.CancelScope(shield=True) as self._under_way:
                        await self._fill_slots(self._slots.free)
                    failures = 0
                except (RedisError, OSError, UnexpectedReplyError) as error:
                    failures += 1
                    await self._recover_from(error, failures)
        finally:
            self._autoclaim.abandon()
            self._stopped.set()

    async def _wait_for_slot(self) -> None:
        """Wait until a slot is free, or until stalled deliveries are to be looked for all the same."""
        due_in_s = self._autoclaim.due_in_s(0)
        if due_in_s == inf:  # not embedded: a timer costs more than the wait
            await self._slots.wait_for_change()
            return
        with anyio.move_on_after(due_in_s):
            await self._slots.wait_for_change()

    async def _fill_slots(self, free: int) -> None:
        if self._stock_taken != self._membership.joins:
            self._stock_taken = self._membership.joins
            self._adoption.take_stock()
        began = monotonic()
        if self._contact:
            self._contact.ask()
        if free and self._adoption.is_due and not self._autoclaim.is_under_way:
            jobs = await self._adoption.take(free)
        elif self._autoclaim.is_due(free):
            jobs = await self._autoclaim.take(free, self._room_ahead)
            began = self._autoclaim.asked_at
        else:
            jobs = await self._read(free)
            self._reporter.counts.read += len(jobs)
            if self._reporter.telemetry and jobs:
                self._reporter.telemetry.received(jobs)
        self._reporter.works("reading")
        if self._contact:
            self._contact.answered()
        for job in jobs:
            # Not now: a handler that blocks the event loop may have kept us from looking at the reply for long.
            job.proven = began
            job.source.hold(job)
            if self._journal:
                self._journal.note(EventName.DELIVERED, job)
        if self._warns_of_visibility:
            self._look_for_visibility(jobs)
        self._slots.put(jobs)
        if jobs and self._slots.free:
            await asyncio.sleep(0)  # a job that comes alone starts before the next one is asked for

    def _room_ahead(self) -> int:
        return 0 if self._stopping.is_set() else self._slots.free

    def _look_for_visibility(self, jobs: list[Job]) -> None:
        """Refuse a job's own visibility timeout, with one warning: the pending entries list shows no fields."""
        for job in jobs:
            if job.own_visibility_ms:
                logger.warning(
                    "job %s asks for a visibility timeout of its own (reaper.visibility_ms = %d): in embedded mode "
                    "it has the group's, %g s, as every job. Said once",
                    job.id,
                    job.own_visibility_ms,
                    self._membership.visibility_s,
                )
                self._warns_of_visibility = False
                return

    async def _read(self, free: int) -> list[Job]:
        sources = self._membership.sources
        plan = self._planner.plan(sources, min(free, self._settings.read_count or free))
        if self._connection_id is None:
            self._connection_id = await self._learn_connection_id()
        block_ms = self._block_ms(free) if plan.blocks else 0
        if self._contact:
            self._contact.ask(block_ms / 1000)
        with self._timed(block_ms):
            reply = await self._connection.execute_command(
                "XREADGROUP",
                "GROUP",
                self._settings.group,
                self._consumer,
                "COUNT",
                plan.count,
                *(("BLOCK", block_ms) if block_ms else ()),
                "STREAMS",
                *(source.key for source in plan.sources),
                *(">" for _ in plan.sources),
            )
        jobs = self._jobs(reply)
        if len(sources) > 1:
            self._planner.learn(plan, sources, Counter(job.source.key for job in jobs))
        return jobs

    def _block_ms(self, free: int) -> int:
        """Return how long a read may block: until there is something else to do. Never 0: that is for ever."""
        longest = SUSPECT_WAIT_MS if self._adoption.is_waiting else BLOCK_MS
        return max(1, min(longest, round(min(self._autoclaim.due_in_s(free), BLOCK_MS) * 1000)))

    @contextmanager
    def _timed(self, block_ms: int) -> Iterator[None]:
        """See to it that a read which blocks for less than usual ends in time: the server itself may be 100 ms late."""
        if not 0 < block_ms < BLOCK_MS:
            yield
            return
        timer = asyncio.get_running_loop().call_later(block_ms / 1000, self._late.notify)
        try:
            yield
        finally:
            timer.cancel()

    async def end_late_reads(self, commands: Redis) -> None:
        """End reads that block for too long, until cancelled. Loses nothing."""
        while True:
            await self._late.wait()
            if self._connection_id:
                with suppress(RedisError, OSError):  # not allowed, or out of reach: the read ends all the same
                    await commands.execute_command("CLIENT", "UNBLOCK", self._connection_id)

    def _jobs(self, reply: object) -> list[Job]:
        """Make jobs of a reply. Every delivery that is read is the first of its entry."""
        max_deliveries, now_ms = self._membership.agreement.max_deliveries, self._membership.now_ms()
        return [
            Job(self._by_key[stream], entry_id, flat or (), 1, max_deliveries, now_ms)
            for stream, entry_id, flat in parse_read_reply(reply)
        ]

    # ---- when it fails

    async def _recover_from(self, error: Exception, failures: int) -> None:
        self._connection_id = None
        if self._contact:
            self._contact.failed(error)
        self._adoption.take_stock()  # a reply may have been lost, and deliveries with it
        group_is_gone = isinstance(error, ResponseError) and "NOGROUP" in str(error)
        if group_is_gone and await self._rejoined() and failures == 1:
            return
        self._reporter.failed("reading", error)
        if is_contact_error(error):
            await self._client.connection_pool.disconnect()
        with anyio.move_on_after(pause_s(failures)):
            await self._stopping.wait()

    async def _rejoined(self) -> bool:
        logger.error("group %s is gone while we read from it; joining it again", self._settings.keys.pair)
        try:
            await self._membership.join()
        except (RedisError, OSError) as error:
            self._reporter.failed("reading", error)
            return False
        return True

    # ---- stopping

    def stop(self) -> None:
        """Read no more; the read that is under way ends by itself, or by `unblock`."""
        self._stopping.set()
        self._slots.wake()

    def abort(self) -> None:
        """End the read that is under way, whatever it would have brought: the process is about to end."""
        self.stop()
        self._autoclaim.abandon()
        self._under_way.cancel()

    async def unblock(self, commands: Redis) -> None:
        """End the read that blocks on the server, so that stopping need not wait for it. Loses nothing."""
        while not self._stopped.is_set() and self._connection_id != _NOT_ALLOWED:
            try:
                if self._connection_id:  # else the reader is about to learn it, and to block
                    await commands.execute_command("CLIENT", "UNBLOCK", self._connection_id)
            except (RedisError, OSError):
                return  # not allowed, or out of reach: the read ends after BLOCK all the same
            with anyio.move_on_after(UNBLOCK_AGAIN_S):
                await self._stopped.wait()

    async def _learn_connection_id(self) -> int:
        try:
            connection_id: int = await self._connection.execute_command("CLIENT", "ID")
        except ResponseError:
            return _NOT_ALLOWED
        return connection_id
