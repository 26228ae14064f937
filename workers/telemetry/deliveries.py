"""The spans of deliveries. Without an SDK, these functions make no spans.

The parent of every span is the producer's context, which is in the fields of the entry. So all deliveries of a job, its
recoveries and its redrives are side by side in one trace.
"""

import re
from functools import lru_cache
from time import time_ns

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode

from workers.protocol.calls.recovery import Recovered
from workers.protocol.messages import FIELD_TRACEPARENT, FIELD_TRACESTATE, text
from workers.telemetry import names as telemetry
from workers.telemetry.names import Attributes

MAX_TRACESTATE_BYTES = 512
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def read_context(traceparent: bytes, tracestate: bytes = b"") -> SpanContext | None:
    """Return the trace context that a producer wrote into an entry, or None if it is invalid."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    state = None
    if tracestate and len(tracestate) <= MAX_TRACESTATE_BYTES:
        state = trace.TraceState.from_header([text(tracestate)])
    trace_id, span_id, flags = (int(part, 16) for part in found.groups()[:3])
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(flags), trace_state=state)


def write_context(context: SpanContext) -> list[tuple[bytes, bytes]]:
    """Return the fields that carry a context in an entry."""
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    fields = [(FIELD_TRACEPARENT, parent.encode())]
    state = context.trace_state.to_header().encode()
    if state and len(state) <= MAX_TRACESTATE_BYTES:
        fields.append((FIELD_TRACESTATE, state))
    return fields


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


def emit_recovery(creation: SpanContext, stream: str, group: str, about: Attributes, idle_ms: int) -> None:
    """Write the span of a recovery. It begins with the last heartbeat of the lost delivery, which ``about`` describes.

    The worker that ran the delivery exports no span of it if it was killed.
    """
    ended_ns = time_ns()
    attributes = {
        **telemetry.common(telemetry.RECOVER, telemetry.SETTLE, stream, group),
        **about,
        telemetry.IDLE_MS: idle_ms,
        telemetry.ERROR_TYPE: telemetry.VISIBILITY_TIMEOUT,
    }
    began_ns = ended_ns - max(0, idle_ms) * 1_000_000
    span = begin(f"{telemetry.RECOVER} {stream}", creation, SpanKind.CLIENT, attributes, at_ns=began_ns)
    span.set_status(Status(StatusCode.ERROR, "not settled by the worker that had it"))
    span.end(ended_ns)


def emit_recovered(row: Recovered, stream: str, group: str, how: Attributes) -> None:
    """Write the span of a delivery that a recovery call ended. Invalid contexts are skipped."""
    if row.traced is None:
        return
    traceparent, tracestate, generation = row.traced
    creation = read_context(traceparent, tracestate)
    if creation is not None:
        about: Attributes = {
            **how,
            telemetry.RECOVERY_OUTCOME: row.outcome.name.lower(),
            telemetry.MESSAGE_ID: text(row.entry_id),
            telemetry.CLIENT_ID: text(row.consumer),
            telemetry.JOB_ID: text(row.job_id),
            telemetry.ATTEMPT: row.delivery_count,
            telemetry.GENERATION: int(generation),
        }
        emit_recovery(creation, stream, group, about, row.idle_ms)
