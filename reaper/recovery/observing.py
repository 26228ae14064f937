"""An observer serves a group like a holder, but only reads. It counts the recoveries that it would have made.

It follows each overdue delivery. If the delivery goes while its owner is the same, its consumer settled it late, and a
recovery would have been false. A delivery that another consumer has claimed, or that its own consumer has read again,
is not followed any more.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from reaper.context import ReplicaContext
from reaper.lease import PAGE, GroupLease, Taken, unsupported_layout
from reaper.pipelined import Answered
from reaper.recovery.writer import GroupWriter
from reaper.replicas import GroupReport
from reaper.settings import WatchedGroup
from workers.protocol.calls.group_moves import Authority, DueMoves, Outcome, Recovered
from workers.protocol.log_fields import fields
from workers.protocol.messages import CLAIM_READY_MS, Pending, Redelivery
from workers.runtime.clock import monotonic_ms
from workers.runtime.settings import to_ms

logger = logging.getLogger(__name__)

LOOKS = 8
"""A delivery is read again after an eighth of its age, so its age at its settlement is as exact."""
SOONEST_MS = 1_000
"""The shortest time between two looks at an overdue delivery."""
LOG_MS = 60_000
"""The shortest time between two log lines."""


class ObserverLease(GroupLease):
    """Replaces the lease. The first observer in the order reads the group."""

    async def take(self, holder: str, *, token: int = 0) -> Taken:  # noqa: ARG002 - the interface of a lease
        """Return whether the policy could work. An observer has no token."""
        unsupported = await unsupported_layout(self._client, self.keys.stream, self.group.redelivery)
        return Taken(holder, unsupported=unsupported)

    def tick(self, holder: str, after: bytes, retry_after: bytes, answered: Answered, *, scans: bool) -> None:  # noqa: ARG002
        """Read new deliveries. The answer has the form of ``tick.lua``."""
        sources = [(self.keys.stream, after)] + ([(self.keys.retry, retry_after)] if retry_after else [])
        before_scan = (b"0-0", 1) if scans else ()  # it needs no position in the journal, and looks for a retry stream
        replies: list[Any] = []

        def hear(reply: Any) -> None:
            replies.append(reply)
            if len(replies) == len(sources):
                failed = next((one for one in replies if isinstance(one, Exception)), None)
                answered(failed or [-1, 1, replies[0], replies[1:][0] if replies[1:] else [], b"", *before_scan])

        for source, start in sources:
            self._client.ask(("XPENDING", source, self.keys.group, start, "+", PAGE), hear)

    def look(self, answered: Callable[[str | Exception], None]) -> None:
        """Leave the group to the first observer."""
        answered("observed")

    async def hand(self, holder: str, to: str, why: str) -> None:
        """Return at once, because an observer has no lease."""


class Observer(GroupWriter):
    """Replaces the writes of a holder by counts in the report of the group. Ages and instants are ms."""

    def __init__(self, context: ReplicaContext, group: WatchedGroup, report: GroupReport) -> None:
        super().__init__(context, group, Authority())
        self._client = context.client
        self._report = report
        self._followed: dict[bytes, tuple[bytes, int]] = {}
        """The consumer of each overdue delivery, and when it received it, by entry ID."""
        self._began_ms = self._logged_ms = monotonic_ms()
        self._logged = 0, 0

    async def recover(self, source: str, entry_ids: Sequence[bytes]) -> list[Recovered]:
        """Count deliveries that would be recovered. Return which are gone, and the time to look again at other ones."""
        pipeline = self._client.pipeline(transaction=False)
        for entry_id in entry_ids:
            pipeline.execute_command("XPENDING", source, self.keys.group, entry_id, entry_id, 1)
        found = await pipeline.execute()
        rows = [
            Recovered(entry_id, Outcome.NOT_DUE, self._pause_ms(Pending(*rows[0])))
            if rows
            else Recovered(entry_id, Outcome.GONE)
            for entry_id, rows in zip(entry_ids, found, strict=True)
        ]
        self.log()
        return rows

    def _pause_ms(self, row: Pending) -> int:
        """Note the state of a delivery. Return when to look at it again."""
        visibility_ms = to_ms(self.group.visibility_timeout)
        known = self._followed.pop(row.entry_id, None)
        if self.group.redelivery is Redelivery.IN_PLACE and not 0 <= row.idle_ms < CLAIM_READY_MS:
            return visibility_ms  # it is ready, and a reader may take it now
        if 0 <= row.idle_ms < visibility_ms:
            return visibility_ms - row.idle_ms
        if known is None or known[0] != row.consumer:
            known = row.consumer, monotonic_ms() - max(row.idle_ms, 0)
            self._report.recovered += 1
        self._followed[row.entry_id] = known
        return max(row.idle_ms // LOOKS, SOONEST_MS)

    def gone(self, entry_ids: Iterable[bytes]) -> None:
        """Count false alarms among deliveries that are not pending any more."""
        for entry_id in entry_ids:
            if known := self._followed.pop(entry_id, None):
                self._report.false_alarms += 1
                self._report.slowest_ms = max(self._report.slowest_ms, monotonic_ms() - known[1])

    async def move_due(self) -> DueMoves:
        """Move nothing."""
        return DueMoves()

    def log(self, *, at_the_end: bool = False) -> None:
        """Log the counts at the end of the term, and once a minute if they have changed."""
        report, now = self._report, monotonic_ms()
        counts = report.recovered, report.false_alarms
        if at_the_end or (counts != self._logged and now - self._logged_ms >= LOG_MS):
            self._logged, self._logged_ms = counts, now
            logger.info(
                "observed: %s",
                fields(
                    group=self.keys.name,
                    minutes=round((now - self._began_ms) / 60_000),
                    would_recover=report.recovered,
                    false_alarms=report.false_alarms,
                    slowest_s=round(report.slowest_ms / 1000, 1),
                    pending=len(self._followed),
                ),
            )
