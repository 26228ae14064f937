"""One run of a worker with its parts, from joining the group to leaving it."""

import logging
import signal
from collections.abc import AsyncIterable
from contextlib import nullcontext
from math import inf

import anyio
from anyio.abc import TaskStatus
from redis.exceptions import RedisError

from workers.embedded.upkeep import Upkeep
from workers.loop.adoption import Adoption
from workers.loop.context import WorkerContext
from workers.loop.dispatch import Handlers
from workers.loop.heartbeat import Begin, Heartbeat, begin_thread
from workers.loop.in_flight import Delivery
from workers.loop.isolation import Isolation
from workers.loop.reading import Reader
from workers.loop.runner import Runner
from workers.loop.settlement import Settlements
from workers.loop.slots import Gatherer, Slots
from workers.protocol.errors import StreamReaperError, UnreachableError, UnsupportedServerError
from workers.protocol.log_fields import fields
from workers.protocol.meaning import in_words
from workers.protocol.messages import RecoveryMode, Redelivery
from workers.protocol.server import check_server, knows_claim
from workers.runtime.callbacks import Callbacks
from workers.runtime.children import received
from workers.runtime.pauses import once_served
from workers.runtime.user_code import plain_error
from workers.settings import WorkerSettings

logger = logging.getLogger(__name__)

JOINING = "joining the group"
FLUSH_S, QUICK_FLUSH_S = 5.0, 2.0
"""How long settlements may take at the end. The quick one is for a worker that must end at once, or was cancelled."""
FAREWELL_S = 2.0
"""How long callbacks and the removal of our consumer may take at the end."""


class WorkerProcess:
    """Runs once. `run` lasts until `stop` and the drain after it, or until cancelled. Make it in the event loop."""

    def __init__(
        self,
        settings: WorkerSettings,
        handlers: Handlers,
        callbacks: Callbacks,
        begin: Begin = begin_thread,
    ) -> None:
        """``begin`` is for the heartbeat. Raises ConfigurationError if the handlers cannot run jobs."""
        calls = handlers.calls(settings)
        self.forced = False
        """The worker had to end at once, before all jobs were settled."""
        self.finished = False
        self._callbacks = callbacks
        self._stop_asked = anyio.Event()
        self._joining, self._drain_scope, self._flush_scope = (anyio.CancelScope() for _ in range(3))
        # ---- the parts
        self._context = context = WorkerContext(settings, callbacks)
        self.consumer, self.counts = context.consumer, context.reporter.counts
        self._adoption = Adoption(context)
        self._heartbeat = Heartbeat(context, begin)
        isolation = Isolation(context.membership.both, lambda: context.membership.visibility_s)
        self._settlements = Settlements(context, isolation.have_settled)
        self._runner = Runner(context, calls, self._settlements, self._heartbeat, isolation, self._is_ending)
        self._slots = Slots(
            settings.concurrency,
            self._runner.perform,
            self._runner.hand_back,
            isolation,
            self._settlements.wait_for_room,
            Gatherer(calls.call_of, self._runner.is_last) if calls.has_batches else None,
            self._runner.perform_batch,
        )
        self._reader = Reader(context, self._slots, self._adoption)
        self._upkeep = Upkeep(context, self._reader) if settings.recovery is RecoveryMode.EMBEDDED else None

    # ---- life

    async def run(self, *, handle_signals: bool, task_status: TaskStatus[None]) -> None:
        """Work. Raises UnreachableError or UnsupportedServerError while joining, and HandlerExitError."""
        reporter = self._context.reporter
        receiver = received(signal.SIGTERM, signal.SIGINT) if handle_signals else nullcontext()
        with receiver as signals:
            try:
                async with anyio.create_task_group() as tasks:
                    if signals is not None:
                        tasks.start_soon(self._obey, signals)
                    with self._joining:
                        await once_served(self._join, lambda why: reporter.failed(JOINING, why))
                        reporter.works(JOINING)
                    if not self._joining.cancelled_caught:
                        await self._serve(task_status)
                    tasks.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                if ours := plain_error(group, StreamReaperError):
                    raise ours from ours.__cause__
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    await self._context.close()
                self.finished = True
            if not self._stop_asked.is_set():
                raise RuntimeError("worker stopped unexpectedly: an internal task was cancelled.")

    async def _serve(self, task_status: TaskStatus[None]) -> None:
        membership = self._context.membership
        self._heartbeat.start()
        try:
            async with anyio.create_task_group() as services:
                await services.start(self._callbacks.run)
                services.start_soon(self._settlements.run)
                services.start_soon(membership.keep_fresh)
                if self._upkeep:
                    services.start_soon(self._upkeep.run)
                logger.info(
                    "worker started: %s",
                    fields(
                        consumer=self.consumer, group=self._context.settings.keys.name, recovers=membership.recovers
                    ),
                )
                self._context.telemetry.watch_denials(lambda: len(self.denials))
                task_status.started()
                await self._work()
                services.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._leave()

    async def _work(self) -> None:
        """Read and run jobs until the stop. Then let the running jobs continue until the drain deadline."""
        try:
            async with anyio.create_task_group() as runners:
                runners.start_soon(self._slots.guard)
                await self._reader.run()
                if not self.forced:
                    self._slots.close()  # not earlier, because the pending read would bring back the returned jobs
                with self._drain_scope:
                    await self._slots.wait_until_idle()
                if not self.forced:
                    self._runner.hands_back = True
                runners.cancel_scope.cancel()
        finally:
            self._runner.leave_uncancelled()

    def _is_ending(self) -> bool:
        return self._slots.is_ending()

    # ---- state, read by other threads too

    @property
    def has_joined(self) -> bool:
        """Return whether the worker has joined the group and read its settings."""
        return self._context.membership.joins > 0

    @property
    def denials(self) -> list[str]:
        """The calls that Redis denies now, as ``part: reason``."""
        return self._context.reporter.troubles.denials

    def obstacles(self) -> list[str]:
        """Return why the worker is not ready: it must have read from its group, and must not be stopping."""
        if self.finished or self._stop_asked.is_set():
            return ["the worker is stopping"]
        if self.denials:
            return [f"Redis denies a call: {why}" for why in self.denials]
        return [] if self.has_joined and self._reader.has_read else ["the worker has not read from its group yet"]

    def in_hand(self) -> list[Delivery]:
        """Return the deliveries that are queued, run, or wait for their settlement."""
        return [held for source in self._context.membership.both for held in list(source.deliveries.values())]

    # ---- stopping

    def halt(self) -> None:
        """Start no job from now on, because a stop is about to follow. From anywhere."""
        self._slots.halt()

    def stop(self, *, now: bool = False) -> None:
        """Read no more, return the jobs that have not started, and drain. With ``now``, leave all jobs pending."""
        if not self._stop_asked.is_set():
            drain_s = self._context.settings.drain_timeout.total_seconds()
            logger.info("worker is stopping: %s", fields(consumer=self.consumer, drain_s=drain_s))
            self._drain_scope.deadline = anyio.current_time() + drain_s
        self._stop_asked.set()
        self._joining.cancel()
        self._slots.stop()
        self._reader.stop()
        if now:
            self.forced = True
            self._drain_scope.cancel()
            self._flush_scope.deadline = anyio.current_time() + QUICK_FLUSH_S
            self._reader.abort()

    async def _obey(self, signals: AsyncIterable[signal.Signals]) -> None:
        async for _ in signals:
            self.stop(now=self._stop_asked.is_set())

    # ---- joining and leaving

    async def _join(self) -> None:
        settings, membership = self._context.settings, self._context.membership
        await check_server(self._context.commands, settings.redis_url)
        try:
            await self._check_claim(settings.redelivery)
            await membership.join()
            await self._check_claim(membership.group_settings.redelivery)
            if settings.name:
                await self._adoption.look_for_earlier_processes()
        except (RedisError, OSError) as error:
            raise UnreachableError(f"cannot join group {settings.keys.name}: {in_words(error)}.") from error

    async def _check_claim(self, redelivery: Redelivery | None) -> None:
        """Reject a policy whose redelivered entries no worker could read. Raises redis-py's errors."""
        if redelivery is not Redelivery.IN_PLACE:
            return
        keys = self._context.settings.keys
        if not await knows_claim(self._context.commands, keys.quarantine):
            raise UnsupportedServerError(
                f"cannot join group {keys.name}: redelivery 'in-place' needs XREADGROUP … CLAIM (Redis 8.4) and the "
                "permission for it. Use redelivery 'stream' or 'retry-stream', or apply the rules that `reaper acl` "
                "prints."
            )

    async def _leave(self) -> None:
        """Settle the rest, log the jobs that stay pending, and remove our consumer."""
        drains = self._stop_asked.is_set() and not self.forced
        latest = max(self._drain_scope.deadline, anyio.current_time() + FLUSH_S) if drains else -inf
        self._flush_scope.deadline = max(latest, anyio.current_time() + QUICK_FLUSH_S)
        with self._flush_scope:
            await self._settlements.flush()
        self._context.telemetry.close()
        self._runner.expires = False
        await self._heartbeat.stop()
        self.counts.abandoned = left = len(self.in_hand())
        if left:
            logger.warning("worker leaves jobs pending: %s", fields(consumer=self.consumer, jobs=left))
        logger.info("worker stopped: %s", fields(consumer=self.consumer, **self.counts.facts()))
        with anyio.move_on_after(FAREWELL_S):
            await self._callbacks.drain()
            try:
                await self._adoption.leave()
            except (RedisError, OSError) as error:
                logger.debug("consumer was not removed: %s", fields(consumer=self.consumer, cause=error))
