"""The spans and metrics of a worker: `process` and `ack` of its deliveries, and its recoveries.

A job that its producer's trace does not sample costs a look at one field. The span of a delivery is exported after its
settlement. If the delivery was taken away meanwhile, the process that recovered it has exported the span, under the
same ID.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from time import time_ns
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from workers.backoff import AT_ONCE, Backoff
from workers.loop.execution import REASON_TIMEOUT, execute
from workers.loop.handlers import Invoke
from workers.loop.in_flight import Delivery
from workers.protocol.calls.moves import Settled, SettleResult
from workers.protocol.calls.recovery import Recovered
from workers.protocol.calls.settlement import Outcome, Verdict
from workers.protocol.messages import FIELD_TRACEPARENT, FIELD_TRACESTATE, RecoveryMode
from workers.settings import WorkerSettings
from workers.telemetry import instruments
from workers.telemetry import names as telemetry
from workers.telemetry.deliveries import JobTrace, TracedDelivery, begin, emit_recovered, emit_recovery, read_context
from workers.telemetry.gauges import labels_of
from workers.telemetry.names import Attributes

_HOW: Attributes = {
    telemetry.RECOVERY_REASON: telemetry.VISIBILITY_TIMEOUT, telemetry.RECOVERY_MODE: RecoveryMode.EMBEDDED.value
}  # fmt: skip


class WorkerTelemetry:
    """Spans and metrics of one run of a worker. `make` returns None if telemetry is off."""

    def __init__(self, settings: WorkerSettings, consumer: str, *, traces: bool, measures: bool) -> None:
        self._stream, self._group = settings.stream, settings.group
        self._consumer = consumer
        self._traces = traces
        self._measures = measures
        self._process = telemetry.common(telemetry.PROCESS, telemetry.PROCESS, self._stream, self._group)
        self._receive = telemetry.common(telemetry.RECEIVE, telemetry.RECEIVE, self._stream, self._group)
        self._of_settling = telemetry.common(telemetry.SETTLE, telemetry.SETTLE, self._stream, self._group)
        self._labels = labels_of(settings.keys)
        self._shown = ExitStack()
        self._of_results: dict[str, Mapping[str, AttributeValue]] = {"": self._process}

    @classmethod
    def make(cls, settings: WorkerSettings, consumer: str) -> "WorkerTelemetry | None":
        """Return one, if a tracer or meter provider is set."""
        traces, measures = telemetry.is_tracing(), telemetry.is_measuring()
        return cls(settings, consumer, traces=traces, measures=measures) if traces or measures else None

    def watch_refusals(self, refused: Callable[[], int]) -> None:
        """Show how many parts of the worker Redis has ``refused``, until `close`."""
        self._shown.callback(instruments.OBSERVATIONS.add(instruments.REFUSED, lambda: [(refused(), self._labels)]))

    def lost(self, *, groups: int = 0, consumers: int = 0) -> None:
        """Count the destroyed deliveries whose content is unknown. Starts with 0, so that a rise is visible."""
        if self._measures:
            instruments.LOST.add(groups, self._labels | {telemetry.LOSS: telemetry.LOST_GROUP})
            instruments.LOST.add(consumers, self._labels | {telemetry.LOSS: telemetry.LOST_CONSUMER})

    def close(self) -> None:
        """Show no values any more."""
        self._shown.close()

    # ---- reading

    def received(self, deliveries: Sequence[Delivery]) -> None:
        """Count the ``deliveries`` of a read, and prepare their traces."""
        if self._measures:
            instruments.CONSUMED.add(len(deliveries), self._receive)
        if self._traces:
            for job in deliveries:
                if not job.is_unsampled:
                    self._prepare(job)

    def _prepare(self, job: Delivery) -> TracedDelivery | None:
        """Decide whether to trace a delivery. Returns its span data if its producer's trace is sampled."""
        traceparent = job.value_of(FIELD_TRACEPARENT)
        creation = None
        if traceparent is not None:
            creation = read_context(traceparent, job.value_of(FIELD_TRACESTATE) or b"")
            if creation is None:
                instruments.CONTEXT_MALFORMED.add(1, self._labels)
        if creation is None:
            job.trace = JobTrace(None)
            return None
        if not creation.trace_flags.sampled:
            return None
        name = b"%d.%d.%d" % (job.generation, job.copies, job.times_delivered)
        delivery = TracedDelivery(creation, self._stream, self._group, job.raw_id, name)
        previous = job.previous(job.times_delivered)
        job.trace = JobTrace(delivery, delivery.links_to(previous) if previous else [])
        return delivery

    # ---- recovering

    def taken_over(self, job: Delivery, owner: str, idle_ms: int, visibility_s: float) -> None:
        """Report a delivery that we have taken from ``owner`` after a visibility timeout, and the one before it."""
        self._count_recovery(idle_ms, "claimed", visibility_s)
        if not self._traces:
            return
        delivery = self._prepare(job)
        if delivery is None or job.trace is None:
            return
        before = job.times_delivered - 1
        lost = delivery._replace(name=b"%d.%d.%d" % (job.generation, job.copies, before))
        about: Attributes = {telemetry.MESSAGE_ID: job.entry_id, telemetry.ATTEMPT: max(1, job.deliveries - 1)}
        how = _HOW | {telemetry.RECOVERY_OUTCOME: "claimed", telemetry.IDLE_MS: idle_ms}
        now, previous = time_ns(), job.previous(before) or b""
        job.trace.links += emit_recovery(lost, previous, owner, about, how, began_ns=now, ended_ns=now)

    def recovered(self, row: Recovered, visibility_s: float) -> None:
        """Report a delivery that we ended for its consumer after a visibility timeout."""
        self._count_recovery(row.idle_ms, row.outcome.name.lower(), visibility_s)
        if row.traced and self._traces:
            now = time_ns()
            emit_recovered(row, self._stream, self._group, _HOW, began_ns=now, ended_ns=now)

    def walked(self, took_s: float) -> None:
        """Measure a walk over what is pending, from its first page to its last."""
        if self._measures:
            instruments.SCAN_DURATION.record(took_s, self._labels | {telemetry.SCAN: "full"})

    def _count_recovery(self, idle_ms: int, outcome: str, visibility_s: float) -> None:
        if self._measures:
            labels = self._labels | {telemetry.RECOVERY_MODE: RecoveryMode.EMBEDDED.value}
            instruments.RECOVERED.add(1, labels | {telemetry.RECOVERY_OUTCOME: outcome})
            instruments.record_lateness(idle_ms, visibility_s, labels)

    # ---- running

    def execute(self, invoke: Invoke, job: Delivery, backoff: Backoff = AT_ONCE) -> Coroutine[Any, Any, Verdict]:
        """Run the handler on ``job``, as `workers.loop.execution.execute` does, inside the span of its delivery."""
        told = job.trace
        return execute(invoke, job, backoff, job.runner) if told is None else self._execute(invoke, job, backoff, told)

    async def _execute(self, invoke: Invoke, job: Delivery, backoff: Backoff, told: JobTrace) -> Verdict:
        told.span = span = self._begin(job, told)
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            return await execute(invoke, job, backoff, job.runner)
        finally:
            contexts.detach(token)
            told.ended_ns = time_ns()

    async def execute_batch(
        self, running: Coroutine[Any, Any, Sequence[Verdict]], jobs: Sequence[Delivery]
    ) -> Sequence[Verdict]:
        """Run a batch inside the spans of its deliveries. None of them is the current one."""
        traced = [(job, job.trace) for job in jobs if job.trace is not None]
        for job, told in traced:
            told.span = self._begin(job, told)
        try:
            return await running
        finally:
            for _, told in traced:
                told.ended_ns = time_ns()

    def _begin(self, job: Delivery, told: JobTrace) -> Span:
        about: Attributes = {
            **self._process,
            telemetry.MESSAGE_ID: job.entry_id,
            telemetry.CLIENT_ID: self._consumer,
            telemetry.JOB_ID: job.id,
            telemetry.ATTEMPT: job.deliveries,
            telemetry.GENERATION: job.generation,
        }
        if told.delivery is not None:
            return told.delivery.begin(telemetry.PROCESS, SpanKind.CONSUMER, about, told.links)
        return begin(f"{telemetry.PROCESS} {self._stream}", None, SpanKind.CONSUMER, about)

    # ---- settling

    def settled(self, batch: Sequence[Delivery], results: Sequence[Settled] | None, began_ns: int) -> None:
        """Trace deliveries whose settlement is answered. None means that every one was acknowledged."""
        now = time_ns()
        if self._measures:
            self._measure(batch, results, (now - began_ns) / 1e9)
        if not self._traces:
            return
        for n, job in enumerate(batch):
            told = job.trace
            if told is not None and told.span is not None and told.span.is_recording():
                refused = results is not None and results[n].result is SettleResult.REJECTED
                self._trace_settled(job, told.span, told.ended_ns, refused, began_ns, now)

    def _trace_settled(self, job: Delivery, span: Span, ended_ns: int, refused: bool, began_ns: int, now: int) -> None:
        verdict = job.verdict
        about: Attributes = {
            **self._of_settling,
            telemetry.OPERATION: verdict.outcome.value,
            telemetry.MESSAGE_ID: job.entry_id,
            telemetry.CLIENT_ID: self._consumer,
        }
        if refused:
            about[telemetry.ERROR_TYPE] = telemetry.REFUSED
        settlement = begin(
            f"{verdict.outcome.value} {self._stream}", span.get_span_context(), SpanKind.CLIENT, about, at_ns=began_ns
        )
        if refused:
            settlement.set_status(Status(StatusCode.ERROR, "the delivery was not ours any more"))
        settlement.end(now)
        if refused:
            return  # the process that recovered it has exported its span
        failure = error_type(verdict)
        if failure:
            span.set_attribute(telemetry.ERROR_TYPE, verdict.exception or failure)
            span.set_status(Status(StatusCode.ERROR, verdict.error or verdict.reason))
        span.end(ended_ns)

    def _measure(self, batch: Sequence[Delivery], results: Sequence[Settled] | None, took_s: float) -> None:
        instruments.OPERATION_DURATION.record(took_s, self._of_settling)
        record, plain = instruments.PROCESS_DURATION.record, self._process
        for job in batch:
            verdict, run_ms = job.verdict, job.run_ms
            if verdict.outcome is Outcome.ACK:
                record(run_ms / 1000, plain)
            elif verdict.outcome is not Outcome.HAND_BACK:
                record(run_ms / 1000, self._failed_as(error_type(verdict)))
        if results is not None:
            refused = sum(settled.result is SettleResult.REJECTED for settled in results)
            if refused:
                instruments.WRITES_REFUSED.add(refused, self._labels)

    def _failed_as(self, error: str) -> Mapping[str, AttributeValue]:
        labels = self._of_results.get(error)
        if labels is None:
            labels = self._of_results[error] = self._process | {telemetry.ERROR_TYPE: error}
        return labels


def error_type(verdict: Verdict) -> str:
    """Return the kind of a failure in few words, or '' without a failure."""
    if verdict.outcome in (Outcome.ACK, Outcome.HAND_BACK):
        return ""
    return REASON_TIMEOUT if verdict.reason == REASON_TIMEOUT else str(verdict.outcome)
