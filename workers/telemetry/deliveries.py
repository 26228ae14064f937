"""The trace of a job, and the spans of its deliveries.

Every delivery of a traced job has a name, and every process can compute it. The ID of the delivery's span is made from
that name (`TracedDelivery`). So the process that recovers a delivery can write its span for a dead worker. `SPAN_ID`
hands the ID to the generator of `workers.telemetry.sdk`. Without an SDK, these functions make no spans.

The parent of every span is the producer's context. Recoveries, retries and redrives only add links.
"""

import re
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from workers.protocol.calls.recovery import Recovered
from workers.protocol.messages import FIELD_TRACEPARENT, FIELD_TRACESTATE, text
from workers.telemetry import names as telemetry
from workers.telemetry.names import Attributes

MAX_TRACESTATE_BYTES = 512
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_PREVIOUS = re.compile(rb"(\d{1,15}\.\d{1,15}\.\d{1,15})\.([rs])")
SPAN_ID: ContextVar[int | None] = ContextVar("span_id", default=None)
"""The ID of the next span. None = a random one."""


def read_context(traceparent: bytes, tracestate: bytes = b"") -> SpanContext | None:
    """Return the trace context that a producer wrote into an entry, or None if it is invalid."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    state = None
    if tracestate and len(tracestate) <= MAX_TRACESTATE_BYTES:
        state = TraceState.from_header([text(tracestate)])
    trace_id, span_id, flags = (int(part, 16) for part in found.groups()[:3])
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags), trace_state=state)


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
    name: str,
    parent: SpanContext | None,
    kind: SpanKind,
    attributes: Attributes,
    links: Sequence[Link] = (),
    *,
    at_ns: int | None = None,
) -> Span:
    """Begin a span. Without a parent, a new trace begins. Times are Unix nanoseconds."""
    context = trace.set_span_in_context(NonRecordingSpan(parent), Context()) if parent else Context()
    return tracer().start_span(name, context, kind, attributes, links, start_time=at_ns)


class TracedDelivery(NamedTuple):
    """One delivery of a traced job. ``name`` is ``generation.copies.times delivered``, unique within the job."""

    creation: SpanContext
    """The producer's context."""
    stream: str
    group: str
    job_id: bytes
    name: bytes = b""

    def span_of(self, operation: str = telemetry.PROCESS) -> SpanContext:
        """Return the context of this delivery's span, wherever it was or will be made."""
        job_id = self.job_id if self.job_id.isascii() else text(self.job_id).encode()
        words = (self.stream.encode(), self.group.encode(), job_id, self.name, operation.encode())
        span_id = int.from_bytes(blake2b(b"\0".join(words), digest_size=8).digest()) or 1
        return SpanContext(self.creation.trace_id, span_id, is_remote=True, trace_flags=self.creation.trace_flags)

    def begin(
        self, operation: str, kind: SpanKind, attributes: Attributes, links: Sequence[Link], *, at_ns: int | None = None
    ) -> Span:
        """Begin the span of this delivery, with the ID that `span_of` returns."""
        token = SPAN_ID.set(self.span_of(operation).span_id)
        try:
            return begin(f"{operation} {self.stream}", self.creation, kind, attributes, links, at_ns=at_ns)
        finally:
            SPAN_ID.reset(token)

    def links_to(self, previous: bytes) -> list[Link]:
        """Return links to the delivery before this one (``reaper.previous``), and to its recovery."""
        found = _PREVIOUS.fullmatch(previous)
        if not found:
            return []
        earlier = self._replace(name=found[1])
        links = [Link(earlier.span_of(), {telemetry.LINK_KIND: "previous attempt"})]
        if found[2] == b"r":
            links.append(earlier.link_to_recovery())
        return links

    def link_to_recovery(self) -> Link:
        """Return a link to the recovery of this delivery."""
        return Link(self.span_of(telemetry.RECOVER), {telemetry.LINK_KIND: telemetry.RECOVER})


@dataclass(slots=True)
class JobTrace:
    """The trace of one delivery in a worker."""

    delivery: TracedDelivery | None
    """None = its producer wrote no trace context."""
    links: list[Link] = field(default_factory=list)
    span: Span | None = None
    ended_ns: int = 0


def emit_recovered(row: Recovered, stream: str, group: str, how: Attributes, *, began_ns: int, ended_ns: int) -> None:
    """Write the spans of a delivery that a recovery call ended. Invalid contexts are skipped."""
    traceparent, tracestate, name, previous = row.traced or ()
    creation = read_context(traceparent, tracestate)
    if creation is None:
        return
    about: Attributes = {telemetry.MESSAGE_ID: text(row.entry_id), telemetry.ATTEMPT: row.delivery_count}
    how = how | {telemetry.RECOVERY_OUTCOME: row.outcome.name.lower(), telemetry.IDLE_MS: row.idle_ms}
    lost = TracedDelivery(creation, stream, group, row.job_id, name)
    emit_recovery(lost, previous, text(row.consumer), about, how, began_ns=began_ns, ended_ns=ended_ns)


def emit_recovery(
    lost: TracedDelivery,
    previous: bytes,
    consumer: str,
    about: Attributes,
    how: Attributes,
    *,
    began_ns: int,
    ended_ns: int,
) -> list[Link]:
    """Write the span of a lost delivery for its worker, and the span of its recovery. Return links to both.

    ``about`` has attributes of the delivery, and ``how`` those of the recovery, with the idle time. The lost span
    begins at the last heartbeat, because a killed worker leaves no later trace.
    """
    about = about | {telemetry.JOB_ID: text(lost.job_id), telemetry.GENERATION: int(lost.name.split(b".")[0])}
    earlier, idle_ms = lost.links_to(previous), how[telemetry.IDLE_MS]
    assert isinstance(idle_ms, int)
    span = lost.begin(
        telemetry.PROCESS,
        SpanKind.CONSUMER,
        {
            **telemetry.common(telemetry.PROCESS, telemetry.PROCESS, lost.stream, lost.group),
            **about,
            telemetry.CLIENT_ID: consumer,
            telemetry.SYNTHESIZED: True,
            telemetry.ERROR_TYPE: how[telemetry.RECOVERY_REASON],
        },
        earlier,
        # Redis reports the idle time at some moment of the call, so the start is rather too late than too early.
        at_ns=min(ended_ns - max(0, idle_ms) * 1_000_000, began_ns),
    )
    span.set_status(Status(StatusCode.ERROR, "not settled by the worker that had it"))
    span.end(began_ns)
    to_lost = Link(lost.span_of(), {telemetry.LINK_KIND: "lost attempt"})
    common = telemetry.common(telemetry.RECOVER, telemetry.SETTLE, lost.stream, lost.group)
    links = [to_lost, *earlier[1:]]  # the second one, if there is one, leads to the recovery before
    recovery = lost.begin(telemetry.RECOVER, SpanKind.CLIENT, {**common, **about, **how}, links, at_ns=began_ns)
    recovery.end(ended_ns)
    return [to_lost, lost.link_to_recovery()]
