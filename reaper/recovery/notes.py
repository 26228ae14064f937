"""Reports what a replica finds in one group: counters for the status, log lines, callbacks, spans and metrics.

A state (an error, a refusal, a pause) is logged when it begins and when it ends, not each time it is met.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields as fields_of
from typing import Any

import anyio
from redis.exceptions import ResponseError

from reaper.lease import Taken
from reaper.recovery.lost import Report
from reaper.recovery.telemetry import GroupTelemetry
from reaper.recovery.verdict import Verdict
from reaper.replicas import GroupReport, Tally
from reaper.settings import WatchedGroup
from workers.protocol.calls.group_moves import CleanupResult, DueMoves
from workers.protocol.calls.recovery import Outcome, Recovered
from workers.protocol.calls.refusals import RecoveryWait, Refusal, explained
from workers.protocol.log_fields import fields
from workers.protocol.meaning import in_words, is_contact_error
from workers.protocol.messages import Pending, RecoveryMode, first_of, text
from workers.runtime.callbacks import Callbacks
from workers.runtime.clock import monotonic, monotonic_ms
from workers.runtime.settings import to_ms
from workers.telemetry import instruments
from workers.telemetry import names as telemetry

logger = logging.getLogger(__name__)

FALSE_RECOVERY_LOG_S = 60.0
NAME_CHARS, MOST_NAMED = 200, 5
"""So much is registered of a consumer's name, and of so many consumers."""
VERDICT_LOG_S = 60.0
MOVED_LOG_S = 1.0
"""In a mass, what was moved is a line each so often, not one a call."""
HELD_FOR_S = 25.0
"""A job that cannot be made ready is tried every 10 s (``move_due.lua``): none met for so long means that it passed."""
MOVE_DUE = "make due jobs ready"

_TALLIED = tuple(field.name for field in fields_of(Tally))
_MOVED = frozenset({Outcome.REDELIVERED, Outcome.QUARANTINED})
_OVERDUE = frozenset(Outcome) - {Outcome.GONE, Outcome.NOT_DUE, Outcome.PUT_OFF}


def settings_report(group: WatchedGroup, tally: Tally, **found: Any) -> GroupReport:
    """Return the report on a group. ``found`` is what its watch adds."""
    return GroupReport(
        stream=group.stream,
        group=group.group,
        visibility_ms=to_ms(group.visibility_timeout),
        max_deliveries=group.max_deliveries,
        redelivery=group.redelivery,
        pattern=group.pattern,
        **{name: getattr(tally, name) for name in _TALLIED},
        **found,
    )


class GroupNotes:
    """Counters and news of one group in one term."""

    def __init__(
        self, group: WatchedGroup, callbacks: Callbacks[str], changed: Callable[[], None] = lambda: None
    ) -> None:
        """``changed`` is called when a refusal or a pause begins or ends, because others should know at once."""
        self.tally = Tally()
        self.telemetry = GroupTelemetry(group)
        self._group = group
        self._pair = group.keys.pair
        self._callbacks = callbacks
        self._changed = changed
        self._false_recoveries: Counter[str] = Counter()
        self._false_logged_at = self._last_held_at = self._moved_told_at = float("-inf")
        self._ready = self._quarantined = 0
        self._moved_of: dict[bytes, None] = {}
        """Consumers from which deliveries were moved since the last line."""
        self._said = (0, 0)
        self._next_verdict_at = float("-inf")
        self._waits_until_s = float("-inf")
        self._errors: dict[str, str] = {}

    def term_begins(self, token: int, *, by_group: bool = True) -> None:
        """A term begins. ``by_group``: metrics have the group as a label."""
        self._next_verdict_at = anyio.current_time() + VERDICT_LOG_S
        self.telemetry.term_begins(token, by_group=by_group)

    def _report(self, name: str, **facts: Any) -> None:
        self._callbacks.report(name, stream=self._group.stream, group=self._group.group, **facts)

    # ---- states

    def took(self, taken: Taken) -> None:
        """The lease is ours, and the settings of the group are written."""
        group = self._group
        now = {
            "redelivery": group.redelivery.value,
            "visibility_ms": str(to_ms(group.visibility_timeout)),
            "max_deliveries": str(group.max_deliveries),
            "recovery": RecoveryMode.REAPER.value,
        }
        for (name, new), old in zip(now.items(), taken.before, strict=True):
            if old and old != new:
                logger.warning(
                    "group setting changed, workers apply it at their next refresh: %s",
                    fields(group=self._pair, setting=name, before=old, after=new),
                )
        self.layout(taken.refusal)

    def failed(self, what: str, error: BaseException) -> None:
        """``what`` could not be done."""
        message = f"{what}: {in_words(error)}"
        if message != self._errors.get(what):
            level = logging.WARNING if is_contact_error(error) else logging.ERROR
            logger.log(level, "cannot serve the group: %s", fields(group=self._pair, task=what, cause=in_words(error)))
            self._report("error", error=message)
        self._errors[what] = message
        self.tally.error = "; ".join(self._errors.values())

    def worked(self, what: str) -> None:
        """``what`` works, so an earlier error of it has passed."""
        if self._errors.pop(what, ""):
            logger.info("task works again: %s", fields(group=self._pair, task=what))
            self.tally.error = "; ".join(self._errors.values())

    def scanned(self, server_ms: int) -> None:
        """A scan went through, so the group exists."""
        self.tell_moved()
        self.tally.last_scan_ms = server_ms
        self.worked("scan")
        if self.tally.refusal == "no_group":
            self._served_again()

    def scanned_fully(self, server_ms: int, entries: int) -> None:
        """A full scan went through. Held entries will be found again."""
        self.tally.scan_entries = entries
        self.tally.last_full_scan_ms = server_ms
        self.tally.held = 0

    def refused(self, kind: str, message: str) -> None:
        """Recovery refuses to act here, and why."""
        if kind != self.tally.refusal:
            logger.error("recovery disabled: %s", fields(group=self._pair, reason=kind, cause=message))
            self._report("error", error=f"{kind}: {message}")
            self.tally.refusal = kind
            self._changed()

    def layout(self, refusal: str) -> None:
        """The policy cannot work with this stream's layout, or ('') it can."""
        if refusal:
            self.refused(refusal, explained(refusal))
        elif self.tally.refusal and self.tally.refusal != "no_group":
            self._served_again()

    def _served_again(self) -> None:
        logger.info("recovery enabled again: %s", fields(group=self._pair))
        self.tally.refusal = ""
        self._changed()

    def paused(self) -> None:
        """An operator paused the group."""
        if not self.tally.paused:
            command = f"reaper groups resume {self._group.keys.word}"
            logger.warning("recovery paused: %s", fields(group=self._pair, to_resume=command))
            self.tally.paused = True
            self._changed()

    def waits(self, wait: RecoveryWait) -> None:
        """Recovery waits after a gap in the heartbeats. Logged once a gap."""
        ends_s = monotonic() + wait.left_ms / 1000
        if ends_s > self._waits_until_s + 1:
            logger.warning("recovery waits for heartbeats: %s", fields(group=self._pair, **wait.facts()))
        self._waits_until_s = ends_s

    def call_done(self) -> None:
        """A recovery call went through, so recovery is not paused or refused any more."""
        self.worked("recover")
        if self.tally.paused:
            logger.warning("recovery resumed: %s", fields(group=self._pair))
            self.tally.paused = False
            self._changed()
        self.layout("")

    # ---- deliveries

    def batch(self, found: Sequence[Recovered]) -> None:
        """Count, log and report the overdue deliveries of one recovery call."""
        self.telemetry.recovered(found)
        became = Counter(row.outcome for row in found)
        tally = self.tally
        tally.recovered += became[Outcome.REDELIVERED]
        tally.held += became[Outcome.HELD]
        if became[Outcome.REDELIVERED] or became[Outcome.QUARANTINED]:
            self._ready += became[Outcome.REDELIVERED]
            self._quarantined += became[Outcome.QUARANTINED]
            self._moved_of.update((row.consumer, None) for row in found if row.outcome in _MOVED)
            if anyio.current_time() - self._moved_told_at >= MOVED_LOG_S:
                self.tell_moved()
        # Hot in a mass recovery, so facts are gathered only for listeners and for lines of their own.
        listeners = any(self._callbacks.wants(name) for name in ("stalled", "recovered"))
        for row in found:
            if row.outcome in _OVERDUE and (listeners or row.outcome not in _MOVED):
                self._report_one(row)

    def tell_moved(self) -> None:
        """Log the moved deliveries that were not logged yet, if any."""
        if not self._moved_of:
            return
        logger.info(
            "recovered stalled deliveries: %s",
            fields(
                group=self._pair,
                consumers=first_of({consumer or b"none (XNACK)" for consumer in self._moved_of}),
                redelivered=self._ready,
                quarantined=self._quarantined,
            ),
        )
        self._ready = self._quarantined = 0
        self._moved_of.clear()
        self._moved_told_at = anyio.current_time()

    def _report_one(self, row: Recovered) -> None:
        facts = self._stalled(row.job_id, row)
        match row.outcome:
            case Outcome.REDELIVERED:
                self._report("recovered", **facts, new_entry=text(row.detail), reason="visibility_timeout")
            case Outcome.DEAD_LETTERED:
                logger.error(
                    "job dead-lettered: %s",  # as in `workers.loop.reporting`, so that one alert finds both
                    fields(
                        group=self._pair,
                        job=facts["job"],
                        dead_letter=text(row.detail),
                        limit=self._group.max_deliveries,
                        consumer=facts["consumer"],
                        reason="max_deliveries",
                    ),
                )
                self._report("dead_lettered", **facts, dead_letter=text(row.detail), reason="max_deliveries")
            case Outcome.LOST_PAYLOAD:
                logger.error(
                    "entry was deleted while pending, its payload is lost: %s",
                    fields(group=self._pair, entry=facts["entry"]),
                )
                self._report("error", **facts, error="lost_payload")
            case Outcome.HELD:
                logger.error(
                    "cannot redeliver an entry, retrying at the next full scan: %s",
                    fields(group=self._pair, entry=facts["entry"], cause=explained(text(row.detail))),
                )
                self._report("error", **facts, error=f"held: {text(row.detail)}")

    def _stalled(self, job_id: bytes, row: Recovered | Pending) -> dict[str, Any]:
        """Report that a delivery was found overdue. Return its facts."""
        facts: dict[str, Any] = {
            "job": text(job_id),
            "entry": text(row.entry_id),
            "consumer": text(row.consumer),
            "idle_ms": row.idle_ms,
            "delivery": row.delivery_count,
        }
        self._report("stalled", **facts)
        return facts

    def lost(self, report: Report) -> None:
        """A third party deleted a consumer. Its deliveries are lost, or in doubt: they may have been settled."""
        loss = telemetry.CERTAIN if report.is_certain else telemetry.IN_DOUBT
        self.telemetry.count(instruments.LOST_DELIVERIES, len(report.ids), loss=loss)
        facts = fields(
            group=self._pair,
            consumer=report.consumer,
            deliveries=len(report.ids),
            to_requeue=f"reaper groups requeue {self._group.keys.word} --lost",
        )
        if report.is_certain:
            self.tally.lost += len(report.ids)
            logger.error("a third party deleted a consumer, its pending deliveries are lost: %s", facts)
        else:
            self.tally.in_doubt += len(report.ids)
            logger.warning("a consumer was removed, its pending deliveries are settled or lost: %s", facts)
        self._report(
            "error",
            consumer=text(report.consumer),
            entries=list(map(text, report.ids)),
            certain=report.is_certain,
            error="lost_delivery",
        )

    def cleaned_up(self, kept: CleanupResult | Refusal, *, is_remade: bool) -> None:
        """A cleanup found consumers of dead workers that a third party deleted, or that the group ``is_remade``.

        The cleanup logs the consumers. Which deliveries they had is not known here, or reported later.
        """
        if not isinstance(kept, Refusal):
            self.tally.unread_ms = kept.unread_ms
            for consumer in kept.lost:
                self._report("error", consumer=text(consumer), error="lost_consumer")
        if is_remade:
            self.telemetry.count(instruments.LOST, loss=telemetry.LOST_GROUP)
            logger.error("the group was destroyed, or all of its consumers were deleted: %s", fields(group=self._pair))
            self._report("error", error="group_destroyed")

    def moved(self, moved: DueMoves) -> None:
        """Due jobs were made ready, except those that cannot be, and quarantined jobs were released."""
        now = anyio.current_time()
        if moved.held:
            self._last_held_at = now
            self.failed(MOVE_DUE, ResponseError(f"some jobs cannot be made ready, retrying: {text(moved.why)}"))
        elif now - self._last_held_at > HELD_FOR_S:
            self.worked(MOVE_DUE)
        if moved.released:
            job_id, new_entry = map(text, moved.released)
            self.tally.recovered += 1
            self._report("recovered", job=job_id, new_entry=new_entry, reason="released")

    # ---- observers

    def would_recover(self, row: Pending) -> None:
        """A delivery is overdue, and we only observe."""
        self._stalled(b"", row)

    def verdict(self, verdict: Verdict) -> None:
        """Take what an observer has seen so far."""
        self.tally.recovered = verdict.overdue
        self.tally.false_alarms, self.tally.slowest_ms = verdict.false_alarms, verdict.slowest_ms

    def tell_verdict(self, verdict: Verdict, *, at_the_end: bool = False) -> None:
        """Log it at the end, and once a minute if there is news."""
        self.verdict(verdict)
        said, now = (verdict.overdue, verdict.false_alarms), anyio.current_time()
        if at_the_end or (said != self._said and now >= self._next_verdict_at):
            logger.info(
                "observed: %s",
                fields(
                    group=self._pair,
                    minutes=round((monotonic_ms() - verdict.began_ms) / 60_000),
                    would_recover=verdict.overdue,
                    false_alarms=verdict.false_alarms,
                    slowest_s=round(verdict.slowest_ms / 1000, 1),
                    pending=len(verdict.followed),
                ),
            )
            self._said, self._next_verdict_at = said, now + VERDICT_LOG_S

    # ---- false recoveries

    def false_recovery(self, consumer: bytes, deliveries: int) -> None:
        """A third-party consumer settled so many deliveries after another one was recovered from it."""
        self.telemetry.count(instruments.FALSE_RECOVERIES, deliveries)
        self._false_recoveries[text(consumer)[:NAME_CHARS]] += deliveries
        self.tally.false_recoveries += deliveries
        self.tally.false_recoveries_of = dict(self._false_recoveries.most_common(MOST_NAMED))
        now = anyio.current_time()
        if now - self._false_logged_at < FALSE_RECOVERY_LOG_S:
            return
        self._false_logged_at = now
        logger.warning(
            "false recovery if this consumer was not restarted, raise visibility_timeout or lower COUNT: %s",
            fields(group=self._pair, consumer=consumer, false_recoveries=self.tally.false_recoveries),
        )
