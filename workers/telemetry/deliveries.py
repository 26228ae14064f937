"""The spans of deliveries. Without an SDK, these functions make no spans.

The parent of every span is the producer's context, which is in the fields of the entry. So all deliveries of a job, its
recoveries and its redrives are side by side in one trace.
"""

from functools import lru_cache
from time import time_ns

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from workers.protocol.calls.group_moves import Recovered
from workers.protocol.messages import FIELD_TRACEPARENT, FIELD_TRACESTATE, text
from workers.telemetry import names as telemetry
from workers.telemetry.names import Attributes

_FORM = TraceContextTextMapPropagator()
"""The W3C form. Its names are those of the fields."""


def read_context(traceparent: bytes, tracestate: bytes = b"") -> SpanContext | None:
    """Return the trace context that a producer wrote into an entry, or None if it is invalid."""
    written = {text(FIELD_TRACEPARENT): text(traceparent), text(FIELD_TRACESTATE): text(tracestate)}
    context = trace.get_current_span(_FORM.extract(written, Context())).get_span_context()
    return context if context.is_valid else None


def write_context() -> list[bytes]:
    """Return fields that carry the current context in an entry, each name before its value."""
    written: dict[str, str] = {}
    _FORM.inject(written)
    return [word.encode() for field in written.items() for word in field]


@lru_cache(maxsize=1)
def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer:
    return provider.get_tracer(telemetry.SCOPE, schema_url=telemetry.SEMCONV)


def tracer() -> trace.Tracer:
    """Return the tracer of all spans of this package."""
    return _tracer_of(trace.get_tracer_provider())


def begin(
    name: str, parent: SpanContext | None, kind: SpanKind, attributes: Attributes, *, at_ns: int | None = None
) -> Span:
    """Begin a span. Without a parent, a new trace begins. Times are Unix nanoseconds."""
    context = trace.set_span_in_context(NonRecordingSpan(parent), Context()) if parent else Context()
    return tracer().start_span(name, context, kind, attributes, start_time=at_ns)


def emit_recovered(row: Recovered, stream: str, group: str, how: Attributes) -> None:
    """Write the span of a delivery that a recovery call ended. It begins with the last heartbeat of the delivery.

    The worker that ran it exports no span of it if it was killed. Invalid contexts are skipped.
    """
    if row.traced is None:
        return
    traceparent, tracestate, generation = row.traced
    creation, ended_ns = read_context(traceparent, tracestate), time_ns()
    if creation is None:
        return
    attributes = {
        **telemetry.common(telemetry.RECOVER, telemetry.SETTLE, stream, group),
        **how,
        telemetry.RECOVERY_OUTCOME: row.outcome.name.lower(),
        telemetry.MESSAGE_ID: text(row.entry_id),
        telemetry.CLIENT_ID: text(row.consumer),
        telemetry.JOB_ID: text(row.job_id),
        telemetry.ATTEMPT: row.delivery_count,
        telemetry.GENERATION: int(generation),
        telemetry.IDLE_MS: row.idle_ms,
        telemetry.ERROR_TYPE: telemetry.VISIBILITY_TIMEOUT,
    }
    began_ns = ended_ns - max(0, row.idle_ms) * 1_000_000
    span = begin(f"{telemetry.RECOVER} {stream}", creation, SpanKind.CLIENT, attributes, at_ns=began_ns)
    span.set_status(Status(StatusCode.ERROR, "not settled by the worker that had it"))
    span.end(ended_ns)
