"""Serves one stream/group pair for one term: extends its lease, scans, recovers, and looks after its schedules.

The pending entries list is the truth, so a process may lose its own knowledge. One fact is not in that list: the
deliveries of a consumer that somebody deletes (`reaper.recovery.lost`).
"""

import logging
import random
from collections.abc import Awaitable, Callable, Container, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup
from redis.exceptions import RedisError, ResponseError

from reaper.failpoints import failpoint
from reaper.lease import PAGE, EndOfTerm, GroupLease, Term
from reaper.reasons import FEW_GROUPS
from reaper.recovery.context import ReplicaContext
from reaper.recovery.lost import BEGINNING, LostDeliveries
from reaper.recovery.notes import MOVE_DUE, RELEASE_QUARANTINED, GroupNotes, settings_report
from reaper.recovery.rate import RateLimit
from reaper.recovery.source_watch import SourceWatch
from reaper.recovery.telemetry import GroupTelemetry
from reaper.recovery.verdict import Verdict
from reaper.recovery.writer import GroupWriter
from reaper.replicas import GroupReport
from workers.protocol.calls.group_load import group_names
from workers.protocol.calls.group_moves import Authority
from workers.protocol.calls.refusals import Refusal, RefusalKind
from workers.protocol.log_fields import fields
from workers.protocol.meaning import Meaning, meaning_of
from workers.protocol.messages import Redelivery
from workers.runtime.clock import monotonic_ms
from workers.upkeep.cleanup import GroupCleanup
from workers.upkeep.quarantine import Quarantine
from workers.upkeep.schedules import Schedules

logger = logging.getLogger(__name__)

QUARANTINE_RETRY_S, SCHEDULES_RETRY_S = 0.5, 1.0
"""Pause after a call that failed, or that was refused."""
VERDICT_S = 60.0
"""How often an observer says what it has seen."""
SCHEDULES_LOOK_S = 60.0
"""Each tick says when a scheduled job is due. So the schedules are looked at without a hint only so often."""
FULL_RETRY_S = 1.0
"""The shortest time between two full scans."""
SPREAD = 0.2
"""Full scans come earlier than their interval by up to this part of it."""


class GroupWatch:
    """One pair, one term. `run` must be running."""

    def __init__(
        self,
        context: ReplicaContext,
        lease: GroupLease,
        term: Term,
        end: Callable[[EndOfTerm], None],
        notes: GroupNotes,
        verdict: Verdict | None = None,
    ) -> None:
        """``end`` ends the term. ``verdict`` is where an observer notes what it sees, term after term."""
        self.group = group = lease.group
        self._context = context
        self._lease = lease
        self._term = term
        self._end = end
        self._notes = notes
        self._verdict = verdict
        self._keys = group.keys
        self._telemetry = GroupTelemetry(group, term.token, by_group=context.watched <= FEW_GROUPS)
        self._writer = GroupWriter(context.client, group, Authority(term.holder, term.token), lease.journal)
        self._cleanup = GroupCleanup(context.client, self._writer.moves, context.settings.consumer_retention)
        self._lost = LostDeliveries(self._writer)
        self._journal_at = BEGINNING
        self._groups_lost: int | None = None
        self._deleted: Container[bytes] = ()
        """Consumers that the latest cleanup found deleted. The scan before it may have seen their entries."""
        self._quarantine = Quarantine(self._writer.release_quarantined, notes.released)
        self._schedules = Schedules(
            self._writer.move_due, notes.moved, self._wake_quarantine, latest_look_s=SCHEDULES_LOOK_S
        )
        self._rate = RateLimit(context.settings.recovery_rate)
        self._sources: dict[str, SourceWatch] = {}
        self._tasks: TaskGroup | None = None
        self._begun: list[object] = []
        self._next_full_s = self._scanned_s = float("-inf")
        self._is_scanning = False
        self._has_scanned = False
        self._interval_s = context.settings.tick_of(group).total_seconds()

    # ---- lifecycle

    async def run(self) -> None:
        """Serve the group until cancelled. Redis errors never end it."""
        self._telemetry.watching()
        channels = self._keys.schedule, self._keys.stream_schedule
        try:
            async with anyio.create_task_group() as self._tasks:
                with self._context.notices.waking(self._wake_schedules, channels):
                    self._add_source(self._keys.stream)
                    if self._verdict:
                        self._tasks.start_soon(self._tell_verdict, self._verdict)
                    await self._look_again_and_again()
        finally:
            self._notes.tell_moved()

    def _need(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin ``work`` if that was not done yet. In an idle group, only the ticks have a task."""
        if self._tasks and work not in self._begun:
            self._begun.append(work)
            self._tasks.start_soon(work)

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

    def _add_source(self, source: str) -> None:
        watch = SourceWatch(
            self._context,
            self._writer,
            source,
            notes=self._notes,
            telemetry=self._telemetry,
            rate=self._rate,
            refused=self._call_refused,
            wake_quarantine=self._wake_quarantine,
            verdict=self._verdict,
        )
        watch.is_needed = partial(self._need, watch.run)
        self._sources[source] = watch

    # ---- the tick: the lease, the beat, and what is new

    async def _look_again_and_again(self) -> None:
        while True:
            pause_s = self._interval_s * random.uniform(0.9, 1)
            if anyio.current_time() >= self._next_full_s and not self._is_scanning and self._tasks:
                self._is_scanning = True
                self._tasks.start_soon(self._scan_everything)
            try:
                if self._verdict:
                    for source in list(self._sources.values()):
                        await source.scanner.tail()
                else:
                    await self._tick()
                self._notes.scanned(self._context.server_ms())
            except (RedisError, OSError) as error:
                pause_s /= 3
                self._scan_failed(error)
            await anyio.sleep(pause_s)

    async def _tick(self) -> None:
        """Extend the lease, and read what is new."""
        main, retry = self._sources[self._keys.stream].scanner, self._sources.get(self._keys.retry)
        failpoint("tick.before")
        with main.page_under_way(), retry.scanner.page_under_way() if retry else nullcontext():
            tick = await self._lease.tick(self._term.holder, main.after, retry.scanner.after if retry else b"")
            if tick is None:
                self._lease_is_lost("tick")
                return
            main.saw(tick.rows)
            if retry:
                retry.scanner.saw(tick.retry_rows)
        if not tick.is_agreed:
            logger.warning("group settings were lost and are written again: %s", fields(group=self._keys.pair))
            await self._write_settings()
        if tick.due_ms >= 0:
            self._schedules.due_in(tick.due_ms)
            self._need(self._look_after_schedules)
        if tick.error:
            raise ResponseError(tick.error)
        if len(tick.rows) == PAGE:
            await main.tail()
        if retry and len(tick.retry_rows) == PAGE:
            await retry.scanner.tail()

    async def _write_settings(self) -> None:
        """Write the settings of the group again, and create a group that is missing, if that is wanted."""
        term, recreate = self._term, self._context.settings.recreate_groups
        taken = await self._lease.take(term.holder, recreate=recreate, token=term.token)
        if taken.token:
            self._notes.took(taken)
        else:
            self._lease_is_lost("write the settings")

    def _lease_is_lost(self, doing: str) -> None:
        logger.warning(
            "the lease of the group is not ours any more: %s",
            fields(group=self._keys.pair, token=self._term.token, doing=doing),
        )
        self._end(EndOfTerm.NOT_OURS)

    def _scan_failed(self, error: BaseException) -> None:
        if meaning_of(error) is not Meaning.NO_GROUP:
            self._notes.failed("scan", error)
            return
        # A full scan drops or makes the retry stream, and makes the group if that is wanted.
        self._next_full_s = min(self._next_full_s, self._scanned_s + FULL_RETRY_S)
        if f"'{self._keys.retry}'" in str(error):
            return
        self._notes.refused(
            "no_group", f"the stream or its group does not exist (yet): {error}. Create it, or set recreate_groups"
        )

    # ---- full scans

    async def _scan_everything(self) -> None:
        # Groups that were taken together are spread over the interval.
        pause_s = self._context.settings.full_scan_interval.total_seconds() * random.uniform(1 - SPREAD, 1)
        try:
            async with self._context.room:
                await self._full_scan()
            self._notes.worked("scan everything")
        except (RedisError, OSError) as error:
            pause_s = min(pause_s, FULL_RETRY_S)
            if meaning_of(error) is Meaning.NO_GROUP and self._recreates:
                await self._try_to_write_settings()
            elif meaning_of(error) is not Meaning.NO_GROUP:  # else the tick tells of it
                self._notes.failed("scan everything", error)
        finally:
            self._scanned_s = anyio.current_time()
            self._next_full_s = self._scanned_s + pause_s
            self._is_scanning = False

    @property
    def _recreates(self) -> bool:
        return self._context.settings.recreate_groups and not self._verdict

    async def _try_to_write_settings(self) -> None:
        try:
            await self._write_settings()
        except (RedisError, OSError) as error:
            self._notes.failed("recreate the group", error)
        else:
            self._notes.worked("recreate the group")

    async def _full_scan(self) -> None:
        entries = 0
        await self._watch_retry_stream()
        journal_at = await self._lost.journal_position()
        with self._telemetry.scanning("full"):
            for source in list(self._sources.values()):
                entries += await source.scanner.full()
        self._notes.scanned_fully(self._context.server_ms(), entries)
        if self._verdict:
            if not self._has_scanned:
                timers = [source.timers for source in self._sources.values()]
                self._verdict.resumed({entry_id for one in timers for entry_id in one.ids()})
            self._notes.verdict(self._verdict)
        else:
            await self._note_lost()
            for source in self._sources.values():
                source.scanner.forget_gone()
            self._journal_at = journal_at
            if not self._has_scanned:
                self._wake_quarantine()  # some may have been released in an earlier term
            await self._report_lost()
        self._has_scanned = True

    async def _note_lost(self) -> None:
        """Keep house, and note the deliveries whose consumer, or group, was deleted since the last full scan."""
        looks = [await self._lost.look(key, one.scanner.gone_by_consumer()) for key, one in self._sources.items()]
        if self._groups_lost is None:
            self._groups_lost = await self._writer.groups_lost()
        kept = await self._cleanup.tidy()
        is_remade, deleted = False, self._deleted
        if not isinstance(kept, Refusal):
            self._sources[self._keys.stream].scanner.forget_holders(kept.deleted)
            is_remade = kept.groups_lost > self._groups_lost  # also if an earlier call found it whose reply was lost
            self._groups_lost, self._deleted = kept.groups_lost, kept.lost
            for consumer in kept.lost:
                self._notes.consumer_was_lost(consumer)
        if is_remade:
            self._notes.group_was_lost()
            self._telemetry.lost_group()
        for look in looks:
            of_stream = look.source == self._keys.stream
            self._lost.note(look, self._journal_at, is_remade=is_remade and of_stream, deleted=deleted)

    async def _report_lost(self) -> None:
        """Report those of them that are lost by now."""
        reports = await self._lost.report(self._sources)
        if isinstance(reports, Refusal):
            self._call_refused(reports)
            return
        for report in reports:
            self._notes.lost(report)
            self._telemetry.lost_deliveries(len(report.ids), is_certain=report.is_certain)

    async def _watch_retry_stream(self) -> None:
        """Watch the group's retry stream while it exists, whatever the policy is now."""
        retry = self._keys.retry
        # A stream without the group is what a copy makes that was written just after somebody deleted the stream.
        exists = self.group.group in await group_names(self._context.client, retry)
        if not exists and self.group.redelivery is Redelivery.RETRY_STREAM and not self._verdict:
            await self._write_settings()  # makes the stream and its group
            exists = True
        if exists and retry not in self._sources:
            self._add_source(retry)
        elif not exists and retry in self._sources:
            self._sources.pop(retry).stop()

    # ---- quarantined jobs and schedules

    async def _release_quarantined(self) -> None:
        await self._repeat(RELEASE_QUARANTINED, self._quarantine.step, QUARANTINE_RETRY_S)

    async def _look_after_schedules(self) -> None:
        await self._repeat(MOVE_DUE, self._schedules.step, SCHEDULES_RETRY_S)

    def _wake_quarantine(self) -> None:
        self._quarantine.wake()
        self._need(self._release_quarantined)

    def _wake_schedules(self) -> None:
        if not self._verdict:
            self._schedules.wake()
            self._need(self._look_after_schedules)

    async def _repeat(self, what: str, step: Callable[[], Awaitable[Refusal | None]], retry_s: float) -> None:
        """Repeat ``step``, which also waits until it is time again. What it could not do, it does after a pause."""
        while True:
            try:
                refusal = await step()
            except (RedisError, OSError) as error:
                self._notes.failed(what, error)
            else:
                if refusal is None:
                    continue
                self._call_refused(refusal)
            await anyio.sleep(retry_s)

    def _call_refused(self, refusal: Refusal) -> None:
        """Act on a call that did nothing."""
        self._telemetry.refused(refusal)
        if refusal.kind is RefusalKind.STALE:
            logger.warning(
                "write rejected, the lease of the group is not ours any more: %s",
                fields(group=self._keys.pair, token=self._term.token, lease=refusal.detail),
            )
            self._end(EndOfTerm.NOT_OURS)
        elif refusal.kind is RefusalKind.PAUSED:
            self._notes.paused()
        elif refusal.wait:
            self._notes.waits(refusal.wait)
        elif refusal.kind is not RefusalKind.UNKNOWN:  # the next tick writes the settings that were lost
            self._notes.layout(refusal.detail)

    # ---- status

    def report(self) -> GroupReport:
        """Return what is registered for ``reaper status``."""
        now = monotonic_ms()
        timers = [source.timers for source in self._sources.values()]
        dues = [due for one in timers if (due := one.next_due()) is not None]
        return settings_report(
            self.group,
            self._notes.tally,
            token=self._term.token,
            scan_interval_ms=round(self._interval_s * 1000),
            timers=sum(map(len, timers)),
            next_due_ms=max(0, min(dues) - now) if dues else None,
            late_ms=max(0, now - min(dues)) if dues else 0,
        )
