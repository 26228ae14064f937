"""Serves one group for one term. It extends the lease, scans, recovers, and moves due jobs out of the schedules."""

import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from redis.exceptions import RedisError, ResponseError

from reaper.context import ReplicaContext
from reaper.failpoints import failpoint
from reaper.lease import PAGE, EndOfTerm, GroupLease
from reaper.reasons import FEW_GROUPS
from reaper.recovery.lost import LostDeliveries
from reaper.recovery.notes import MOVE_DUE, GroupNotes
from reaper.recovery.observing import Observer
from reaper.recovery.scanner import Scanner
from reaper.recovery.source_watch import SourceWatch
from reaper.recovery.writer import GroupWriter
from reaper.replicas import GroupReport
from reaper.tasks import Chores
from reaper.wheel import TICK_SLOTS, Alarm
from workers.protocol.calls.declined import Declined, DeclineReason
from workers.protocol.calls.group_moves import Authority, group_names
from workers.protocol.log_fields import fields
from workers.protocol.meaning import Meaning, is_missing_key, meaning_of
from workers.protocol.messages import Redelivery, text
from workers.runtime.clock import monotonic, monotonic_ms
from workers.telemetry import instruments
from workers.upkeep.pace import MovePace

logger = logging.getLogger(__name__)

Rows = Sequence[Any]
"""Pending entries, as ``XPENDING`` returns them."""

MOVE_RETRY_S = 0.5
"""Pause after a call that failed or was declined."""
FULL_RETRY_S = 1.0
"""The shortest time between two full scans."""
SPREAD = 0.2
"""Full scans come earlier than their interval by up to this part of it."""


class GroupWatch:
    """One group in one term. An idle group has no task. An alarm sends its tick, and a callback reads the answer."""

    def __init__(
        self,
        context: ReplicaContext,
        lease: GroupLease,
        term: Authority,
        ended: Callable[[EndOfTerm], None],
        notes: GroupNotes,
    ) -> None:
        """``ended`` is called when the term has ended."""
        self.group = group = lease.group
        self._context = context
        self._lease = lease
        self._term = term
        self._ended = ended
        self._end: EndOfTerm | None = None
        self._notes = notes
        self._keys = group.keys
        self._schedules = group.keys.schedule, group.keys.stream_schedule
        self._chores = Chores(context.wheel, context.tasks, group.keys.name, partial(self.end, EndOfTerm.FAILED))
        self._observer = Observer(context, group, notes.report) if context.settings.observe else None
        self._writer = self._observer or GroupWriter(context, group, term)
        self._lost = LostDeliveries(self._writer, notes, context.settings.consumer_retention)
        self._sources: dict[str, SourceWatch] = {}
        self._alarm = Alarm(self._tick)
        self._ticking: list[Scanner] = []
        """Scanners of the sources that the latest tick reads."""
        self._retry_exists = 0
        self._pace = MovePace()
        self._next_full_s = self._scanned_s = float("-inf")
        self._full_retry_s = FULL_RETRY_S
        self._interval_s = context.settings.tick_of(group).total_seconds()
        self._slot_s = self._interval_s / TICK_SLOTS

    # ---- lifecycle

    def begin(self) -> None:
        """Serve the group until `end`, or until the lease is lost. Errors of Redis do not end it."""
        report = self._notes.report
        report.token, report.scan_interval_ms = self._term.token, round(self._interval_s * 1000)
        self._notes.telemetry.term_begins(self._term.token, by_group=self._context.watched <= FEW_GROUPS)
        self._add_source(self._keys.stream)
        self._context.notices.add(self._move_soon, self._schedules)
        self._tick()

    def end(self, reason: EndOfTerm) -> None:
        """End the term. ``ended`` is called once, after the replies to all calls."""
        if self._end is None:
            self._end = reason
            self._alarm.cancel()
            self._context.notices.remove(self._move_soon, self._schedules)
            self._chores.stop(self._over)

    def _over(self) -> None:
        self._notes.recovery_log.log(at_the_end=True)
        if self._observer:
            self._observer.log(at_the_end=True)
        self._ended(self._end or EndOfTerm.FAILED)

    def _move_soon(self) -> None:
        self._chores.wake(self._move_due)

    def _add_source(self, source: str) -> None:
        self._sources[source] = SourceWatch(
            self._writer,
            source,
            notes=self._notes,
            chores=self._chores,
            declined=self._call_declined,
            wake_moves=self._move_soon,
        )

    # ---- the tick: the lease, the beat, and new deliveries

    def _tick(self) -> None:
        self._chores.safely(self._ask)

    def _ask(self) -> None:
        """Extend the lease, and ask for new deliveries. If a full scan is due, the answer begins it."""
        scans = monotonic() >= self._next_full_s and not self._chores.is_started(self._scan_everything)
        scanners = [source.scanner for source in self._sources.values()]  # the stream, and perhaps the retry stream
        try:
            failpoint("tick.before")
        except ConnectionError as error:
            self._read(error)
            return
        for scanner in scanners:
            scanner.page_begins()
        self._ticking = scanners
        after, retry_after = ([scanner.after for scanner in scanners] + [b""])[:2]
        self._lease.tick(self._term.holder, after, retry_after, self._answered, scans=scans)

    def _answered(self, reply: Any) -> None:
        if self._end is None:
            self._chores.safely(partial(self._read, reply))
        for scanner in self._ticking:
            scanner.page_ends()

    def _read(self, reply: Any) -> None:
        if reply == 0:
            self._lease_is_lost("tick")
            return
        pause_s = self._interval_s * random.uniform(0.9, 1) - self._slot_s / 2
        error = reply if isinstance(reply, Exception) else self._act_on(*reply)
        if error:
            pause_s /= 3
            self._look_failed(error)
        else:
            self._notes.scanned(self._context.server_ms())
            if PAGE in map(len, reply[2:4]):  # a mass of new deliveries
                pause_s = 0
        self._context.wheel.put(self._alarm, pause_s, slot_s=self._slot_s if pause_s else 0)

    def _act_on(
        self, due_ms: int, has_settings: int, new: Rows, of_retry: Rows, error: bytes, *before_scan: Any
    ) -> Exception | None:
        """Arm timers for new deliveries, and begin other due work. Return the error of a part that failed."""
        for scanner, rows in zip(self._ticking, (new, of_retry), strict=False):
            scanner.saw(rows)
        if not has_settings:
            self._chores.wake(self._restore_settings)
        if 0 <= due_ms <= self._interval_s * 1000:
            self._move_soon()
        if before_scan:
            self._lost.journal_at, self._retry_exists = before_scan
            self._chores.wake(self._scan_everything, in_turn=True)
        return ResponseError(text(error)) if error else None

    async def _restore_settings(self) -> None:
        logger.warning("group settings were lost and are written again: %s", fields(group=self._keys.name))
        try:
            await self._write_settings()
        except (RedisError, OSError) as error:
            self._look_failed(error)

    async def _write_settings(self) -> None:
        taken = await self._lease.take(self._term.holder, token=self._term.token)
        if taken.token:
            self._notes.took(taken)
        else:
            self._lease_is_lost("write the settings")

    def _lease_is_lost(self, doing: str) -> None:
        logger.warning(
            "this replica does not hold the lease any more: %s",
            fields(group=self._keys.name, token=self._term.token, doing=doing),
        )
        self.end(EndOfTerm.NOT_OURS)

    def _look_failed(self, error: BaseException) -> None:
        if meaning_of(error) is not Meaning.NO_GROUP:
            self._notes.failed("scan", error)
            return
        # A full scan drops or makes the retry stream.
        self._next_full_s = min(self._next_full_s, self._scanned_s + FULL_RETRY_S)
        if f"'{self._keys.retry}'" not in str(error) and not self.group.pattern:  # streams of a pattern come and go
            self._notes.disabled(
                "no_group",
                f"the stream or its group does not exist (yet): {error}. Start a worker, or run `reaper groups create`",
            )

    # ---- full scans

    async def _scan_everything(self) -> None:
        # Groups that were taken together are spread over the interval.
        pause_s = self._context.settings.full_scan_interval.total_seconds() * random.uniform(1 - SPREAD, 1)
        try:
            await self._scan_fully()
            self._notes.worked("scan everything")
            self._full_retry_s = FULL_RETRY_S
        except (RedisError, OSError) as error:
            pause_s, self._full_retry_s = min(pause_s, self._full_retry_s), 2 * self._full_retry_s
            if not is_missing_key(error):  # else the tick reports it
                self._notes.failed("scan everything", error)
        finally:
            self._scanned_s = monotonic()
            self._next_full_s = self._scanned_s + pause_s

    async def _scan_fully(self) -> None:
        await self._watch_retry_stream()
        with self._notes.telemetry.full_scan():
            entries = sum([await source.scanner.full() for source in list(self._sources.values())])
        self._notes.scanned_fully(self._context.server_ms(), entries)
        if self._observer:
            self._observer.log()  # also if no delivery has become overdue since
            self._notes.layout((await self._lease.take(self._term.holder)).unsupported)
            for source in self._sources.values():
                source.scanner.forget_gone()  # an observer reports no lost deliveries
            return
        declined = await self._lost.scan_ends({key: source.scanner for key, source in self._sources.items()})
        if declined:
            self._call_declined(declined)

    async def _watch_retry_stream(self) -> None:
        """Watch the group's retry stream while it exists, with any policy."""
        retry = self._keys.retry
        # A third party may have deleted the stream. Then the next copy made it again, without the group.
        exists = self._retry_exists and self.group.group in await group_names(self._context.reads, retry)
        if not exists and self.group.redelivery is Redelivery.RETRY_STREAM and not self._observer:
            await self._write_settings()  # makes the stream and its group
            exists = True
        if exists and retry not in self._sources:
            self._add_source(retry)
        elif not exists and retry in self._sources:
            self._sources.pop(retry).stop()

    # ---- quarantined jobs and schedules

    async def _move_due(self) -> float | None:
        """Make due jobs ready, and release a quarantined one. Return the pause in seconds, or None."""
        try:
            moved = await self._writer.move_due()
        except (RedisError, OSError) as error:
            self._notes.failed(MOVE_DUE, error)
            return MOVE_RETRY_S
        if isinstance(moved, Declined):
            self._call_declined(moved)
            return MOVE_RETRY_S
        self._notes.moved(moved)
        return self._pace.pause_after(moved)

    def _call_declined(self, declined: Declined) -> None:
        """Act on a call that a script declined."""
        if declined.reason is DeclineReason.FENCED:
            self._notes.telemetry.count(instruments.WRITES_FENCED)
            logger.warning(
                "write fenced, this replica does not hold the lease any more: %s",
                fields(group=self._keys.name, token=self._term.token, lease=declined.detail),
            )
            self.end(EndOfTerm.NOT_OURS)
        elif declined.reason is DeclineReason.PAUSED:
            self._notes.paused()
        elif declined.wait:
            self._notes.recovery_log.waits(declined.wait)
        elif declined.reason is not DeclineReason.UNKNOWN:  # the next tick writes the settings that were lost
            self._notes.layout(declined.detail)

    # ---- status

    def report(self) -> GroupReport:
        """Return the report for ``reaper status``. Each heartbeat calls this for every group, so it must be fast."""
        report, timers, late_ms = self._notes.report, 0, 0
        for source in self._sources.values():
            timers += len(source.timers)
            if (due := source.timers.next_due()) is not None:
                late_ms = max(late_ms, monotonic_ms() - due)
        report.timers, report.late_ms = timers, late_ms
        return report
