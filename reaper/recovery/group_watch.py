"""Serves one group for one term. It extends the lease, scans, recovers, and looks after the schedules.

The pending entries list is the truth, so a process may lose its own knowledge. One fact is not in that list: the
deliveries of a consumer that a third party deletes (`reaper.recovery.lost`).
"""

import logging
import random
from collections.abc import Callable, Container
from contextlib import nullcontext

import anyio
from anyio.abc import TaskGroup
from redis.exceptions import RedisError, ResponseError

from reaper.failpoints import failpoint
from reaper.lease import PAGE, EndOfTerm, GroupLease, Term
from reaper.reasons import FEW_GROUPS
from reaper.recovery.context import ReplicaContext
from reaper.recovery.lost import BEGINNING, LostDeliveries
from reaper.recovery.notes import MOVE_DUE, GroupNotes, settings_report
from reaper.recovery.on_demand import OnDemandTask, Work
from reaper.recovery.rate import RateLimit
from reaper.recovery.source_watch import SourceWatch
from reaper.recovery.verdict import Verdict
from reaper.recovery.writer import GroupWriter
from reaper.replicas import GroupReport
from workers.protocol.calls.group_load import group_names
from workers.protocol.calls.group_moves import Authority, DueMoves
from workers.protocol.calls.refusals import Refusal, RefusalKind
from workers.protocol.log_fields import fields
from workers.protocol.meaning import Meaning, meaning_of
from workers.protocol.messages import Redelivery
from workers.runtime.clock import monotonic_ms
from workers.upkeep.cleanup import GroupCleanup

logger = logging.getLogger(__name__)

RELEASE_POLL_S = (0.02, 0.5)
"""How often released jobs are looked at: often while they settle, seldom while a long one runs."""
MOVE_RETRY_S = 0.5
"""Pause after a call that failed, or that was refused."""
FULL_RETRY_S = 1.0
"""The shortest time between two full scans."""
SPREAD = 0.2
"""Full scans come earlier than their interval by up to this part of it."""


class GroupWatch:
    """One group, one term. `run` must be running. In an idle group, only the ticks have a task."""

    __slots__ = (
        "_cleanup", "_context", "_deleted", "_end", "_full_scan", "_has_scanned", "_interval_s", "_journal_at",
        "_keys", "_lease", "_lost", "_moves", "_next_full_s", "_notes", "_poll_s", "_rate", "_scanned_s", "_sources",
        "_tasks", "_term", "_verdict", "_writer", "group",
    )  # fmt: skip

    def __init__(
        self,
        context: ReplicaContext,
        lease: GroupLease,
        term: Term,
        end: Callable[[EndOfTerm], None],
        notes: GroupNotes,
        verdict: Verdict | None = None,
    ) -> None:
        """``end`` ends the term. An observer counts in its ``verdict``, term after term."""
        self.group = group = lease.group
        self._context = context
        self._lease = lease
        self._term = term
        self._end = end
        self._notes = notes
        self._verdict = verdict
        self._keys = group.keys
        self._writer = GroupWriter(context.client, group, Authority(term.holder, term.token), lease.journal_limit)
        self._lost = LostDeliveries(self._writer)
        self._journal_at = BEGINNING
        self._cleanup = GroupCleanup(context.client, self._writer.moves)
        self._deleted: Container[bytes] = ()
        """Consumers that the latest cleanup found deleted. The scan before it may have seen their entries."""
        self._rate = RateLimit(context.settings.recovery_rate)
        self._sources: dict[str, SourceWatch] = {}
        self._tasks: TaskGroup | None = None
        self._full_scan = OnDemandTask(self._start, self._scan_everything)
        self._moves = OnDemandTask(self._start, self._move_due)
        self._poll_s = RELEASE_POLL_S[0]
        self._next_full_s = self._scanned_s = float("-inf")
        self._has_scanned = False
        self._interval_s = context.settings.tick_of(group).total_seconds()

    # ---- lifecycle

    async def run(self) -> None:
        """Serve the group until cancelled. Redis errors never end it."""
        self._notes.term_begins(self._term.token, by_group=self._context.watched <= FEW_GROUPS)
        channels = () if self._verdict else (self._keys.schedule, self._keys.stream_schedule)
        try:
            async with anyio.create_task_group() as self._tasks:
                with self._context.notices.waking(self._moves.wake, channels):
                    self._add_source(self._keys.stream)
                    pause_s = 0.0
                    while True:
                        await anyio.sleep(pause_s)
                        pause_s = await self._look()
        finally:
            self._notes.tell_moved()
            if self._verdict:
                self._notes.tell_verdict(self._verdict, at_the_end=True)

    def _start(self, work: Work) -> None:
        if self._tasks:
            self._tasks.start_soon(work)

    def _add_source(self, source: str) -> None:
        self._sources[source] = SourceWatch(
            self._context,
            self._writer,
            source,
            notes=self._notes,
            rate=self._rate,
            start=self._start,
            refused=self._call_refused,
            wake_moves=self._moves.wake,
            verdict=self._verdict,
        )

    # ---- the tick: the lease, the beat, and new deliveries

    async def _look(self) -> float:
        """Read new deliveries. Return the pause before the next look, in seconds."""
        pause_s = self._interval_s * random.uniform(0.9, 1)
        if anyio.current_time() >= self._next_full_s and not self._full_scan.is_running:
            self._full_scan.wake()
        try:
            if self._verdict:
                for source in list(self._sources.values()):
                    await source.scanner.tail()
                self._notes.tell_verdict(self._verdict)
            else:
                await self._tick()
            self._notes.scanned(self._context.server_ms())
        except (RedisError, OSError) as error:
            pause_s /= 3
            self._look_failed(error)
        return pause_s

    async def _tick(self) -> None:
        """Extend the lease, and read new deliveries."""
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
        if 0 <= tick.due_ms <= self._interval_s * 1000:
            self._moves.wake()
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
            "this replica does not hold the lease any more: %s",
            fields(group=self._keys.pair, token=self._term.token, doing=doing),
        )
        self._end(EndOfTerm.NOT_OURS)

    def _look_failed(self, error: BaseException) -> None:
        if meaning_of(error) is not Meaning.NO_GROUP:
            self._notes.failed("scan", error)
            return
        # A full scan drops or makes the retry stream, and makes the group if that is wanted.
        self._next_full_s = min(self._next_full_s, self._scanned_s + FULL_RETRY_S)
        if f"'{self._keys.retry}'" not in str(error) and not self.group.pattern:  # streams of a pattern come and go
            self._notes.refused(
                "no_group", f"the stream or its group does not exist (yet): {error}. Create it, or set recreate_groups"
            )

    # ---- full scans

    async def _scan_everything(self) -> None:
        # Groups that were taken together are spread over the interval.
        pause_s = self._context.settings.full_scan_interval.total_seconds() * random.uniform(1 - SPREAD, 1)
        try:
            async with self._context.room:
                await self._scan_fully()
            self._notes.worked("scan everything")
        except (RedisError, OSError) as error:
            pause_s = min(pause_s, FULL_RETRY_S)
            if meaning_of(error) is not Meaning.NO_GROUP:
                if not self._has_gone(error):
                    self._notes.failed("scan everything", error)
            elif self._context.settings.recreate_groups and not self._verdict:  # else the tick reports it
                await self._recreate()
        finally:
            self._scanned_s = anyio.current_time()
            self._next_full_s = self._scanned_s + pause_s

    def _has_gone(self, error: BaseException) -> bool:
        """Tell whether the stream was deleted of which only a pattern says that it should exist."""
        return bool(self.group.pattern) and "no such key" in str(error)

    async def _recreate(self) -> None:
        try:
            await self._write_settings()
        except (RedisError, OSError) as error:
            self._notes.failed("recreate the group", error)
        else:
            self._notes.worked("recreate the group")

    async def _scan_fully(self) -> None:
        await self._watch_retry_stream()
        journal_at = await self._lost.journal_position()
        with self._notes.telemetry.full_scan():
            entries = sum([await source.scanner.full() for source in list(self._sources.values())])
        self._notes.scanned_fully(self._context.server_ms(), entries)
        if self._verdict:
            return
        await self._note_lost()
        for source in self._sources.values():
            source.scanner.forget_gone()
        self._journal_at = journal_at
        if not self._has_scanned:
            self._moves.wake()  # some may have been released in an earlier term
        self._has_scanned = True
        await self._report_lost()

    async def _note_lost(self) -> None:
        """Clean up, and note the deliveries whose consumer, or group, was deleted since the last full scan."""
        missing = [
            await self._lost.look(key, one.scanner.gone_by_consumer(), self._journal_at, self._deleted)
            for key, one in self._sources.items()
        ]
        kept, is_remade = await self._cleanup.tidy(self._context.settings.consumer_retention), False
        if not isinstance(kept, Refusal):
            self._sources[self._keys.stream].scanner.forget_holders(kept.deleted)
            is_remade, self._deleted = self._cleanup.is_remade, kept.lost
            self._notes.tally.unread_ms = kept.unread_ms
            for consumer in kept.lost:
                self._notes.consumer_was_lost(consumer)
        if is_remade:
            self._notes.group_was_lost()
        for source, found in zip(self._sources, missing, strict=True):
            self._lost.note(found, is_remade=is_remade and source == self._keys.stream)

    async def _report_lost(self) -> None:
        """Report those of them that are lost by now."""
        reports = await self._lost.report(self._sources)
        if isinstance(reports, Refusal):
            self._call_refused(reports)
            return
        for report in reports:
            self._notes.lost(report)

    async def _watch_retry_stream(self) -> None:
        """Watch the group's retry stream while it exists, with any policy."""
        retry = self._keys.retry
        # A stream without the group is what a copy makes that was written just after a third party deleted the stream.
        exists = self.group.group in await group_names(self._context.client, retry)
        if not exists and self.group.redelivery is Redelivery.RETRY_STREAM and not self._verdict:
            await self._write_settings()  # makes the stream and its group
            exists = True
        if exists and retry not in self._sources:
            self._add_source(retry)
        elif not exists and retry in self._sources:
            self._sources.pop(retry).stop()

    # ---- quarantined jobs and schedules

    async def _move_due(self) -> float | None:
        """Make due jobs ready, and release a quarantined one. Return when to look again, if not at the next tick."""
        try:
            moved = await self._writer.move_due()
        except (RedisError, OSError) as error:
            self._notes.failed(MOVE_DUE, error)
            return MOVE_RETRY_S
        if isinstance(moved, Refusal):
            self._call_refused(moved)
            return MOVE_RETRY_S
        self._notes.moved(moved)
        return self._pause_after(moved)

    def _pause_after(self, moved: DueMoves) -> float | None:
        quick, slow = RELEASE_POLL_S
        waits = moved.quarantined + moved.out > 0
        self._poll_s = quick if not waits or moved.jobs or moved.settled else min(self._poll_s * 1.5, slow)
        pauses = [self._poll_s] if waits else []
        if moved.next_due_ms is not None and moved.next_due_ms <= self._interval_s * 1000:
            pauses.append(moved.next_due_ms / 1000)
        return min(pauses, default=None)

    def _call_refused(self, refusal: Refusal) -> None:
        """Act on a call that was rejected."""
        if refusal.kind is RefusalKind.STALE:
            self._notes.telemetry.write_rejected()
            logger.warning(
                "write rejected, this replica does not hold the lease any more: %s",
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
        """Return the report for ``reaper status``."""
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
