"""The workers of an embedded group do together what a replica does in reaper mode.

Jobs that are due become ready, quarantined jobs are released, and the group's position is noted. Every worker does it.
The scripts do each thing once, and do not act while a reaper serves the group. If metrics are collected, every worker
also reads the values of the group's gauges.
"""

import logging
import random
from collections.abc import Awaitable, Callable

import anyio
from redis.exceptions import RedisError

from workers.loop.context import WorkerContext, WorkerPart
from workers.protocol.calls.group_load import look_at_group
from workers.protocol.calls.group_moves import DueMoves, GroupMoves
from workers.protocol.calls.refusals import Refusal, RefusalKind, explained
from workers.protocol.log_fields import fields
from workers.protocol.messages import text
from workers.runtime.notices import Notices, notices_client
from workers.runtime.pauses import pause_s
from workers.telemetry import names as telemetry
from workers.telemetry.gauges import LOOK_INTERVAL_S, GroupGauges
from workers.upkeep.cleanup import GroupCleanup
from workers.upkeep.quarantine import Quarantine
from workers.upkeep.schedules import Schedules

logger = logging.getLogger(__name__)

DUE_JITTER_S, QUARANTINE_JITTER = 0.01, 0.5
"""So that all the workers of a group do not look in the same instant."""
HOUSE_INTERVAL_S = 30.0
REFUSED_S = 0.5
"""Pause after a call that was refused."""
MOVING, RELEASING, TIDYING = "moving what is due", "releasing quarantined jobs", "keeping house"
LOOKING = "looking at the group for the metrics"


class Upkeep(WorkerPart):
    """One worker's part in the upkeep of its group."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._keys = context.settings.keys
        self._moves = GroupMoves.of(self._keys, context.journal)
        self.quarantine = Quarantine(self._move_due, self._released, jitter=QUARANTINE_JITTER)
        self._schedules = Schedules(self._move_due, self._moved, self.quarantine.wake, jitter_s=DUE_JITTER_S)
        self.quarantine.wake()  # some jobs may have been quarantined before
        self._problem = ""
        self._cleanup = GroupCleanup(context.commands, self._moves, context.settings.consumer_retention)
        self._gauges = GroupGauges(lambda: context.membership.recovers, dict)

    async def run(self) -> None:
        """Look after the group until cancelled, whenever it is the workers' to look after."""
        client = notices_client(self._settings.redis_url, self._keys.stream)
        notices = Notices(client)
        self._reporter.watches_losses()
        try:
            with self._schedules.woken_by(notices, self._keys):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(notices.run)
                    tasks.start_soon(self._repeat, MOVING, self._schedules.step)
                    tasks.start_soon(self._repeat, RELEASING, self.quarantine.step)
                    tasks.start_soon(self._repeat, TIDYING, self._keep_house)
                    if telemetry.is_measuring():
                        tasks.start_soon(self._show_gauges)
        finally:
            with anyio.CancelScope(shield=True):
                await client.aclose()

    async def _repeat(self, part: str, step: Callable[[], Awaitable[Refusal | None]]) -> None:
        """Repeat ``step``, which also waits for its next time. Outages are waited out."""
        failures = 0
        while True:
            if not self._membership.recovers:
                await self._membership.joined.wait()
                continue
            try:
                refusal = await step()
                if refusal:
                    await self._refused(refusal)
                failures = 0
            except (RedisError, OSError) as error:
                failures += 1
                self._reporter.failed(part, error)
                await anyio.sleep(pause_s(failures))

    async def _refused(self, refusal: Refusal) -> None:
        if refusal.kind in (RefusalKind.STALE, RefusalKind.UNKNOWN):  # a reaper serves the group now
            await self._membership.join()
            return
        if refusal.kind is RefusalKind.REFUSED:
            cause = explained(refusal.detail)
            if self._is_new(cause):
                logger.error("jobs stay quarantined: %s", fields(group=self._keys.pair, cause=cause))
        await anyio.sleep(REFUSED_S * random.uniform(1, 1.5))

    # ---- schedules

    async def _move_due(self) -> DueMoves | Refusal:
        return await self._moves.move_due(self._commands)

    def _moved(self, moved: DueMoves) -> None:
        self._reporter.works(MOVING)
        if moved.held:
            cause = explained(moved.why)
            if self._is_new(cause):
                logger.error("cannot start scheduled jobs, retrying: %s", fields(group=self._keys.pair, cause=cause))

    # ---- quarantined jobs

    def _released(self, released: DueMoves) -> None:
        self._reporter.works(RELEASING)
        for job_id, new_entry in released.jobs:
            self._reporter.recovered(text(job_id), new_entry=text(new_entry), reason="released")

    # ---- the house

    async def _keep_house(self) -> Refusal | None:
        kept = await self._cleanup.tidy()
        if isinstance(kept, Refusal):
            return kept
        self._reporter.works(TIDYING)
        if kept.is_remade:
            self._reporter.group_was_lost()
        for consumer in kept.lost:
            self._reporter.consumer_was_lost(consumer)
        await anyio.sleep(HOUSE_INTERVAL_S * random.uniform(0.9, 1.1))
        return None

    # ---- gauges

    async def _show_gauges(self) -> None:
        with self._gauges.shown():
            await self._repeat(LOOKING, self._look)

    async def _look(self) -> None:
        """See how many jobs wait, run, and are given up.

        The values belong to the group, so all workers see the same.
        """
        try:
            self._gauges.seen = {self._keys: await look_at_group(self._commands, self._keys)}
        except (RedisError, OSError):
            self._gauges.seen = {}
            raise
        self._reporter.works(LOOKING)
        await anyio.sleep(LOOK_INTERVAL_S)

    # ---- helpers

    def _is_new(self, problem: str) -> bool:
        is_new = problem != self._problem
        self._problem = problem
        return is_new
