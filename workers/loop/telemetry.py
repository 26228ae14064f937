"""The spans and metrics of a worker: `process` of its deliveries, and its recoveries.

A job that its producer's trace does not sample costs a look at one field. The span of a delivery ends with its handler,
and is exported after its settlement, with the outcome.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import time_ns

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode

from workers.loop.execution import REASON_TIMEOUT
from workers.loop.in_flight import Delivery
from workers.protocol.calls.group_moves import ENDED, Recovered
from workers.protocol.calls.moves import Outcome, Settled, SettleResult, Verdict
from workers.protocol.messages import FIELD_TRACEPARENT, FIELD_TRACESTATE, RecoveryMode
from workers.settings import WorkerSettings
from workers.telemetry import instruments
from workers.telemetry import names as telemetry
from workers.telemetry.deliveries import begin, emit_recovered, read_context
from workers.telemetry.gauges import labels_of
from workers.telemetry.names import Attributes

_EMBEDDED: Attributes = {telemetry.RECOVERY_MODE: RecoveryMode.EMBEDDED.value}


class WorkerTelemetry:
    """Spans and metrics of one run of a worker. Without a tracer or meter provider, each method checks a flag."""

    def __init__(self, settings: WorkerSettings, consumer: str) -> None:
        self.traces, self._measures = telemetry.is_tracing(), telemetry.is_measuring()
        self._stream, self._group = settings.stream, settings.group
        self._consumer = consumer
        self._process = telemetry.common(telemetry.PROCESS, telemetry.PROCESS, self._stream, self._group)
        self._receive = telemetry.common(telemetry.RECEIVE, telemetry.RECEIVE, self._stream, self._group)
        self._settle = telemetry.common(telemetry.SETTLE, telemetry.SETTLE, self._stream, self._group)
        self._labels = labels_of(settings.keys)
        self._shown = ExitStack()

    def watch_denials(self, denied: Callable[[], int]) -> None:
        """Show the number of parts whose calls Redis denies (``denied``), until `close`."""
        self._shown.callback(instruments.OBSERVATIONS.add(instruments.PARTS_DENIED, lambda: [(denied(), self._labels)]))

    def lost(self, *, groups: int = 0, consumers: int = 0) -> None:
        """Count groups and consumers that third parties deleted. It starts with 0, so that a rise is visible."""
        if self._measures:
            instruments.LOST.add(groups, self._labels | {telemetry.LOSS: telemetry.LOST_GROUP})
            instruments.LOST.add(consumers, self._labels | {telemetry.LOSS: telemetry.LOST_CONSUMER})

    def close(self) -> None:
        """Show no values any more."""
        self._shown.close()

    # ---- reading and recovering

    def received(self, deliveries: int) -> None:
        """Count the ``deliveries`` of a read."""
        if self._measures and deliveries:
            instruments.CONSUMED.add(deliveries, self._receive)

    def recovered(self, found: Sequence[Recovered], visibility_s: float) -> None:
        """Report the deliveries that we ended for their consumers after a visibility timeout."""
        for row in found if self._measures or self.traces else ():
            if row.outcome not in ENDED:
                continue
            if self._measures:
                labels = self._labels | _EMBEDDED
                instruments.RECOVERED.add(1, labels | {telemetry.RECOVERY_OUTCOME: row.outcome.name.lower()})
                instruments.record_lateness(row.idle_ms, visibility_s, labels)
            if self.traces:
                emit_recovered(row, self._stream, self._group, _EMBEDDED)

    def scanned(self, took_s: float) -> None:
        """Measure a scan of the pending entries."""
        if self._measures:
            instruments.SCAN_DURATION.record(took_s, self._labels)

    # ---- running

    @contextmanager
    def running(self, jobs: Sequence[Delivery]) -> Iterator[None]:
        """Open the spans of deliveries while their handler runs. The span of a single one is the current span."""
        traced = [job for job in jobs if not job.is_unsampled]
        for job in traced:
            job.span = self._begin(job)
        span = traced[0].span if len(jobs) == len(traced) == 1 else None
        token = contexts.attach(trace.set_span_in_context(span)) if span else None
        try:
            yield
        finally:
            if token:
                contexts.detach(token)
            for job in traced:
                job.ended_ns = time_ns()

    def _begin(self, job: Delivery) -> Span:
        job.ended_ns = 0
        about = self._process | self._about(job, self._consumer)
        return begin(f"{telemetry.PROCESS} {self._stream}", _context_of(job), SpanKind.CONSUMER, about)

    def _about(self, job: Delivery, consumer: str) -> Attributes:
        return {
            telemetry.MESSAGE_ID: job.entry_id,
            telemetry.CLIENT_ID: consumer,
            telemetry.JOB_ID: job.id,
            telemetry.ATTEMPT: job.deliveries,
            telemetry.GENERATION: job.generation,
        }

    # ---- settling

    def settled(self, batch: Sequence[Delivery], results: Sequence[Settled] | None, took_s: float) -> None:
        """Export deliveries whose settlement is answered. None means that every one was acknowledged."""
        if not (self.traces or self._measures):
            return
        rejected = [False] * len(batch) if results is None else [one.result is SettleResult.REJECTED for one in results]
        if self._measures:
            self._measure(batch, sum(rejected), took_s)
        for job, is_rejected in zip(batch, rejected, strict=True) if self.traces else ():
            _end(job, is_rejected=is_rejected)

    def lost_ended(self, job: Delivery) -> None:
        """Export a delivery whose handler has ended after the delivery was recovered. It is not settled."""
        _end(job, is_rejected=True)

    def _measure(self, batch: Sequence[Delivery], rejected: int, took_s: float) -> None:
        instruments.OPERATION_DURATION.record(took_s, self._settle)
        record, plain = instruments.PROCESS_DURATION.record, self._process
        for job in batch:
            verdict, run_ms = job.verdict, job.run_ms
            if verdict.outcome is Outcome.ACK:
                record(run_ms / 1000, plain)
            elif verdict.outcome is not Outcome.HAND_BACK:
                record(run_ms / 1000, plain | {telemetry.ERROR_TYPE: error_type(verdict)})
        if rejected:
            instruments.SETTLEMENTS_REJECTED.add(rejected, self._labels)


def _context_of(job: Delivery) -> SpanContext | None:
    """Return the context of the job's producer. None if there is no valid one."""
    traceparent = job.value_of(FIELD_TRACEPARENT)
    return None if traceparent is None else read_context(traceparent, job.value_of(FIELD_TRACESTATE) or b"")


def _end(job: Delivery, *, is_rejected: bool) -> None:
    """End the span of a delivery once, because its settlement is repeated if the user lacks a permission."""
    span, job.span = job.span, None
    if span is None:
        return
    if is_rejected:
        error, description = telemetry.REJECTED, "the delivery had been recovered"
    else:
        verdict = job.verdict
        span.set_attribute(telemetry.OUTCOME, verdict.outcome.value)
        error, description = error_type(verdict), verdict.error or verdict.reason
        error = error and (verdict.exception or error)
    if error:
        span.set_attribute(telemetry.ERROR_TYPE, error)
        span.set_status(Status(StatusCode.ERROR, description))
    span.end(job.ended_ns or None)


def error_type(verdict: Verdict) -> str:
    """Return the kind of a failure in few words, or '' without a failure."""
    if verdict.outcome in (Outcome.ACK, Outcome.HAND_BACK):
        return ""
    return REASON_TIMEOUT if verdict.reason == REASON_TIMEOUT else str(verdict.outcome)
