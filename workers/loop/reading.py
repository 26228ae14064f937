"""Reads as many deliveries as there are free slots, and never in a way that loses a reply on our side.

A read ends only between reads. A cancelled one would leave entries with us that we never hear of.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any, Protocol

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from redis.exceptions import RedisError, ResponseError

from workers.loop.adoption import Adoption
from workers.loop.claiming import Claiming
from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.in_flight import Delivery
from workers.loop.planner import Planner
from workers.loop.slots import Slots
from workers.protocol.connection import BLOCK_MS, KeptConnection
from workers.protocol.errors import UnexpectedReplyError
from workers.protocol.log_fields import fields
from workers.protocol.meaning import Meaning, is_contact_error, meaning_of, was_not_run
from workers.protocol.messages import parse_read_reply
from workers.runtime.clock import monotonic
from workers.runtime.pauses import pause_s

logger = logging.getLogger(__name__)

REFUSED_S = 5.0
"""Pause of adoption and recovery after Redis rejected a call of theirs. Reading goes on."""
READING, ADOPTING, RECOVERING = "reading", "adopting deliveries", "recovering stalled deliveries"


class StalledDeliveries(Protocol):
    """A source of deliveries besides reading: stalled deliveries of other consumers."""

    def due_in_s(self) -> float:
        """Return the seconds until the next scan, or inf while a reaper recovers."""

    async def take(self, room: int) -> list[Delivery]:
        """Scan, and return at most ``room`` deliveries that are ours from now on. Raises errors of redis-py."""

    def put_off(self, pause_s: float) -> None:
        """Pause, because Redis rejected a call."""


class Reader(WorkerPart):
    """Reads until the stop, and puts the deliveries into slots."""

    def __init__(
        self, context: WorkerContext, slots: Slots, adoption: Adoption, stalled: StalledDeliveries | None
    ) -> None:
        """``stalled`` is None if a reaper recovers."""
        super().__init__(context)
        self._client = context.reads
        self._connection = KeptConnection(context.reads)
        self._slots = slots
        self._adoption = adoption
        self._stalled = stalled
        self._by_key = {source.key.encode(): source for source in self._membership.both}
        self._planner = Planner()
        self._claiming = Claiming(context)
        self._asked_for = 0
        self._most: float = inf
        """Maximum number of deliveries in a read, after replies were lost that may have been too large."""
        self._stopping = anyio.Event()
        self._under_way = anyio.CancelScope()
        self.has_read = False
        """A read has succeeded."""
        self._stock_taken = 0
        """The number of joins when stock was last taken."""

    # ---- the loop

    async def run(self) -> None:
        """Read until `stop`. Waits for the end of outages."""
        failures = 0
        self._stock_taken = self._membership.joins
        while not self._stopping.is_set():
            if not self._slots.free and self._stalled_in_s() > 0:
                await self._wait_for_slot()
                continue
            await checkpoint_if_cancelled()  # no other await in this loop can be cancelled while slots are free
            was_read = False  # `stop` may cancel the call that is under way
            try:
                with anyio.CancelScope(shield=True) as self._under_way:
                    was_read = await self._fill_slots(int(min(self._slots.free, self._most)))
                if was_read:  # a successful scan does not make up for a rejected read
                    failures = 0
            except (RedisError, OSError, UnexpectedReplyError) as error:
                failures += 1
                await self._recover_from(error, failures)

    def _stalled_in_s(self) -> float:
        return self._stalled.due_in_s() if self._stalled else inf

    async def _wait_for_slot(self) -> None:
        """Wait until a slot is free, or until the next scan for stalled deliveries."""
        due_in_s = self._stalled_in_s()
        if due_in_s == inf:  # not embedded, because a timer costs more than the wait
            await self._slots.freed.wait()
            return
        with anyio.move_on_after(due_in_s):
            await self._slots.freed.wait()

    async def _fill_slots(self, free: int) -> bool:
        """Get deliveries from the next source. Return whether that was a read, and Redis answered it."""
        was_read = False
        self._asked_for = free
        if self._stock_taken != self._membership.joins:
            self._stock_taken = self._membership.joins
            self._adoption.take_stock()
        if self._claiming.is_left:  # before stock is taken, which would run deliveries that are given back
            deliveries = self._received(await self._claiming.left())
            self._reporter.works(READING)
        elif free and self._adoption.is_due:
            taking = self._adoption.take(free)
            deliveries = self._received(await self._unless_refused(ADOPTING, taking, self._adoption.put_off))
        elif self._stalled and self._stalled.due_in_s() <= 0:
            deliveries = await self._unless_refused(RECOVERING, self._stalled.take(free), self._stalled.put_off)
        else:
            deliveries = self._received(await self._read(free))
            self._reporter.works(READING)
            self.has_read = was_read = True
        for job in deliveries:
            job.source.deliveries[job.raw_entry_id] = job
        if deliveries and self._most < inf:
            larger = self._most + max(1, self._most // 4)
            self._most = larger if larger < self._slots.concurrency else inf
        self._slots.put(deliveries)
        if deliveries and self._slots.free:
            await asyncio.sleep(0)  # a job that comes alone starts before the next one is asked for
        return was_read

    async def _unless_refused(
        self, part: str, taking: Awaitable[list[Delivery]], put_off: Callable[[float], None]
    ) -> list[Delivery]:
        """Return the deliveries of another source. After a rejected call it pauses, and reading goes on."""
        try:
            deliveries = await taking
        except ResponseError as error:
            if meaning_of(error) not in (Meaning.DENIED, Meaning.REFUSED, Meaning.UNCLEAR):
                raise
            self._reporter.failed(part, error)
            put_off(REFUSED_S)
            return []
        self._reporter.works(part)
        return deliveries

    def _received(self, deliveries: list[Delivery]) -> list[Delivery]:
        self._reporter.counts.read += len(deliveries)
        if self._telemetry and deliveries:
            self._telemetry.received(deliveries)
        return deliveries

    async def _read(self, free: int) -> list[Delivery]:
        asked_at = monotonic()
        plan = self._planner.plan(self._membership.sources, free)
        # The first read does not block, because its reply shows at once whether we may read.
        block = ("BLOCK", self._block_ms()) if plan.blocks and self.has_read else ()

        async def send(more: Sequence[str | int] = ()) -> Any:
            keys = [source.key for source in plan.sources]
            words = ("GROUP", self._settings.group, self._consumer, "COUNT", plan.count, *block, *more, "STREAMS")
            return await self._connection.execute_command("XREADGROUP", *words, *keys, *(">" for _ in keys))

        if self._claiming.is_on:
            deliveries = await self._claiming.deliveries(send, asked_at)
        else:
            deliveries = self._deliveries(await send(), asked_at)
        self._planner.learn(len(deliveries))
        return deliveries

    def _block_ms(self) -> int:
        """Return how long a read may block, which is until the reader's next task. Never 0, which is no limit.

        The server ends a read up to 100 ms late.
        """
        return max(1, min(BLOCK_MS, round(min(self._stalled_in_s(), BLOCK_MS) * 1000)))

    def _deliveries(self, reply: Any, asked_at: float) -> list[Delivery]:
        """Make deliveries of a reply. Every one that is read is the first of its entry.

        They are proven as of ``asked_at``, because a handler that blocks the event loop may delay the reply for long.
        """
        max_deliveries, now_ms = self._membership.agreement.max_deliveries, self._membership.now_ms()
        by_key = self._by_key
        return [
            Delivery(source, entry_id, flat or (), 1, max_deliveries, now_ms, asked_at)
            for stream, entry_id, flat in parse_read_reply(reply)
            if entry_id not in (source := by_key[stream]).deliveries or not source.comes_again(entry_id, 1, asked_at)
        ]

    # ---- after failures

    async def _recover_from(self, error: Exception, failures: int) -> None:
        self._adoption.take_stock()  # a reply may have been lost, and deliveries with it
        group_is_gone = meaning_of(error) is Meaning.NO_GROUP
        if group_is_gone and await self._rejoined() and failures == 1:
            return
        self._reporter.failed(READING, error)
        if is_contact_error(error):
            if self._asked_for and not was_not_run(error):  # perhaps no reply as large as that can arrive
                self._most = max(1, self._asked_for // 2)
            self._membership.join_again()  # so that the other calls are connected before the server has no room
            await self._client.connection_pool.disconnect()
        with anyio.move_on_after(pause_s(failures)):
            await self._stopping.wait()

    async def _rejoined(self) -> bool:
        logger.error("group does not exist any more, joining it again: %s", fields(group=self._settings.keys.pair))
        try:
            await self._membership.join()
        except (RedisError, OSError) as error:
            self._reporter.failed(READING, error)
            return False
        return True

    # ---- stopping

    def stop(self) -> None:
        """Read no more. The read that is under way goes on until its ``BLOCK`` time is over."""
        self._stopping.set()
        self._slots.freed.notify()

    def abort(self) -> None:
        """End the current read and drop its reply, because the process is about to end."""
        self.stop()
        self._under_way.cancel()
