"""The trace of a job, and the spans of its deliveries.

Without an SDK, the module does nothing. Every delivery of a traced job has a name that every process can compute
(`Delivery`). The ID of its span is made from that name. So the process that recovers a delivery can write the span of a
killed worker, and links to that span are valid. The IDs come about by `DELIVERY_IDS`, which the span ID generator of
`workers.telemetry.sdk` obeys.

The context of every delivery is the producer's. Recoveries, retries and redrives only add links.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

# ---- context in an entry

MAX_TRACESTATE_BYTES = 512
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def read_context(traceparent: bytes, tracestate: bytes = b"") -> SpanContext | None:
    """Return what a producer wrote into an entry, or None where it is no trace context."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    state = None
    if tracestate and len(tracestate) <= MAX_TRACESTATE_BYTES:
        state = TraceState.from_header([text(tracestate)])
    return SpanContext(
        int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=TraceFlags(int(found[3], 16)),
        trace_state=state,
    )  # fmt: skip


def write_context(context: SpanContext) -> list[tuple[bytes, bytes]]:
    """Return the fields that carry a context in an entry."""
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    fields = [(FIELD_TRACEPARENT, parent.encode())]
    state = context.trace_state.to_header().encode()
    if state and len(state) <= MAX_TRACESTATE_BYTES:
        fields.append((FIELD_TRACESTATE, state))
    return fields


def context_of(parent: SpanContext | None) -> Context:
    """Return a context with this parent only. Without a parent, a new trace begins."""
    return trace.set_span_in_context(NonRecordingSpan(parent), Context()) if parent else Context()


# ---- the name of a delivery


class SpanIds(NamedTuple):
    """IDs that every process computes in the same way."""

    trace_id: int
    """For a span without parent."""
    span_id: int


DELIVERY_IDS: ContextVar[SpanIds | None] = ContextVar("delivery_ids", default=None)
"""What the next span is to be called; None = anything."""


@contextmanager
def _called(ids: SpanIds | None) -> Iterator[None]:
    token = DELIVERY_IDS.set(ids)
    try:
        yield
    finally:
        DELIVERY_IDS.reset(token)


@lru_cache(maxsize=256)
def _group_name(stream: str, group: str) -> bytes:
    return f"{stream}\0{group}".encode()


class Delivery(NamedTuple):
    """One delivery of a traced job. The name ``generation.copies.times delivered`` is unique within a job."""

    stream: str
    group: str
    job_id: bytes
    name: bytes

    def ids(self, operation: str = telemetry.PROCESS) -> SpanIds:
        """Return what the span of its processing (or recovery) is called."""
        job_id = self.job_id if self.job_id.isascii() else text(self.job_id).encode()
        words = (_group_name(self.stream, self.group), job_id, self.name, operation.encode())
        digest = blake2b(b"\0".join(words), digest_size=24).digest()
        return SpanIds(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:]) or 1)

    @property
    def generation(self) -> int:
        """How often the job was redriven before."""
        return int(self.name.split(b".")[0])

    def called(self, name: bytes) -> "Delivery":
        """Return another delivery of the same job."""
        return self._replace(name=name)


_PREVIOUS = re.compile(rb"(\d{1,15}\.\d{1,15}\.\d{1,15})\.([rs])")


class Story(NamedTuple):
    """The link between the spans of a job's deliveries, which is the creation context of the producer."""

    creation: SpanContext

    def span_of(self, delivery: Delivery, operation: str = telemetry.PROCESS) -> SpanContext:
        """Return the context of a delivery's span, wherever it was or will be made."""
        span_id = delivery.ids(operation).span_id
        return SpanContext(self.creation.trace_id, span_id, is_remote=True, trace_flags=self.creation.trace_flags)

    def links_to(self, delivery: Delivery, previous: bytes) -> list[Link]:
        """Return links to the delivery that came before ``delivery`` (``reaper.previous``), and to its recovery."""
        found = _PREVIOUS.fullmatch(previous)
        if not found:
            return []
        earlier = delivery.called(found[1])
        links = [Link(self.span_of(earlier), {telemetry.LINK_KIND: "previous attempt"})]
        if found[2] == b"r":
            links.append(Link(self.span_of(earlier, telemetry.RECOVER), {telemetry.LINK_KIND: telemetry.RECOVER}))
        return links

    def begin(
        self, delivery: Delivery, attributes: Attributes, links: Sequence[Link] = (), *, at_ns: int | None = None
    ) -> Span:
        """Begin the span of a delivery's processing."""
        name = f"{telemetry.PROCESS} {delivery.stream}"
        return begin(name, self.creation, SpanKind.CONSUMER, attributes, links, at_ns=at_ns, ids=delivery.ids())


def begin(
    name: str,
    parent: SpanContext | None,
    kind: SpanKind,
    attributes: Attributes,
    links: Sequence[Link] = (),
    *,
    at_ns: int | None = None,
    ids: SpanIds | None = None,
) -> Span:
    """Begin a span with the given ``ids``. Times are Unix nanoseconds."""
    with _called(ids):
        return tracer().start_span(name, context_of(parent), kind, attributes, links, start_time=at_ns)


def any_sampled(links: Sequence[Link]) -> bool:
    """Tell whether a trace that is linked to is sampled."""
    return any(link.context.trace_flags.sampled for link in links)


@lru_cache(maxsize=1)
def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer:
    return provider.get_tracer(telemetry.SCOPE, schema_url=telemetry.SEMCONV)


def tracer() -> trace.Tracer:
    """Return the tracer of everything here."""
    return _tracer_of(trace.get_tracer_provider())


# ---- recoveries, written by the process that recovers


class RecoveredDelivery(NamedTuple):
    """A delivery that another process has recovered or dead-lettered for its worker."""

    delivery: Delivery
    entry_id: str
    attempt: int
    consumer: str
    idle_ms: int
    previous: bytes = b""


def emit_recovered(row: Recovered, stream: str, group: str, how: Attributes, *, began_ns: int, ended_ns: int) -> None:
    """As `emit_recovery`, by the result of a recovery call. Invalid contexts are skipped."""
    traceparent, tracestate, name, previous = row.traced or ()
    creation = read_context(traceparent, tracestate)
    if creation is None:
        return
    delivery = Delivery(stream, group, row.job_id, name)
    lost = RecoveredDelivery(
        delivery, text(row.entry_id), row.delivery_count, text(row.consumer), row.idle_ms, previous
    )
    how = how | {telemetry.RECOVERY_OUTCOME: row.outcome.name.lower()}
    emit_recovery(Story(creation), lost, how, began_ns=began_ns, ended_ns=ended_ns)


def emit_recovery(
    story: Story, lost: RecoveredDelivery, how: Attributes, *, began_ns: int, ended_ns: int
) -> list[Link]:
    """Write the span of a lost delivery for its worker, and the span of its recovery. Return links to both.

    ``how`` has the recovery's reason, outcome and mode, and a leader's token, as attributes. The lost span begins at
    the last heartbeat, because a killed worker leaves no later trace.
    """
    delivery = lost.delivery
    about: Attributes = {
        telemetry.MESSAGE_ID: lost.entry_id,
        telemetry.JOB_ID: text(delivery.job_id),
        telemetry.ATTEMPT: lost.attempt,
        telemetry.GENERATION: delivery.generation,
    }
    earlier = story.links_to(delivery, lost.previous)
    span = story.begin(
        delivery,
        {
            **telemetry.common(telemetry.PROCESS, telemetry.PROCESS, delivery.stream, delivery.group),
            **about,
            telemetry.CLIENT_ID: lost.consumer,
            telemetry.SYNTHESIZED: True,
            telemetry.ERROR_TYPE: how[telemetry.RECOVERY_REASON],
        },
        earlier,
        # Redis reports the idle time at some moment of the call, so the start is rather too late than too early.
        at_ns=min(ended_ns - max(0, lost.idle_ms) * 1_000_000, began_ns),
    )
    span.set_status(Status(StatusCode.ERROR, "not settled by the worker that had it"))
    span.end(began_ns)
    to_lost = Link(story.span_of(delivery), {telemetry.LINK_KIND: "lost attempt"})
    recoveries = (link for link in earlier if (link.attributes or {}).get(telemetry.LINK_KIND) == telemetry.RECOVER)
    common = telemetry.common(telemetry.RECOVER, telemetry.SETTLE, delivery.stream, delivery.group)
    recovery = begin(
        f"{telemetry.RECOVER} {delivery.stream}",
        story.creation,
        SpanKind.CLIENT,
        {**common, **about, **how, telemetry.IDLE_MS: lost.idle_ms},
        [to_lost, *recoveries],
        at_ns=began_ns,
        ids=delivery.ids(telemetry.RECOVER),
    )
    recovery.end(ended_ns)
    return [to_lost, Link(story.span_of(delivery, telemetry.RECOVER), {telemetry.LINK_KIND: telemetry.RECOVER})]


# ---- the deliveries of a worker


@dataclass(slots=True)
class JobTrace:
    """The data for the span of one delivery."""

    story: Story | None
    """None = its producer wrote no trace context."""
    links: list[Link] = field(default_factory=list)
    span: Span | None = None
    ended_ns: int = 0
