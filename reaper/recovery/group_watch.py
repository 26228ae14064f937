"""Watches one stream/group pair for one term: takes it over, scans, recovers, and looks after its schedules.

The pending entries list is the truth, so a process may lose its own knowledge. One fact is not in that list: the
deliveries of a consumer that somebody deletes (`reaper.recovery.lost`).
"""

import logging
import random
from dataclasses import asdict

import anyio
from anyio.abc import TaskGroup
from redis.exceptions import RedisError

from reaper.election.elector import EndOfTerm
from reaper.recovery.context import TermContext
from reaper.recovery.lost import BEGINNING, LostDeliveries
from reaper.recovery.notes import MOVE_DUE, RELEASE_QUARANTINED, GroupNotes, settings_report
from reaper.recovery.rate import RateLimit
from reaper.recovery.retrying import insist, repeat
from reaper.recovery.source_watch import SourceWatch
from reaper.recovery.takeover import Takeover
from reaper.recovery.telemetry import GroupTelemetry
from reaper.recovery.verdict import Verdict
from reaper.recovery.writer import GroupWriter
from reaper.replicas import GroupReport
from reaper.settings import WatchedGroup
from workers.protocol.calls import Journal
from workers.protocol.calls.group_load import group_names
from workers.protocol.calls.refusals import Refusal, RefusalKind
from workers.protocol.calls.upkeep import Authority, Moved
from workers.protocol.log_fields import fields
from workers.protocol.meaning import Meaning, meaning_of
from workers.protocol.messages import Redelivery
from workers.runtime.clock import monotonic_ms
from workers.runtime.settings import to_ms
from workers.upkeep.cleanup import GroupCleanup
from workers.upkeep.quarantine import Quarantine
from workers.upkeep.schedules import Schedules

logger = logging.getLogger(__name__)

QUARANTINE_RETRY_S, SCHEDULES_RETRY_S = 0.5, 1.0
"""Pause after a call that failed, or that was refused."""
VERDICT_S = 60.0
"""How often an observer says what it has seen."""
LEASES_SERVED = 2
"""For so many leases embedded workers stand by after the last sign of a leader: another may be elected meanwhile."""
SPREAD = 0.2
"""Full scans come earlier than their interval by up to this part of it."""
GONE_RATIO, GONE_FLOOR, GONE_EVERY = 2, 1_000, 5
"""Timers outnumber pending entries by this ratio and number: a full scan now. Asked every n-th scan."""


class GroupWatch:
    """One pair, one term."""

    def __init__(
        self,
        context: TermContext,
        group: WatchedGroup,
        verdict: Verdict | None = None,
    ) -> None:
        """``verdict`` is where an observer notes what it sees, term after term."""
        self.group = group
        self._verdict = verdict
        self._context = context
        self._keys = group.keys
        self._settings = context.settings
        self._notes = GroupNotes(group, context.callbacks, context.changed)
        self._telemetry = GroupTelemetry(group, context.term.token)
        self._writer = GroupWriter(
            client=context.client,
            group=group,
            authority=Authority(
                namespace=context.settings.namespace,
                token=context.term.token,
                holder=context.term.holder,
                serves_for_ms=LEASES_SERVED * to_ms(context.settings.lease_ttl),
            ),
            journal=Journal.at(context.settings.journal, context.settings.journal_maxlen),
        )
        self._takeover = Takeover(context, group, self._writer, self._notes)
        retention = context.settings.consumer_retention
        self._cleanup = GroupCleanup(
            context.client, self._keys, self._writer.authority, self._writer.journal, retention
        )
        self._lost = LostDeliveries(self._writer)
        self._journal_at = BEGINNING
        self._groups_lost: int | None = None
        self._quarantine = Quarantine(self._writer.release_quarantined, self._notes.released)
        self._schedules = Schedules(
            self._writer.move_due,
            self._moved,
            self._quarantine.wake,
            serves_for_ms=self._writer.authority.serves_for_ms,
        )
        self._rate = RateLimit(context.settings.recovery_rate)
        self._sources: dict[str, SourceWatch] = {}
        self._scope = anyio.CancelScope()
        self._next_full = float("-inf")
        self._is_agreed = True
        self._has_scanned = False

    # ---- lifecycle

    async def run(self) -> None:
        """Take the group over, then watch it until cancelled or stopped. Redis errors never end it."""
        try:
            await self._watch()
        finally:
            self._notes.tell_moved()

    async def _watch(self) -> None:
        with self._scope:
            self._telemetry.watching()
            await insist(self._notes, "take over", self._take_over_in_turn)
            async with anyio.create_task_group() as tasks:
                self._add_source(self._keys.stream, tasks)
                tasks.start_soon(self._scan_loop, tasks)
                if self._verdict:
                    tasks.start_soon(self._tell_verdict, self._verdict)
                else:
                    tasks.start_soon(self._release_quarantined)
                    tasks.start_soon(self._look_after_schedules)

    async def _tell_verdict(self, verdict: Verdict) -> None:
        """Say once a minute, and at the end, what an observer has seen."""
        is_served = False
        try:
            while True:
                await anyio.sleep(VERDICT_S)
                try:
                    is_served = await self._writer.is_served(self._context.server_ms())
                except (RedisError, OSError):
                    logger.debug(
                        "cannot see whether the group is served: %s", fields(group=self._keys.pair), exc_info=True
                    )
                self._notes.tell_verdict(verdict, monotonic_ms(), is_served=is_served)
        finally:
            self._notes.tell_verdict(verdict, monotonic_ms(), is_served=is_served, at_the_end=True)

    def stop(self) -> None:
        """Stop watching: the settings of the group were changed, or it was removed."""
        self._scope.cancel()

    def _add_source(self, source: str, tasks: TaskGroup) -> None:
        watch = SourceWatch(
            self._context,
            self._writer,
            source,
            notes=self._notes,
            telemetry=self._telemetry,
            rate=self._rate,
            refused=self._call_refused,
            wake_quarantine=self._quarantine.wake,
            verdict=self._verdict,
        )
        self._sources[source] = watch
        tasks.start_soon(watch.run)

    # ---- taking over

    async def _take_over_in_turn(self) -> bool:
        async with self._context.room:
            return await self._takeover.attempt()

    # ---- scanning

    async def _scan_loop(self, tasks: TaskGroup) -> None:
        tails = 0
        while True:
            try:
                if not self._is_agreed:
                    await insist(self._notes, "write the agreement again", self._takeover.attempt)
                    self._is_agreed = True
                tails += 1
                async with self._context.room:
                    if anyio.current_time() >= self._next_full or await self._mostly_gone(tails):
                        await self._full_scan(tasks)
                        tails = 0
                    else:
                        await self._scan_tail()
                self._notes.scanned(self._context.server_ms())
            except (RedisError, OSError) as error:
                await self._scan_failed(error)
            await anyio.sleep(self._settings.scan_interval_of(self.group).total_seconds())

    async def _scan_tail(self) -> None:
        with self._telemetry.scanning("tail"):
            for source in list(self._sources.values()):
                await source.scanner.tail()

    async def _full_scan(self, tasks: TaskGroup) -> None:
        entries = 0
        await self._watch_retry_stream(tasks)
        journal_at = await self._lost.journal_position()
        with self._telemetry.scanning("full"):
            for source in list(self._sources.values()):
                entries += await source.scanner.full()
        # Groups that were taken over together are spread over the interval.
        interval_s = self._settings.full_scan_interval.total_seconds()
        self._next_full = anyio.current_time() + interval_s * random.uniform(1 - SPREAD, 1)
        self._notes.scanned_fully(self._context.server_ms(), entries)
        if not self._settings.observe:
            await self._note_lost()
            for source in self._sources.values():
                source.scanner.forget_gone()
            self._journal_at = journal_at
            self._quarantine.wake()  # some may have been quarantined in an earlier term
            await self._report_lost()
        if self._verdict:
            if not self._has_scanned:
                timers = [source.timers for source in self._sources.values()]
                self._verdict.resumed({entry_id for one in timers for entry_id in one.ids()})
            self._notes.verdict(self._verdict)
        self._has_scanned = True

    async def _note_lost(self) -> None:
        """Keep house, and note the deliveries whose consumer, or group, was deleted since the last full scan."""
        looks = [await self._lost.look(key, one.scanner.gone_by_consumer()) for key, one in self._sources.items()]
        if self._groups_lost is None:
            self._groups_lost = await self._writer.groups_lost()
        kept = await self._cleanup.tidy()
        is_remade = False
        if not isinstance(kept, Refusal):
            self._sources[self._keys.stream].scanner.forget_holders(kept.deleted)
            is_remade = kept.groups_lost > self._groups_lost  # also if an earlier call found it whose reply was lost
            self._groups_lost = kept.groups_lost
            for consumer in kept.lost:
                self._notes.consumer_was_lost(consumer)
        if is_remade:
            self._notes.group_was_lost()
            self._telemetry.lost_group()
        for look in looks:
            self._lost.note(look, self._journal_at, is_remade=is_remade and look.source == self._keys.stream)

    async def _report_lost(self) -> None:
        """Report those of them that are lost by now."""
        reports = await self._lost.report(self._sources)
        if isinstance(reports, Refusal):
            self._call_refused(reports)
            return
        for report in reports:
            self._notes.lost(report)
            self._telemetry.lost_deliveries(len(report.ids), is_certain=report.is_certain)

    async def _watch_retry_stream(self, tasks: TaskGroup) -> None:
        """Watch the group's retry stream while it exists, whatever the policy is now."""
        retry = self._keys.retry
        # A stream without the group is what a copy makes that was written just after somebody deleted the stream.
        exists = self.group.group in await group_names(self._context.client, retry)
        if not exists and self.group.redelivery is Redelivery.RETRY_STREAM and not self._settings.observe:
            exists = await self._takeover.attempt()  # makes the stream and its group
        if exists and retry not in self._sources:
            self._add_source(retry, tasks)
        elif not exists and retry in self._sources:
            self._sources.pop(retry).stop()

    async def _mostly_gone(self, tails: int) -> bool:
        """Tell whether most timers are for settled deliveries: nothing tells the leader of an XACK."""
        timers = sum(len(source.timers) for source in self._sources.values())
        if timers < GONE_FLOOR or tails % GONE_EVERY:
            return False
        pending = 0
        for source in self._sources:
            summary = await self._context.client.execute_command("XPENDING", source, self.group.group)
            pending += int(summary[0])
        return timers > pending * GONE_RATIO + GONE_FLOOR

    async def _scan_failed(self, error: BaseException) -> None:
        if meaning_of(error) is not Meaning.NO_GROUP:
            self._notes.failed("scan", error)
            return
        if f"'{self._keys.retry}'" in str(error):
            self._next_full = anyio.current_time()  # it was deleted: the next full scan drops it or makes it anew
            return
        self._notes.refused(
            "no_group", f"the stream or its group does not exist (yet): {error}. Create it, or set recreate_groups"
        )
        if self._settings.recreate_groups and not self._settings.observe:
            await insist(self._notes, "recreate the group", self._takeover.attempt)
            self._next_full = anyio.current_time()

    # ---- quarantined jobs and schedules

    def _moved(self, moved: Moved) -> None:
        self._notes.moved(moved)
        if not moved.agreed and self._is_agreed:
            logger.warning("group settings were lost and are written again: %s", fields(group=self._keys.pair))
            self._is_agreed = False

    async def _release_quarantined(self) -> None:
        await repeat(self._notes, RELEASE_QUARANTINED, self._quarantine.step, self._call_refused, QUARANTINE_RETRY_S)

    async def _look_after_schedules(self) -> None:
        with self._schedules.woken_by(self._context.notices, self._keys):
            await repeat(self._notes, MOVE_DUE, self._schedules.step, self._call_refused, SCHEDULES_RETRY_S)

    def _call_refused(self, refusal: Refusal) -> None:
        """Act on a call that did nothing."""
        self._telemetry.refused(refusal)
        if refusal.kind is RefusalKind.STALE:
            logger.warning(
                "write rejected, a newer leader holds the fence: %s",
                fields(group=self._keys.pair, token=self._context.term.token, fence=refusal.detail),
            )
            self._context.end(EndOfTerm.STALE)
        elif refusal.kind is RefusalKind.PAUSED:
            self._notes.paused()
        elif refusal.kind is RefusalKind.UNKNOWN:
            self._is_agreed = False
        elif refusal.wait:
            self._notes.waits(refusal.wait)
        else:
            self._notes.layout(refusal.detail)

    # ---- status

    @property
    def error(self) -> str:
        """What cannot be done now, and why; '' where everything works. For any thread."""
        return self._notes.tally.error

    def report(self) -> GroupReport:
        """Return what is registered for ``reaper status``."""
        now, tally = monotonic_ms(), self._notes.tally
        timers = [source.timers for source in self._sources.values()]
        dues = [due for one in timers if (due := one.next_due()) is not None]
        return settings_report(
            self._settings,
            self.group,
            timers=sum(map(len, timers)),
            next_due_ms=max(0, min(dues) - now) if dues else None,
            late_ms=max(0, now - min(dues)) if dues else 0,
            **asdict(tally),
        )
