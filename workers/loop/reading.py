"""Reads as many deliveries as there are free slots, and never in a way that loses a reply on our side.

The reader stops only between reads. A cancelled read would leave entries pending here without our knowledge.

In embedded mode, a scan for stalled deliveries claims for the same free slots. Reads and pages of a scan take turns, so
that no slot is filled twice.

With policy ``in-place``, reads with CLAIM return entries that are ready in place together with new ones. An entry that
is ready in place is idle for longer than any delivery can be. So a read claims no overdue delivery, and recovery judges
each one before a reader gets it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from math import inf

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from redis.exceptions import RedisError, ResponseError

from workers.loop.adoption import Adoption
from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.in_flight import Delivery, Source
from workers.loop.slots import Slots
from workers.protocol.calls.declined import Declined
from workers.protocol.calls.group_moves import Outcome, Recovery
from workers.protocol.connection import BLOCK_MS, KeptConnection
from workers.protocol.errors import UnexpectedReplyError
from workers.protocol.log_fields import fields
from workers.protocol.meaning import Meaning, is_contact_error, is_not_known, meaning_of, was_not_run
from workers.protocol.messages import CLAIM_READY_MS, ReadEntry, Redelivery, parse_read_reply
from workers.runtime.clock import monotonic
from workers.runtime.pauses import pause_s

logger = logging.getLogger(__name__)

ADOPTION_PAUSE_S = 5.0
"""Pause of adoption after Redis denied a call of it. Reading goes on."""
SMALLEST_HALF = 32
"""A call for fewer entries costs more than it saves."""
READING, ADOPTING = "reading", "adopting deliveries"
LARGEST_REPLY = 16_000_000
"""Size in bytes at which Redis 8.10 ends a reply. A slow network (100 Mbit/s) carries it within `READ_PATIENCE_S`."""


class Planner:
    """Splits the free slots between the stream and the retry stream. Pure.

    Redis 8.10 limits the whole reply, and serves the streams in the order of the call. So they take turns in coming
    first. On an older server, COUNT applies to each stream. There, a single free slot is for the streams in turn, and
    for both only after both were empty.
    """

    def __init__(self) -> None:
        self.limits_reply = True
        """Reads ask the server to limit the whole reply, until it rejects that."""
        self._turn = self._empty = 0

    def plan(self, sources: tuple[Source, ...], free: int) -> tuple[tuple[Source, ...], tuple[str | int, ...]]:
        """Return the streams and the limits of the next read for ``free`` slots, at least one."""
        self._turn += 1
        first = self._turn % len(sources)
        if self.limits_reply:
            in_turn = sources[first:] + sources[:first]
            return in_turn, ("COUNT", free, "MAXCOUNT", free, "MAXSIZE", LARGEST_REPLY)
        if free >= len(sources) or self._empty >= len(sources):
            return sources, ("COUNT", max(1, free // len(sources)))
        return (sources[first],), ("COUNT", 1)

    def learn(self, found: int) -> None:
        """Note how many deliveries a read has found."""
        self._empty = 0 if found else self._empty + 1


class Reader(WorkerPart):
    """Reads until the stop, and puts the deliveries into slots."""

    def __init__(self, context: WorkerContext, slots: Slots, adoption: Adoption) -> None:
        super().__init__(context)
        self._client = context.reads
        self._moves = context.moves
        self._connection = KeptConnection(context.reads)
        self._slots = slots
        self._adoption = adoption
        self._by_key = {source.key.encode(): source for source in self._membership.both}
        self._planner = Planner()
        self._asked_for = 0
        self._most = slots.concurrency
        """Maximum number of deliveries in a read. It shrinks with each lost reply, which may have been too large."""
        self.turn = asyncio.Lock()
        """Held by the call that gets deliveries for the free slots."""
        self.scan_at = inf
        """When an embedded worker scans for stalled deliveries, on the monotonic clock; inf = unknown."""
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
            if not self._slots.free:
                await self._slots.freed.wait()
                continue
            await checkpoint_if_cancelled()  # no other await in this loop can be cancelled while slots are free
            was_read = False  # `stop` may cancel the call that is under way
            try:
                with anyio.CancelScope(shield=True) as self._under_way:
                    async with self.turn:
                        was_read = await self._fill_slots(min(self._slots.free, self._most))
                if was_read:  # a successful scan does not make up for a denied read
                    failures = 0
            except (RedisError, OSError, UnexpectedReplyError) as error:
                failures += 1
                await self._recover_from(error, failures)
        if not self._under_way.cancel_called:
            with anyio.CancelScope(shield=True) as self._under_way:
                async with self.turn:
                    pass  # a page of a scan was under way, and is the last one

    @property
    def room(self) -> int:
        """How many deliveries a page of a scan may claim. The jobs of half of many slots run while it is recovered."""
        half = self._slots.concurrency // 2
        return min(self._slots.free, half) if half >= SMALLEST_HALF else self._slots.free

    async def claim(self, source: Source, call: Awaitable[Recovery | Declined]) -> Recovery | Declined:
        """Put the deliveries that ``call`` claims, a page of ``source``, into slots. The caller holds the `turn`."""
        self.scan_at, asked_at = inf, monotonic()
        try:
            page = await call
        except (RedisError, OSError):
            self._adoption.take_stock()  # it may have claimed deliveries
            raise
        if isinstance(page, Recovery):
            if source.kept:
                source.kept.difference_update(row.entry_id for row in page.rows if row.outcome is not Outcome.HELD)
            self._receive(self._adoption.deliveries(source, page.claimed, asked_at))
        return page

    async def _fill_slots(self, free: int) -> bool:
        """Adopt deliveries or read some. Return whether that was a read, and Redis answered it."""
        was_read = False
        if not free:  # a scan has filled the slots
            return was_read
        self._asked_for = free
        if self._stock_taken != self._membership.joins:
            self._stock_taken = self._membership.joins
            self._adoption.take_stock()
        if self._adoption.is_due:
            deliveries = await self._adopted(free)
        else:
            deliveries = await self._read(free)
            self._reporter.works(READING)
            self.has_read = was_read = True
        if deliveries:
            self._most = min(self._slots.concurrency, self._most + self._most // 4 + 1)
        self._receive(deliveries)
        if deliveries and self._slots.free:
            await asyncio.sleep(0)  # a job that comes alone starts before the next one is asked for
        return was_read

    def _receive(self, deliveries: Sequence[Delivery]) -> None:
        self._reporter.counts.read += len(deliveries)
        self._telemetry.received(len(deliveries))
        for job in deliveries:
            job.source.deliveries[job.raw_entry_id] = job
        self._slots.put(deliveries)

    async def _adopted(self, free: int) -> list[Delivery]:
        """Return adopted deliveries. After a denied call adoption pauses, and reading goes on."""
        try:
            deliveries = await self._adoption.take(free)
        except ResponseError as error:
            if meaning_of(error) not in (Meaning.DENIED, Meaning.OTHER_CODE, Meaning.UNCLEAR):
                raise
            self._reporter.failed(ADOPTING, error)
            self._adoption.put_off(ADOPTION_PAUSE_S)
            return []
        self._reporter.works(ADOPTING)
        return deliveries

    # ---- reads

    async def _read(self, free: int) -> list[Delivery]:
        asked_at, membership = monotonic(), self._membership
        sources, limits = self._planner.plan(membership.sources, free)
        words: list[str | int] = ["GROUP", self._settings.group, self._consumer, *limits]
        # The first read does not block, because its reply shows at once whether we may read.
        if self.has_read and len(sources) == len(membership.sources) and (block_ms := self._block_ms()) > 0:
            words += ["BLOCK", block_ms]
        claims = membership.group_settings.redelivery is Redelivery.IN_PLACE
        if claims:
            words += ["CLAIM", CLAIM_READY_MS]
        words += ["STREAMS", *(source.key for source in sources), *(">" for _ in sources)]
        entries = parse_read_reply(await self._connection.execute_command("XREADGROUP", *words))
        if claims:
            await self._give_back([entry for entry in entries if entry[3] < 0])
        deliveries = self._deliveries(entries, asked_at)
        self._planner.learn(len(deliveries))
        return deliveries

    def _block_ms(self) -> int:
        """Return how long a read may block, which is until the next scan. The server ends it up to 100 ms late."""
        if self.scan_at == inf or not self._membership.recovers:
            return BLOCK_MS
        return min(BLOCK_MS, round((self.scan_at - monotonic()) * 1000))

    def _deliveries(self, entries: Sequence[ReadEntry], asked_at: float) -> list[Delivery]:
        """Make deliveries of the entries of a reply. Hot.

        They are proven as of ``asked_at``, because a handler that blocks the event loop may delay the reply for long.
        """
        max_deliveries, now_ms = self._membership.group_settings.max_deliveries, self._membership.now_ms()
        by_key = self._by_key
        return [
            Delivery(source, entry_id, flat or (), before + 1, max_deliveries, now_ms, asked_at)  # rule W7
            for stream, entry_id, flat, idle_ms, before in entries
            if idle_ms >= 0
            and entry_id not in (source := by_key[stream]).kept
            and (entry_id not in source.deliveries or not source.comes_again(entry_id, before + 1, asked_at))
        ]

    async def _give_back(self, taken: Sequence[ReadEntry]) -> None:
        """Give back deliveries of live workers, before anything else is read.

        After a step back of the server's clock, their delivery times lie in the future, and Redis takes them for old.
        """
        for source in self._membership.both:
            theirs = [(entry_id, before) for stream, entry_id, _, _, before in taken if self._by_key[stream] is source]
            failures = 0
            while theirs and not self._stopping.is_set():
                try:
                    await self._moves.return_taken(self._commands, source.key, theirs)
                    break
                except (RedisError, OSError) as error:
                    failures += 1
                    self._reporter.failed(READING, error)
                    await self._pause(failures)
        if taken:
            logger.warning(
                "returned deliveries that a read took from live workers after a clock change: %s",
                fields(group=self._settings.keys.name, deliveries=len(taken)),
            )

    # ---- after failures

    async def _recover_from(self, error: Exception, failures: int) -> None:
        if self._planner.limits_reply and is_not_known(error):
            self._planner.limits_reply = False  # the server is older than Redis 8.10, and has read nothing
            return
        self._adoption.take_stock()  # a reply may have been lost, and deliveries with it
        if meaning_of(error) is Meaning.NO_GROUP:
            logger.error("group does not exist any more, joining it again: %s", fields(group=self._settings.keys.name))
            try:
                await self._membership.join()
            except (RedisError, OSError) as failure:
                error = failure
            else:
                if failures == 1:
                    return
        self._reporter.failed(READING, error)
        if is_contact_error(error):
            if self._asked_for and not was_not_run(error):  # perhaps no reply as large as that can arrive
                self._most = max(1, self._asked_for // 2)
            self._planner.limits_reply = True  # perhaps another server answers next
            self._membership.join_again()  # so that the other calls are connected before the server has no room
            await self._client.connection_pool.disconnect()
        await self._pause(failures)

    async def _pause(self, failures: int) -> None:
        with anyio.move_on_after(pause_s(failures)):
            await self._stopping.wait()

    # ---- stopping

    def stop(self) -> None:
        """Read no more. The read that is under way goes on until its ``BLOCK`` time is over."""
        self._stopping.set()
        self._slots.freed.notify()

    def abort(self) -> None:
        """End the current read and drop its reply, because the process is about to end."""
        self.stop()
        self._under_way.cancel()
