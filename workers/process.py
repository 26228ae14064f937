"""One run of a worker: its parts, from joining the group to leaving it."""

import asyncio
import logging
import secrets
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from math import inf
from time import monotonic

import anyio
from anyio.abc import TaskStatus
from redis.exceptions import RedisError

from workers.embedded.autoclaim import Autoclaim
from workers.embedded.upkeep import Upkeep
from workers.loop.adoption import NONCE_BYTES, Adoption
from workers.loop.deadlines import Deadlines
from workers.loop.execution import (
    HANDED_BACK,
    REASON_TIMEOUT,
    Execute,
    Handler,
    Outcome,
    Verdict,
    execute,
    failed,
    invoker,
    is_async,
)
from workers.loop.heartbeat import Heartbeat
from workers.loop.job import QUEUED, Interruption, Job
from workers.loop.journal import JournalWriter
from workers.loop.membership import Agreement, Membership
from workers.loop.reading import Reader
from workers.loop.reporting import Counts, Reporter
from workers.loop.settlement import Settlements
from workers.loop.slots import Slots
from workers.loop.telemetry import WorkerTelemetry
from workers.protocol.connection import check_server, commands_client, reader_client
from workers.protocol.errors import UnreachableError
from workers.protocol.events import EventName, journalled
from workers.protocol.messages import RecoveryMode
from workers.runtime.callbacks import Callbacks
from workers.runtime.contact import Contact
from workers.settings import WorkerSettings

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
        self._backoff = settings.backoff
        self._invoke = invoker(handler, settings.concurrency)
        self._commands = commands_client(settings.redis_url)
        self._reads = reader_client(settings.redis_url)
        self._reporter = Reporter(settings.keys, self.consumer, callbacks, self.counts)
        self._membership = Membership(self._commands, settings, self._reporter)
        self._execute: Execute = execute
        self._telemetry = self._reporter.telemetry = WorkerTelemetry.make(settings, self.consumer)
        if self._telemetry:
            self._execute = self._telemetry.execute
            self._telemetry.visibility_s = lambda: self._membership.visibility_s
        self._settlements = Settlements(self._commands, settings, self.consumer, self._membership, self._reporter)
        self._heartbeat = Heartbeat(self._commands, settings, self.consumer, self._membership, self._reporter)
        self._deadlines = Deadlines((self._membership.main, self._membership.retries), self._expire)
        self._runs_in_threads = not is_async(handler)
        self._adoption = Adoption(self._commands, settings, self.consumer, self._membership, self._reporter)
        self._contact = Contact(self._commands, self._membership)
        self._upkeep = Upkeep(self._commands, settings, self._membership, self._reporter, self._contact)
        self._autoclaim = Autoclaim(
            self._commands,
            settings,
            self.consumer,
            self._membership,
            self._reporter,
            self._contact,
            self._upkeep.suspects_wait,
        )
        self._journal = (
            JournalWriter(self._commands, settings, self.consumer)
            if journalled(EventName.STARTED, settings.journal)
            else None
        )
        self._is_embedded = settings.recovery is RecoveryMode.EMBEDDED
        self._reader: Reader | None = None
        self._slots: Slots | None = None
        self._hands_back = False
        """The drain deadline has passed: what is cancelled now is handed back."""
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
            if self._is_embedded:
                services.start_soon(self._contact.run)
                services.start_soon(self._upkeep.run)
            if self._journal:
                services.start_soon(self._journal.run)
                if self._telemetry:
                    self._telemetry.watch_journal(lambda journal=self._journal: journal.dropped)  # type: ignore[misc]
            if handle_signals:
                services.start_soon(self._watch_signals)
            recovers = ", and recovers what stalls there" if self._membership.recovers else ""
            logger.info("%s works on %s%s", self.consumer, self._settings.keys.pair, recovers)
            task_status.started()
            await self._work()
            await self._flush()
            services.cancel_scope.cancel()

    # ---- what others may know, also in other threads

    @property
    def has_joined(self) -> bool:
        """The group was joined, and what it has agreed on is known."""
        return self._membership.joins > 0

    @property
    def is_stopping(self) -> bool:
        """Told to stop, or at the end."""
        return self.finished or self._stop_asked.is_set()

    @property
    def agreement(self) -> Agreement:
        """What the group has agreed on; only once joined."""
        return self._membership.agreement

    def in_hand(self) -> list[Job]:
        """Return the deliveries that are queued, run, or wait for their settlement."""
        return [
            job
            for source in (self._membership.main, self._membership.retries)
            for job in list(source.deliveries.values())
        ]

    # ---- stopping

    def stop(self, *, now: bool = False) -> None:
        """Read no more, hand back what has not started, and drain; with ``now``, leave everything pending."""
        if not self._stop_asked.is_set():
            drain_s = self._settings.drain_timeout.total_seconds()
            logger.info("%s stops: what runs may go on for %g s", self.consumer, drain_s)
            self._drain_scope.deadline = anyio.current_time() + drain_s
        self._stop_asked.set()
        if self._reader:
            self._reader.stop()
        if now:
            self._end_at_once()
        elif self._slots:
            self._slots.close()

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
            self._heartbeat.start()
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
            slots = self._slots = Slots(runners, self._settings.concurrency, self._perform, self._hand_back)
            self._reader = Reader(
                self._reads,
                self._settings,
                self.consumer,
                self._membership,
                self._adoption,
                self._autoclaim,
                slots,
                self._reporter,
                self._journal,
                self._contact if self._is_embedded else None,
            )
            if self._stop_asked.is_set():
                self._reader.stop()
                slots.close()
            runners.start_soon(self._end_blocking_read, self._reader)
            if self._is_embedded:
                runners.start_soon(self._reader.end_late_reads, self._commands)
            await self._reader.run()
            with self._drain_scope:
                await slots.wait_until_idle()
            self._hands_back = not self.forced
            runners.cancel_scope.cancel()

    async def _perform(self, job: Job) -> None:
        """One delivery: execute it and hand its verdict to the settler."""
        verdict: Verdict | None = None
        now = monotonic()
        try:
            if now - job.proven > self._membership.visibility_s and not await self._heartbeat.still_owns(job):
                return
            if self._journal:
                self._journal.note(EventName.STARTED, job)
                await self._journal.wait_until_sent()
                now = monotonic()  # long ago, where another handler blocked the event loop meanwhile
                if now - job.proven > self._membership.visibility_s and not await self._heartbeat.still_owns(job):
                    return
            job.begin(now)
            if job.timeout_s != inf:
                self._deadlines.watch(job)
            verdict = await self._execute(self._invoke, job, self._backoff)
        except asyncio.CancelledError:
            if job.interruption is None or _is_cancelled_by_others():
                self._cancelled(job)
                raise
        else:
            if job.interruption is not None:
                _is_cancelled_by_others()
        if job.interruption is not None or self._hands_back:
            verdict = self._reconsidered(job, verdict)
        if verdict is not None and self._settlements.add(job, verdict, now):
            await self._settlements.wait_for_room()

    # ---- what has no verdict of its handler

    def _expire(self, job: Job) -> None:
        """Take a job from its handler that runs longer than it may."""
        self._reporter.timed_out(job, goes_on=self._runs_in_threads)
        job.interrupt(Interruption.TIMEOUT)

    def _cancelled(self, job: Job) -> None:
        """Hand back what the drain deadline cancels; what anything else cancels stays pending."""
        if self._hands_back and job.interruption is not Interruption.LOST:
            self._settlements.add(job, HANDED_BACK, monotonic() if job.stage is QUEUED else job.started)

    def _hand_back(self, jobs: Iterable[Job]) -> None:
        """Give back what has not started; returns at once."""
        now = monotonic()
        for job in jobs:
            if job.interruption is None:
                self._settlements.add(job, HANDED_BACK, now)

    def _reconsidered(self, job: Job, verdict: Verdict | None) -> Verdict | None:
        """Return what to settle of a job that was cancelled, or None where it is not ours any more."""
        if verdict is not None and verdict.outcome is Outcome.ACK:
            return verdict  # it got to its end all the same
        if job.interruption is Interruption.LOST:
            return None
        if job.interruption is Interruption.TIMEOUT:
            error = f"ran longer than its timeout of {job.timeout_s:g} s"
            return failed(job, error, self._backoff, reason=REASON_TIMEOUT)
        # What a handler raises because it is cancelled says nothing about the job.
        return HANDED_BACK if verdict is not None and verdict.outcome is Outcome.NACK else verdict

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
        if self._telemetry:
            self._telemetry.close()
        self._deadlines.stop()
        await self._heartbeat.stop()
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


def _is_cancelled_by_others() -> bool:
    """Take our own cancellation of the current task back; tell whether somebody else cancels it, too."""
    task = asyncio.current_task()
    assert task is not None
    return task.uncancel() > 0
