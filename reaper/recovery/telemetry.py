"""Spans and metrics of one group."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from opentelemetry import metrics

from reaper.settings import WatchedGroup
from workers.protocol.calls.group_moves import ENDED, Recovered
from workers.protocol.messages import RecoveryMode
from workers.telemetry import instruments
from workers.telemetry import names as telemetry
from workers.telemetry.deliveries import emit_recovered
from workers.telemetry.gauges import labels_of
from workers.telemetry.names import Attributes


class GroupTelemetry:
    """Spans and metrics of one group. Without an exporter, each method checks a flag and returns."""

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
        self.count(instruments.LEASES_TAKEN, int(token > 0))  # an observer has no token
        for loss in (telemetry.CERTAIN, telemetry.IN_DOUBT):
            self.count(instruments.LOST_DELIVERIES, 0, loss=loss)
        self.count(instruments.LOST, 0, loss=telemetry.LOST_GROUP)
        self.count(instruments.FALSE_RECOVERIES, 0)

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

    def count(self, counter: metrics.Counter, number: int = 1, *, loss: str = "") -> None:
        """Export a count of this group. ``loss`` is the kind of a loss."""
        if telemetry.is_measuring():
            counter.add(number, self._labels | ({telemetry.LOSS: loss} if loss else {}))

    @contextmanager
    def full_scan(self) -> Iterator[None]:
        """Measure a full scan. One that fails is not measured."""
        began = perf_counter()
        yield
        if telemetry.is_measuring():
            instruments.SCAN_DURATION.record(perf_counter() - began, self._labels)
