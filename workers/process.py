"""One run of a worker: its parts, from joining the group to leaving it."""

import logging
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import anyio
from anyio.abc import TaskStatus
from redis.exceptions import RedisError

from workers.adoption import NONCE_BYTES, Adoption
from workers.execution import Handler, execute, invoker
from workers.job import Job
from workers.journal import JournalWriter
from workers.membership import Membership
from workers.protocol.callbacks import Callbacks
from workers.protocol.connection import check_server, commands_client, reader_client
from workers.protocol.errors import UnreachableError
from workers.protocol.events import EventName, journalled
from workers.reading import Reader
from workers.reporting import Counts, Reporter
from workers.settings import WorkerSettings
from workers.settlement import Settlements
from workers.slots import Slots

logger = logging.getLogger(__name__)

FLUSH_S = 5.0
"""How long settlements may take at the end, whatever is left of the drain timeout."""
LAST_FLUSH_S = 2.0
"""The same where the worker was told to end at once, or was cancelled."""
FAREWELL_S = 2.0
"""How long callbacks and the removal of our consumer may take at the end."""


class WorkerProcess:
    """Runs once. `run` lasts until `stop` and the drain after it, or until cancelled."""

    def __init__(self, settings: WorkerSettings, handler: Handler, callbacks: Callbacks[str]) -> None:
        self.consumer = f"{settings.base_name}.{secrets.token_hex(NONCE_BYTES)}"
        self.counts = Counts()
        self.forced = False
        """Told to end at once, before everything was done."""
        self.finished = False
        self._settings = settings
        self._callbacks = callbacks
        self._invoke = invoker(handler, settings.concurrency)
        self._commands = commands_client(settings.redis_url)
        self._reads = reader_client(settings.redis_url)
        self._reporter = Reporter(settings.keys, self.consumer, callbacks, self.counts)
        self._membership = Membership(self._commands, settings, self._reporter)
        self._settlements = Settlements(self._commands, settings, self.consumer, self._membership, self._reporter)
        self._adoption = Adoption(self._commands, settings, self.consumer, self._membership, self._reporter)
        self._journal = (
            JournalWriter(self._commands, settings, self.consumer)
            if journalled(EventName.STARTED, settings.journal)
            else None
        )
        self._reader: Reader | None = None
        self._stop_asked = anyio.Event()
        self._drain_scope = anyio.CancelScope()
        self._flush_scope = anyio.CancelScope()

    # ---- life

    async def run(self, *, handle_signals: bool, task_status: TaskStatus[None]) -> None:
        """Work. Raises UnreachableError, UnsupportedServerError, or what redis-py raises while joining."""
        async with self._connected(), anyio.create_task_group() as services:
            await services.start(self._callbacks.run)
            services.start_soon(self._settlements.run)
            services.start_soon(self._membership.keep_fresh)
            if self._journal:
                services.start_soon(self._journal.run)
            if handle_signals:
                services.start_soon(self._watch_signals)
            logger.info("%s works on %s", self.consumer, self._settings.keys.pair)
            task_status.started()
            await self._work()
            await self._flush()
            services.cancel_scope.cancel()

    def stop(self, *, now: bool = False) -> None:
        """Read no more and drain; with ``now``, leave pending what still runs."""
        if not self._stop_asked.is_set():
            drain_s = self._settings.drain_timeout.total_seconds()
            logger.info("%s stops: what runs may go on for %g s", self.consumer, drain_s)
            self._drain_scope.deadline = anyio.current_time() + drain_s
        self._stop_asked.set()
        if self._reader:
            self._reader.stop()
        if now:
            self._end_at_once()

    def _end_at_once(self) -> None:
        self.forced = True
        self._drain_scope.cancel()
        self._flush_scope.cancel()
        if self._reader:
            self._reader.abort()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        try:
            await self._join()
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self._leave()
        finally:
            with anyio.CancelScope(shield=True):
                await self._commands.aclose()
                await self._reads.aclose()
            self.finished = True

    async def _join(self) -> None:
        await check_server(self._commands, self._settings.redis_url)
        try:
            await self._membership.join()
            if self._settings.adopts:
                await self._adoption.look_for_earlier_processes()
        except (RedisError, OSError) as error:
            raise UnreachableError(f"cannot join group {self._settings.keys.pair}: {error}") from error

    # ---- work

    async def _work(self) -> None:
        """Read and run jobs until told to stop, then let those that run go on until the drain deadline."""
        async with anyio.create_task_group() as runners:
            slots = Slots(runners, self._settings.concurrency, self._perform)
            self._reader = Reader(
                self._reads,
                self._settings,
                self.consumer,
                self._membership,
                self._adoption,
                slots,
                self._reporter,
                self._journal,
            )
            if self._stop_asked.is_set():
                self._reader.stop()
            runners.start_soon(self._end_blocking_read, self._reader)
            await self._reader.run()
            with self._drain_scope:
                await slots.wait_until_idle()
            runners.cancel_scope.cancel()

    async def _perform(self, job: Job) -> None:
        """One delivery: execute it and hand its verdict to the settler."""
        if self._journal:
            self._journal.note(EventName.STARTED, job)
            await self._journal.wait_until_sent()
        started = monotonic()
        verdict = await execute(self._invoke, job)
        self._settlements.add(job, verdict, round((monotonic() - started) * 1000))
        if self._settlements.is_full:
            await self._settlements.wait_for_room()

    async def _end_blocking_read(self, reader: Reader) -> None:
        """See to it that the end, whoever brings it, need not wait for a read that blocks."""
        try:
            await self._stop_asked.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await reader.unblock(self._commands)

    async def _watch_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                self.stop(now=self._stop_asked.is_set())

    # ---- the end

    async def _flush(self) -> None:
        """Wait until all verdicts are settled; the settler is at it."""
        self._flush_scope.deadline = max(self._drain_scope.deadline, anyio.current_time() + FLUSH_S)
        with self._flush_scope:
            await self._settlements.wait_until_settled()
            if self._journal:
                await self._journal.wait_until_answered()

    async def _leave(self) -> None:
        """Settle what a cancellation left over, say what stays pending, and remove our consumer."""
        with anyio.move_on_after(LAST_FLUSH_S):
            await self._settlements.flush()
        self._count_what_is_left()
        with anyio.move_on_after(FAREWELL_S):
            await self._callbacks.drain()
            try:
                await self._adoption.leave()
            except (RedisError, OSError) as error:
                logger.debug("consumer %s was not removed: %s", self.consumer, error)

    def _count_what_is_left(self) -> None:
        left = sum(len(source.deliveries) for source in (self._membership.main, self._membership.retries))
        self.counts.abandoned = left
        if left:
            logger.warning("%s leaves %d deliveries pending", self.consumer, left)
        logger.info("%s has stopped: %s", self.consumer, self.counts)
