"""What a replica tells of one group: each lost delivery in its worker's place, its `recover`, and measurements."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter, time_ns

from reaper.settings import WatchedGroup
from workers.protocol.calls.recovery import ENDED, Recovered
from workers.protocol.calls.refusals import Refusal, RefusalKind
from workers.protocol.messages import RecoveryMode
from workers.telemetry import instruments
from workers.telemetry import names as telemetry
from workers.telemetry.deliveries import emit_recovered
from workers.telemetry.gauges import labels_of
from workers.telemetry.names import Attributes


class GroupTelemetry:
    """Spans and metrics of one group in one term; costs a look at two flags where nobody listens."""

    def __init__(self, group: WatchedGroup, token: int, *, by_group: bool = True) -> None:
        """Without ``by_group``, the groups of a pattern are measured together, and so are those that have none."""
        self._group = group
        self._how: Attributes = {
            telemetry.RECOVERY_REASON: telemetry.VISIBILITY_TIMEOUT,
            telemetry.RECOVERY_MODE: str(RecoveryMode.REAPER),
            telemetry.FENCING_TOKEN: token,
        }
        self._traces, self._measures = telemetry.is_tracing(), telemetry.is_measuring()
        self._visibility_s = group.visibility_timeout.total_seconds()
        of_pattern: Attributes = {telemetry.PATTERN: group.pattern} if group.pattern else {}
        self._labels = labels_of(group.keys) if by_group else of_pattern

    # ---- recoveries

    def recovered(self, found: Sequence[Recovered], began_ns: int) -> None:
        """Tell of what a recovery call that began at ``began_ns`` has ended."""
        if self._measures:
            self._measure(found)
        if not self._traces:
            return
        ended_ns = time_ns()
        for row in found:
            if row.traced and row.outcome in ENDED:
                stream, group = self._group.stream, self._group.group
                emit_recovered(row, stream, group, self._how, began_ns=began_ns, ended_ns=ended_ns)

    def _measure(self, found: Sequence[Recovered]) -> None:
        by_mode = self._labels | {telemetry.RECOVERY_MODE: str(RecoveryMode.REAPER)}
        ended = [row for row in found if row.outcome in ENDED]
        for outcome, count in Counter(row.outcome for row in ended).items():
            instruments.RECOVERED.add(count, by_mode | {telemetry.RECOVERY_OUTCOME: outcome.name.lower()})
        for row in ended:
            instruments.record_lateness(row.idle_ms, self._visibility_s, by_mode)

    # ---- what others have destroyed

    def watching(self) -> None:
        """Count the term, and show that nothing is lost yet: a count that begins with a loss does not seem to rise."""
        if self._measures:
            instruments.LEASES_TAKEN.add(1, self._labels)
        self.lost_deliveries(0, is_certain=True)
        self.lost_deliveries(0, is_certain=False)
        self.false_recovery(0)
        self.lost_group(0)

    def lost_deliveries(self, deliveries: int, *, is_certain: bool) -> None:
        """Count deliveries that Redis forgot because somebody deleted their consumer or the group."""
        if self._measures:
            loss = telemetry.CERTAIN if is_certain else telemetry.IN_DOUBT
            instruments.LOST_DELIVERIES.add(deliveries, self._labels | {telemetry.LOSS: loss})

    def false_recovery(self, deliveries: int) -> None:
        """Count deliveries that a third-party consumer settled after another one was recovered from it."""
        if self._measures:
            instruments.FALSE_RECOVERIES.add(deliveries, self._labels)

    def lost_group(self, times: int = 1) -> None:
        """Count a group that somebody destroyed."""
        if self._measures:
            instruments.LOST.add(times, self._labels | {telemetry.LOSS: telemetry.LOST_GROUP})

    # ---- the rest

    def refused(self, refusal: Refusal) -> None:
        """Count a call that was rejected, because another replica holds the lease."""
        if self._measures and refusal.kind is RefusalKind.STALE:
            instruments.WRITES_REFUSED.add(1, self._labels)

    @contextmanager
    def scanning(self, kind: str) -> Iterator[None]:
        """Measure a scan: ``full``, or ``tail`` for what is new. One that fails is not measured."""
        began = perf_counter()
        yield
        if self._measures:
            instruments.SCAN_DURATION.record(perf_counter() - began, self._labels | {telemetry.SCAN: kind})
