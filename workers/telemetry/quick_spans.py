"""Spans of deliveries, at a fraction of the cost of the SDK's own: those are made for any use, and by several threads.

A worker that is busy with short jobs would spend more time on spans than on jobs. What is exported is a
`ReadableSpan` of the SDK; what a handler sees is a span like any other. It is written by one thread, as a delivery is.
"""

import random
from collections.abc import Mapping, Sequence
from time import time_ns

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import Attributes, AttributeValue

from workers.telemetry import names as telemetry
from workers.telemetry.deliveries import SpanIds

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope(telemetry.SCOPE, None, telemetry.SEMCONV)


class QuickSpan(Span, ReadableSpan):
    """A span that is sampled for certain: it is read as it was written, with nothing copied in between."""

    def __init__(
        self,
        processor: SpanProcessor,
        resource: Resource,
        name: str,
        parent: SpanContext | None,
        kind: SpanKind,
        attributes: telemetry.Attributes,
        links: Sequence[Link],
        at_ns: int | None,
        ids: SpanIds | None,
    ) -> None:
        span_id = ids.span_id if ids else random.getrandbits(64) or 1
        if parent is None:
            trace_id = ids.trace_id if ids else random.getrandbits(128) or 1
            context = SpanContext(trace_id, span_id, False, _SAMPLED)
        else:
            context = SpanContext(parent.trace_id, span_id, False, parent.trace_flags, parent.trace_state)
        start = time_ns() if at_ns is None else at_ns
        ReadableSpan.__init__(
            self, name, context, parent, resource, None, [], links, kind, start_time=start, instrumentation_scope=_SCOPE
        )
        self._context: SpanContext = context
        self._attributes: telemetry.Attributes = attributes
        self._events: list[Event] = []
        self._on_end = processor.on_end

    def get_span_context(self) -> SpanContext:
        """Return what the span is called."""
        return self._context

    def is_recording(self) -> bool:
        """Tell whether it still takes attributes."""
        return self._end_time is None

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """Set one attribute."""
        if self._end_time is None:
            self._attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set several attributes."""
        if self._end_time is None:
            self._attributes.update(attributes)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        """Note something that happens meanwhile."""
        if self._end_time is None:
            self._events.append(Event(name, attributes, timestamp))

    def update_name(self, name: str) -> None:
        """Call it something else."""
        self._name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Say how it went; what is well stays well."""
        if self._end_time is None and self._status.status_code is not StatusCode.OK:
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
        if self._end_time is None:
            self._end_time = time_ns() if end_time is None else end_time
            self._on_end(self)
