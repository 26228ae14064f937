"""Spans and metrics of one group."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from reaper.settings import WatchedGroup
from workers.protocol.calls.recovery import ENDED, Recovered
from workers.protocol.messages import RecoveryMode
from workers.telemetry import instruments
from workers.telemetry import names as telemetry
from workers.telemetry.deliveries import emit_recovered
from workers.telemetry.gauges import labels_of
from workers.telemetry.names import Attributes


class GroupTelemetry:
    """Without traces and metrics, each method checks a flag and returns."""

    __slots__ = ("_by_group", "_group", "_token")

    def __init__(self, group: WatchedGroup) -> None:
        self._group = group
        self._token = 0
        self._by_group = True

    @property
    def _labels(self) -> Attributes:
        if self._by_group:
            return labels_of(self._group.keys)
        return {telemetry.PATTERN: self._group.pattern} if self._group.pattern else {}

    def term_begins(self, token: int, *, by_group: bool) -> None:
        """Count the term, and export counters at 0, because a counter must exist before it can rise.

        Without ``by_group``, the groups of a pattern are measured together, and so are those that have none.
        """
        self._token, self._by_group = token, by_group
        if telemetry.is_measuring():
            instruments.LEASES_TAKEN.add(1, self._labels)
        for is_certain in (True, False):
            self.lost_deliveries(0, is_certain=is_certain)
        self.false_recovery(0)
        self.lost_group(0)

    def recovered(self, found: Sequence[Recovered]) -> None:
        """Export the results of a recovery call."""
        if telemetry.is_measuring():
            self._measure([row for row in found if row.outcome in ENDED])
        if not telemetry.is_tracing():
            return
        how: Attributes = {
            telemetry.RECOVERY_MODE: str(RecoveryMode.REAPER),
            telemetry.FENCING_TOKEN: self._token,
        }
        for row in found:
            if row.outcome in ENDED:
                emit_recovered(row, self._group.stream, self._group.group, how)

    def _measure(self, ended: Sequence[Recovered]) -> None:
        by_mode = self._labels | {telemetry.RECOVERY_MODE: str(RecoveryMode.REAPER)}
        for outcome, count in Counter(row.outcome for row in ended).items():
            instruments.RECOVERED.add(count, by_mode | {telemetry.RECOVERY_OUTCOME: outcome.name.lower()})
        for row in ended:
            instruments.record_lateness(row.idle_ms, self._group.visibility_timeout.total_seconds(), by_mode)

    def lost_deliveries(self, deliveries: int, *, is_certain: bool) -> None:
        """Count deliveries that Redis lost because a third party deleted their consumer or the group."""
        if telemetry.is_measuring():
            loss = telemetry.CERTAIN if is_certain else telemetry.IN_DOUBT
            instruments.LOST_DELIVERIES.add(deliveries, self._labels | {telemetry.LOSS: loss})

    def false_recovery(self, deliveries: int) -> None:
        """Count deliveries that a third-party consumer settled after another one was recovered from it."""
        if telemetry.is_measuring():
            instruments.FALSE_RECOVERIES.add(deliveries, self._labels)

    def lost_group(self, times: int = 1) -> None:
        """Count a group that a third party destroyed."""
        if telemetry.is_measuring():
            instruments.LOST.add(times, self._labels | {telemetry.LOSS: telemetry.LOST_GROUP})

    def write_rejected(self) -> None:
        """Count a write that was rejected, because another replica holds the lease."""
        if telemetry.is_measuring():
            instruments.WRITES_REFUSED.add(1, self._labels)

    @contextmanager
    def full_scan(self) -> Iterator[None]:
        """Measure a full scan. One that fails is not measured."""
        began = perf_counter()
        yield
        if telemetry.is_measuring():
            instruments.SCAN_DURATION.record(perf_counter() - began, self._labels | {telemetry.SCAN: "full"})
