"""Reports the findings of a replica in one group, as its report for the status, log lines, spans and metrics.

A state (an error, disabled recovery, a pause) is logged when it begins and when it ends, not each time it is met.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence

import anyio
from redis.exceptions import ResponseError

from reaper.lease import Taken
from reaper.reasons import FEW_GROUPS
from reaper.recovery.telemetry import GroupTelemetry
from reaper.replicas import GroupReport
from reaper.settings import WatchedGroup
from workers.protocol.calls.declined import explained
from workers.protocol.calls.group_moves import DueMoves, Outcome, Recovered
from workers.protocol.log_fields import fields
from workers.protocol.meaning import in_words, is_contact_error
from workers.protocol.messages import RecoveryMode, text
from workers.runtime.settings import to_ms
from workers.telemetry import instruments
from workers.telemetry import names as telemetry
from workers.upkeep.recovery_log import RecoveryLog

logger = logging.getLogger(__name__)

FALSE_RECOVERY_LOG_S = 60.0
NAME_CHARS, MOST_NAMED = 200, 5
"""Characters of a consumer's name in a report, and the number of consumers."""
HELD_FOR_S = 25.0
"""After this time without a failure, due jobs can be made ready again (``move_due.lua`` tries every 10 s)."""
MOVE_DUE = "make due jobs ready"


class GroupNotes:
    """The report and the log lines of one group in one term."""

    def __init__(self, group: WatchedGroup, changed: Callable[[], None], logged_groups: set[str]) -> None:
        """``changed`` is called when disabled recovery or a pause begins or ends. It registers the replica.

        All groups of a replica share ``logged_groups``. An outage adds `FEW_GROUPS` at most.
        """
        self._logged_groups = logged_groups
        logged_groups.discard(group.keys.name)
        self.report = GroupReport(
            group=group.keys.name,
            visibility_ms=to_ms(group.visibility_timeout),
            max_deliveries=group.max_deliveries,
            redelivery=group.redelivery,
            pattern=group.pattern,
        )
        self.telemetry = GroupTelemetry(group)
        self._group = group
        self._name = group.keys.name
        self._changed = changed
        self._false_recoveries: Counter[str] = Counter()
        self.recovery_log = RecoveryLog(group.keys)
        self._false_logged_at = self._last_held_at = float("-inf")
        self._errors: dict[str, str] = {}

    # ---- states

    def took(self, taken: Taken) -> None:
        """Note that this replica holds the lease, and has written the group settings."""
        group = self._group
        now = {
            "redelivery": group.redelivery.value,
            "visibility_ms": str(to_ms(group.visibility_timeout)),
            "max_deliveries": str(group.max_deliveries),
            "recovery": RecoveryMode.REAPER.value,
        }
        for (name, new), old in zip(now.items(), taken.before, strict=False):
            if old and old != new:
                logger.warning(
                    "group setting changed, workers apply it at their next refresh: %s",
                    fields(group=self._name, setting=name, before=old, after=new),
                )
        self.layout(taken.unsupported)

    def failed(self, what: str, error: BaseException) -> None:
        """Note that the task ``what`` failed, and log a new cause."""
        message = f"{what}: {in_words(error)}"
        if message != self._errors.get(what):
            level = logging.WARNING if is_contact_error(error) else logging.ERROR
            if level == logging.ERROR or len(self._logged_groups) < FEW_GROUPS:
                self._logged_groups.add(self._name)
            level = level if self._name in self._logged_groups else logging.DEBUG
            logger.log(level, "cannot serve the group: %s", fields(group=self._name, task=what, cause=in_words(error)))
        self._errors[what] = message
        self.report.error = "; ".join(self._errors.values())

    def worked(self, what: str) -> None:
        """Note that the task ``what`` works, so its earlier error has passed."""
        if self._errors.pop(what, ""):
            level = logging.INFO if self._name in self._logged_groups else logging.DEBUG
            logger.log(level, "task works again: %s", fields(group=self._name, task=what))
            self.report.error = "; ".join(self._errors.values())
            if not self._errors:
                self._logged_groups.discard(self._name)

    def scanned(self, server_ms: int) -> None:
        """Note a scan that succeeded, so the group exists."""
        self.report.last_scan_ms = server_ms
        self.recovery_log.log()
        self.worked("scan")
        if self.report.disabled == "no_group":
            self._served_again()

    def scanned_fully(self, server_ms: int, entries: int) -> None:
        """Note a full scan that succeeded. It arms undeliverable entries again."""
        self.report.scan_entries = entries
        self.report.last_full_scan_ms = server_ms
        self.report.undeliverable = 0

    def disabled(self, kind: str, message: str) -> None:
        """Note that recovery cannot act in this group. ``message`` is the cause for people."""
        if kind != self.report.disabled:
            logger.error("recovery disabled: %s", fields(group=self._name, reason=kind, cause=message))
            self.report.disabled = kind
            self._changed()

    def layout(self, unsupported: str) -> None:
        """Note the reason why the policy cannot work with the stream. '' = it can."""
        if unsupported:
            self.disabled(unsupported, explained(unsupported))
        elif self.report.disabled and self.report.disabled != "no_group":
            self._served_again()

    def _served_again(self) -> None:
        logger.info("recovery enabled again: %s", fields(group=self._name))
        self.report.disabled = ""
        self._changed()

    def paused(self) -> None:
        """Note that an operator paused the group."""
        if not self.report.paused:
            command = f"reaper groups resume {self._group.keys.word}"
            logger.warning("recovery paused: %s", fields(group=self._name, to_resume=command))
            self.report.paused = True
            self._changed()

    def call_done(self) -> None:
        """Note a recovery call that succeeded, so recovery is neither paused nor disabled."""
        self.worked("recover")
        if self.report.paused:
            logger.warning("recovery resumed: %s", fields(group=self._name))
            self.report.paused = False
            self._changed()
        if self.report.token:  # the calls of an observer succeed with every layout
            self.layout("")

    # ---- deliveries

    def batch(self, found: Sequence[Recovered]) -> None:
        """Count and log the overdue deliveries of one recovery call."""
        self.telemetry.recovered(found)
        self.recovery_log.add(found)
        for row in found:
            self.report.recovered += row.outcome is Outcome.REDELIVERED
            self._note_failure(row)

    def _note_failure(self, row: Recovered) -> None:
        """Log a delivery that did not become ready."""
        match row.outcome:
            case Outcome.DEAD_LETTERED:
                logger.error(
                    "job dead-lettered: %s",  # as in `workers.loop.reporting`, so that one alert finds both
                    fields(
                        group=self._name,
                        job=row.job_id,
                        dead_letter=text(row.detail),
                        limit=self._group.max_deliveries,
                        consumer=row.consumer,
                        reason="max_deliveries",
                    ),
                )
            case Outcome.LOST_PAYLOAD:
                logger.error(
                    "entry was deleted while pending, its payload is lost: %s",
                    fields(group=self._name, entry=row.entry_id),
                )
            case Outcome.HELD:
                self.report.undeliverable += 1
                logger.error(
                    "cannot redeliver an entry, retrying at the next full scan: %s",
                    fields(group=self._name, entry=row.entry_id, cause=explained(text(row.detail))),
                )

    def lost(self, consumer: bytes, deliveries: int, *, is_certain: bool) -> None:
        """Note lost deliveries of a deleted consumer. Unless ``is_certain``, they may have been settled."""
        loss = telemetry.CERTAIN if is_certain else telemetry.IN_DOUBT
        self.telemetry.count(instruments.LOST_DELIVERIES, deliveries, loss=loss)
        facts = fields(
            group=self._name,
            consumer=consumer,
            deliveries=deliveries,
            to_requeue=f"reaper groups requeue {self._group.keys.word} --lost",
        )
        if is_certain:
            self.report.lost += deliveries
            logger.error("a third party deleted a consumer, its pending deliveries are lost: %s", facts)
        else:
            self.report.in_doubt += deliveries
            logger.warning("a consumer was removed, its pending deliveries are settled or lost: %s", facts)

    def cleaned_up(self, unread_ms: int, *, is_group_lost: bool) -> None:
        """Note for how long no consumer has read, and whether a third party destroyed the group."""
        self.report.unread_ms = unread_ms
        if is_group_lost:
            self.telemetry.count(instruments.LOST, loss=telemetry.LOST_GROUP)
            logger.error("the group was destroyed, or all of its consumers were deleted: %s", fields(group=self._name))

    def moved(self, moved: DueMoves) -> None:
        """Note due jobs that were made ready, or cannot be, and released quarantined jobs."""
        now = anyio.current_time()
        if moved.held:
            self._last_held_at = now
            self.failed(MOVE_DUE, ResponseError(f"some jobs cannot be made ready, retrying: {text(moved.why)}"))
        elif now - self._last_held_at > HELD_FOR_S:
            self.worked(MOVE_DUE)
        self.report.recovered += bool(moved.released)

    # ---- false recoveries

    def false_recovery(self, consumer: bytes, deliveries: int) -> None:
        """Note deliveries that a third-party consumer settled after another one was recovered from it."""
        self.telemetry.count(instruments.FALSE_RECOVERIES, deliveries)
        self._false_recoveries[text(consumer)[:NAME_CHARS]] += deliveries
        self.report.false_recoveries += deliveries
        self.report.false_recoveries_of = dict(self._false_recoveries.most_common(MOST_NAMED))
        now = anyio.current_time()
        if now - self._false_logged_at < FALSE_RECOVERY_LOG_S:
            return
        self._false_logged_at = now
        logger.warning(
            "false recovery if this consumer was not restarted, raise visibility_timeout or lower COUNT: %s",
            fields(group=self._name, consumer=consumer, false_recoveries=self.report.false_recoveries),
        )
