"""The workers of an embedded group do together the work that a replica does in reaper mode.

They recover stalled deliveries, make due jobs ready, release quarantined jobs, and note the group's position. Every
worker makes the calls. The scripts do each thing once, and do not act while a reaper serves the group. If metrics are
collected, every worker also reads the values of the group's gauges.

No worker polls for due jobs. The script returns when the next job is due, and a process that schedules an earlier one
wakes the workers. Both are hints, so each worker also calls the script every few seconds.
"""

import logging
import random
from collections.abc import Awaitable, Callable

import anyio
from redis.exceptions import RedisError

from workers.embedded.autoclaim import RECOVERING, Autoclaim
from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.reading import Reader
from workers.protocol.calls.declined import Declined, DeclineReason, explained
from workers.protocol.calls.group_moves import GroupMoves, look_at_group
from workers.protocol.log_fields import fields
from workers.protocol.messages import text
from workers.runtime.clock import monotonic
from workers.runtime.notices import Notices, notices_client
from workers.runtime.pauses import pause_s
from workers.telemetry import names as telemetry
from workers.telemetry.gauges import LOOK_INTERVAL_S, GroupGauges
from workers.upkeep.cleanup import GroupCleanup
from workers.upkeep.pace import MovePace

logger = logging.getLogger(__name__)

LATEST_LOOK_S = 5.0
"""The longest pause between two calls that move jobs, in case a hint is missed."""
JITTER_S = 0.01
"""The longest random addition to a pause, so that the workers of a group do not all call in the same instant."""
MAINTENANCE_INTERVAL_S = 30.0
DECLINED_S = 1.0
"""Pause after a declined call, unless its reply contains the time for which recovery waits."""
MOVING, TIDYING, MEASURING = "moving due jobs", "maintaining the group", "reading the values of the gauges"


class Upkeep(WorkerPart):
    """One worker's part in the upkeep of its group."""

    def __init__(self, context: WorkerContext, reader: Reader) -> None:
        super().__init__(context)
        self._reader = reader
        self._keys = context.settings.keys
        self._moves = GroupMoves(self._keys, self._settings.journal_limit)
        self._hint = anyio.Event()
        self._pace = MovePace()
        self._problem = ""
        self._autoclaim = Autoclaim(context, reader, self.wake)
        self._cleanup = GroupCleanup(context.commands, self._moves)
        self._gauges = GroupGauges(lambda: context.membership.recovers, dict)

    def wake(self) -> None:
        """Move jobs now, because a job was scheduled earlier than the others, or quarantined."""
        self._hint.set()

    async def run(self) -> None:
        """Do the upkeep until cancelled, whenever no reaper serves the group."""
        client = notices_client(self._settings.redis_url, self._keys.stream)
        notices = Notices(client)
        notices.add(self.wake, (self._keys.schedule, self._keys.stream_schedule))
        self._telemetry.lost()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(notices.run)
                tasks.start_soon(self._repeat, RECOVERING, self._autoclaim.scan)
                tasks.start_soon(self._repeat, MOVING, self._move_due)
                tasks.start_soon(self._repeat, TIDYING, self._maintain)
                if telemetry.is_measuring():
                    tasks.start_soon(self._show_gauges)
        finally:
            self._autoclaim.recovery_log.log(at_the_end=True)
            with anyio.CancelScope(shield=True):
                await client.aclose()

    async def _repeat(self, part: str, step: Callable[[], Awaitable[Declined | None]]) -> None:
        """Repeat ``step``, which also waits for its next time. Waits for the end of outages."""
        failures = 0
        while True:
            if not self._membership.recovers:
                self._reporter.works(part)  # a reaper makes the call now, so its denial is no obstacle any more
                await self._membership.joined.wait()
                continue
            try:
                declined = await step()
                if declined:
                    await self._declined(part, declined)
                failures = 0
            except (RedisError, OSError) as error:
                failures += 1
                self._reporter.failed(part, error)
                await self._pause(part, pause_s(failures))

    async def _declined(self, part: str, declined: Declined) -> None:
        if declined.reason in (DeclineReason.FENCED, DeclineReason.UNKNOWN):  # a reaper serves the group now
            await self._membership.join()
            return
        await self._pause(part, declined.wait.left_ms / 1000 if declined.wait else DECLINED_S * random.uniform(1, 1.5))

    async def _pause(self, part: str, until_next_s: float) -> None:
        if part == RECOVERING:
            self._reader.scan_at = monotonic() + until_next_s
        await anyio.sleep(until_next_s)

    def _log_problem(self, why: str) -> None:
        """Log once why jobs cannot be moved."""
        if why != self._problem:
            cause = explained(why)
            logger.error("cannot start scheduled jobs, retrying: %s", fields(group=self._keys.name, cause=cause))
        self._problem = why

    # ---- scheduled and quarantined jobs

    async def _move_due(self) -> Declined | None:
        """Make due jobs ready, release quarantined jobs, and wait until the next call. Return why it was declined."""
        self._hint = anyio.Event()  # before the call, because a job that is scheduled after it wakes us again
        moved = await self._moves.move_due(self._commands)
        if isinstance(moved, Declined):
            return moved
        self._reporter.works(MOVING)
        if moved.held:
            self._log_problem(text(moved.why))
        if moved.released:
            job_id, new_entry = map(text, moved.released)
            self._reporter.recovered(job_id, new_entry=new_entry, reason="released")
        pause_s = self._pace.pause_after(moved)
        if pause_s:
            pause_s += random.uniform(0, JITTER_S)
        with anyio.move_on_after(LATEST_LOOK_S if pause_s is None else min(pause_s, LATEST_LOOK_S)):
            await self._hint.wait()
        return None

    # ---- maintenance

    async def _maintain(self) -> Declined | None:
        kept = await self._cleanup.tidy(self._settings.consumer_retention)
        if isinstance(kept, Declined):
            return kept
        self._reporter.works(TIDYING)
        if self._cleanup.is_remade:
            self._reporter.group_was_lost()
        for consumer in kept.lost:
            self._reporter.consumer_was_lost(consumer)
        await anyio.sleep(MAINTENANCE_INTERVAL_S * random.uniform(0.9, 1.1))
        return None

    # ---- gauges

    async def _show_gauges(self) -> None:
        with self._gauges.shown():
            await self._repeat(MEASURING, self._look)

    async def _look(self) -> None:
        """Read how many jobs of the group wait, run, and are dead-lettered."""
        try:
            self._gauges.seen = {self._keys: await look_at_group(self._commands, self._keys)}
        except (RedisError, OSError):
            self._gauges.seen = {}
            raise
        self._reporter.works(MEASURING)
        await anyio.sleep(LOOK_INTERVAL_S)
