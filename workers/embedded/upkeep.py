"""What the workers of an embedded group do for all of it, as a leader does in the other mode.

Jobs that are due become ready, suspects are let out, and the group's position is noted. Every worker does it: the
scripts make sure that each thing happens once, and that none happens where a reaper serves the group. Where metrics
are collected, every worker also looks at what the gauges of the group show.
"""

import logging
import random
from collections.abc import Awaitable, Callable
from math import inf

import anyio
from redis.exceptions import RedisError

from workers.loop.context import WorkerContext
from workers.protocol.calls.refusals import Refusal, RefusalKind, explained
from workers.protocol.calls.sight import look_at_group
from workers.protocol.calls.upkeep import AGREEMENT, Released, keep_house, move_due, release_suspects
from workers.protocol.events import EventName
from workers.protocol.messages import text
from workers.runtime.contact import Contact
from workers.runtime.notices import Notices, notices_client
from workers.runtime.pauses import pause_s
from workers.runtime.settings import to_ms
from workers.telemetry import names as telemetry
from workers.telemetry.gauges import LOOK_INTERVAL_S, GroupGauges

logger = logging.getLogger(__name__)

LATEST_LOOK_S = 5.0
"""Insurance: the schedules are looked at least this often, should a notice ever be missed."""
DUE_JITTER_S = 0.01
SUSPECTS_POLL_S = (0.02, 0.5)
"""How often released suspects are looked at: quickly while they settle, slowly while a long one runs."""
HOUSE_INTERVAL_S = 30.0
LOOKING = "looking at the group for the metrics"


class Upkeep:
    """One worker's part in the upkeep of its group."""

    def __init__(self, context: WorkerContext, contact: Contact) -> None:
        self._client = context.commands
        self._settings = context.settings
        self._keys = context.settings.keys
        self._membership = context.membership
        self._reporter = context.reporter
        self._journal = context.journal(EventName.RECOVERED)
        self._noticed = anyio.Event()
        self._suspected = anyio.Event()
        self._told = ""
        self._gauges = GroupGauges(lambda: context.membership.recovers, lambda _: contact.in_grace)

    async def run(self) -> None:
        """Look after the group until cancelled, whenever it is the workers' to look after."""
        client = notices_client(self._settings.redis_url)
        notices = Notices(client)
        channels = (self._keys.schedule, self._keys.stream_schedule)
        try:
            with notices.waking(self._notice, channels):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(notices.run)
                    tasks.start_soon(self._repeat, "moving what is due", self._move_due)
                    tasks.start_soon(self._repeat, "letting suspects out", self._release_suspects)
                    tasks.start_soon(self._repeat, "keeping house", self._keep_house)
                    if telemetry.is_measuring():
                        tasks.start_soon(self._show_gauges)
        finally:
            with anyio.CancelScope(shield=True):
                await client.aclose()

    async def _repeat(self, part: str, action: Callable[[], Awaitable[None]]) -> None:
        """Repeat ``action``, which also waits until it is time again; outages are waited out."""
        failures = 0
        while True:
            if not self._membership.recovers:
                await self._membership.joined.wait()
                continue
            try:
                await action()
                failures = 0
            except _ServedByReaperError:
                await self._hear_of_reaper(part)
            except (RedisError, OSError) as error:
                failures += 1
                self._reporter.failed(part, error)
                await anyio.sleep(pause_s(failures))

    async def _hear_of_reaper(self, part: str) -> None:
        try:
            await self._membership.join()
        except (RedisError, OSError) as error:
            self._reporter.failed(part, error)
            await anyio.sleep(pause_s(1))

    # ---- what is scheduled

    def _notice(self) -> None:
        self._noticed.set()

    async def _move_due(self) -> None:
        """Make ready what is due, and wait until more is. Who schedules something earlier wakes us."""
        self._noticed = anyio.Event()  # before the call: what is scheduled after it wakes us again
        moved = await move_due(
            self._client, self._keys, AGREEMENT, self._membership.agreement.redelivery, self._journal
        )
        if isinstance(moved, Refusal):
            raise _ServedByReaperError
        self._reporter.works("moving what is due")
        if moved.held:
            self._log_once(f"scheduled jobs cannot be made ready, and are tried again: {explained(moved.why)}")
        if moved.parked:
            self.suspects_wait()
        next_due_s = inf if moved.next_due_ms is None else moved.next_due_ms / 1000
        if next_due_s > 0:
            with anyio.move_on_after(min(LATEST_LOOK_S, next_due_s + random.uniform(0, DUE_JITTER_S))):
                await self._noticed.wait()

    # ---- suspects

    def suspects_wait(self) -> None:
        """Note that suspects are parked, or out."""
        self._suspected.set()

    async def _release_suspects(self) -> None:
        """Let suspects out one by one while there are any; wait while there are none."""
        quick, slow = SUSPECTS_POLL_S
        more, pause = True, quick
        while more:
            self._suspected = anyio.Event()
            released = await release_suspects(
                self._client, self._keys, AGREEMENT, self._membership.agreement.redelivery, self._journal
            )
            if isinstance(released, Refusal):
                if released.kind is RefusalKind.STALE:
                    raise _ServedByReaperError
                if released.kind is RefusalKind.REFUSED:
                    self._log_once(f"suspects stay parked: {explained(released.detail)}")
                moved = False
            else:
                more, moved = self._learn_of_suspects(released)
            pause = quick if moved else min(pause * 1.5, slow)
            if more:
                with anyio.move_on_after(pause * random.uniform(1, 1.5)):
                    await self._suspected.wait()
        await self._suspected.wait()

    def _learn_of_suspects(self, released: Released) -> tuple[bool, bool]:
        """Return whether there is more to watch, and whether anything moved."""
        self._reporter.works("letting suspects out")
        for job_id, new_entry in released.jobs:
            self._reporter.recovered(text(job_id), new_entry=text(new_entry), reason="suspect")
        return released.parked + released.out > 0, bool(released.jobs or released.settled)

    # ---- the house

    async def _keep_house(self) -> None:
        """Note where the group stands, and delete silent consumers if asked to."""
        retention = self._settings.consumer_retention
        kept = await keep_house(self._client, self._keys, AGREEMENT, silence_ms=to_ms(retention) if retention else None)
        if isinstance(kept, Refusal):
            raise _ServedByReaperError
        self._reporter.works("keeping house")
        if kept.consumers_deleted:
            logger.info("%s: deleted %d silent consumers", self._keys.pair, kept.consumers_deleted)
        await anyio.sleep(HOUSE_INTERVAL_S * random.uniform(0.9, 1.1))

    # ---- what is measured

    async def _show_gauges(self) -> None:
        with self._gauges.shown():
            await self._repeat(LOOKING, self._look)

    async def _look(self) -> None:
        """See how many jobs wait, run, and are given up. Others see the same: it is the group's, not ours."""
        try:
            self._gauges.seen = {self._keys: await look_at_group(self._client, self._keys)}
        except (RedisError, OSError):
            self._gauges.seen = {}
            raise
        self._reporter.works(LOOKING)
        await anyio.sleep(LOOK_INTERVAL_S)

    # ---- helpers

    def _log_once(self, problem: str) -> None:
        if problem != self._told:
            self._told = problem
            logger.error("%s: %s", self._keys.pair, problem)


class _ServedByReaperError(Exception):
    """A reaper has taken the group over: it is not the workers' to look after."""
