"""Spans of deliveries, at a fraction of the cost of the SDK's own: those are made for any use, and by several threads.

A worker that is busy with short jobs would spend more time on spans than on jobs. What is exported is the SDK's
`ReadableSpan`; what a handler sees is a span like any other. It is written by one thread, as a delivery is.
"""

import random
from collections.abc import Mapping, Sequence
from time import time_ns

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import Attributes, AttributeValue

from workers.protocol import telemetry
from workers.protocol.telemetry import SpanIds

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)


class QuickSpans:
    """Makes spans that are sampled for certain, and hands them to ``processor`` when they end."""

    def __init__(self, processor: SpanProcessor, resource: Resource) -> None:
        self.processor = processor
        self.resource = resource
        self.scope = InstrumentationScope(telemetry.SCOPE, None, telemetry.SEMCONV)

    def begin(
        self,
        name: str,
        parent: SpanContext | None,
        kind: SpanKind,
        attributes: telemetry.Attributes,
        links: Sequence[Link],
        at_ns: int | None,
        ids: SpanIds | None,
    ) -> Span:
        """Begin a span; see `telemetry.Begin`."""
        if ids is None:
            ids = SpanIds(random.getrandbits(128) or 1, random.getrandbits(64) or 1)
        if parent is None:
            context = SpanContext(ids.trace_id, ids.span_id, False, _SAMPLED)
        else:
            context = SpanContext(parent.trace_id, ids.span_id, False, parent.trace_flags, parent.trace_state)
        return QuickSpan(self, name, context, parent, kind, attributes, links, at_ns)


class QuickSpan(Span):
    """One of them."""

    __slots__ = (
        "_attributes", "_context", "_ended", "_events", "_kind", "_links", "_maker", "_name", "_parent", "_started_ns",
        "_status",
    )  # fmt: skip

    def __init__(
        self,
        maker: QuickSpans,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        attributes: telemetry.Attributes,
        links: Sequence[Link],
        at_ns: int | None,
    ) -> None:
        self._maker = maker
        self._name = name
        self._context = context
        self._parent = parent
        self._kind = kind
        self._attributes = attributes
        self._links = links
        self._events: list[Event] = []
        self._status = _UNSET
        self._ended = False
        self._started_ns = time_ns() if at_ns is None else at_ns

    def get_span_context(self) -> SpanContext:
        """Return what the span is called."""
        return self._context

    def is_recording(self) -> bool:
        """Tell whether it still takes attributes."""
        return not self._ended

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """Set one attribute."""
        if not self._ended:
            self._attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set several attributes."""
        if not self._ended:
            self._attributes.update(attributes)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        """Note something that happens meanwhile."""
        if not self._ended:
            self._events.append(Event(name, attributes, timestamp))

    def update_name(self, name: str) -> None:
        """Call it something else."""
        self._name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Say how it went; what is well stays well."""
        if not self._ended and self._status.status_code is not StatusCode.OK:
            self._status = status if isinstance(status, Status) else Status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Note an exception as an event."""
        about: dict[str, AttributeValue] = {
            "exception.type": type(exception).__qualname__,
            "exception.message": str(exception),
            "exception.escaped": str(escaped),
        }
        self.add_event("exception", {**about, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """Hand it in, once."""
        if self._ended:
            return
        self._ended = True
        self._maker.processor.on_end(
            ReadableSpan(
                self._name,
                self._context,
                self._parent,
                self._maker.resource,
                self._attributes,
                self._events,
                self._links,
                self._kind,
                None,
                self._status,
                self._started_ns,
                time_ns() if end_time is None else end_time,
                self._maker.scope,
            )
        )
