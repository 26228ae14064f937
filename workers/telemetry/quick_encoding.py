"""Builds the message of spans of deliveries out of parts that the SDK's encoder has made before.

These spans hardly differ. The SDK's encoder builds each part once (an attribute, a link, what spans of a name have in
common), and serialized messages that are joined are one message. Spans with events, or attributes that are no text,
number or flag, are left to it, as are a program's own. Decision 20 says what this buys.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from workers.telemetry.names import SCOPE

_NO_RESOURCE = Resource({})
"""Without one, a span looks for its own, which takes threads."""
_PLAIN = frozenset({str, bool, int, float})


def encode(spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    """Return what the SDK's encoder would, but for the order of spans."""
    plain = [span for span in spans if _is_plain(span)]
    if not plain:
        return encode_spans(spans)
    request = _message(resource=plain[0].resource, instrumentation_scope=plain[0].instrumentation_scope)
    scope_spans = request.resource_spans[0].scope_spans[0]
    del scope_spans.spans[:]
    for span in plain:
        _write(span, scope_spans.spans.add())
    if len(plain) < len(spans):
        request.MergeFrom(encode_spans([span for span in spans if not _is_plain(span)]))
    return request


def _is_plain(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return (
        scope is not None
        and scope.name == SCOPE
        and not span.events
        and _PLAIN.issuperset(map(type, (span.attributes or {}).values()))
    )


def _write(span: ReadableSpan, message: Span) -> None:
    context, parent, status = span.get_span_context(), span.parent, span.status
    assert context is not None
    parts = [
        _frame(span.name, span.kind, parent and parent.is_remote, status.status_code, status.description or ""),
        *[_attribute(key, value) for key, value in (span.attributes or {}).items()],
        *[_link(link) for link in span.links],
    ]
    message.MergeFromString(b"".join(parts))
    message.trace_id = context.trace_id.to_bytes(16)
    message.span_id = context.span_id.to_bytes(8)
    message.trace_state = context.trace_state.to_header()
    if parent:
        message.parent_span_id = parent.span_id.to_bytes(8)
    message.start_time_unix_nano = span.start_time or 0
    message.end_time_unix_nano = span.end_time or 0


@lru_cache(maxsize=256)
def _frame(name: str, kind: SpanKind, is_remote: bool | None, code: StatusCode, description: str) -> bytes:
    parent = None if is_remote is None else SpanContext(0, 0, is_remote)
    part = _part(_valid(name), kind=kind, parent=parent, status=Status(code, _valid(description)))
    return bytes(part.SerializeToString())


@lru_cache(maxsize=2048, typed=True)
def _attribute(key: str, value: AttributeValue) -> bytes:
    if type(value) is str:  # every job has some that no other has, such as its ID
        one = [KeyValue(key=key, value=AnyValue(string_value=_valid(value)))]
        return bytes(Span(attributes=one).SerializeToString())
    return bytes(Span(attributes=_part(attributes={key: value}).attributes).SerializeToString())


@lru_cache(maxsize=256)
def _link(link: Link) -> bytes:
    """Write a link; all deliveries of one read share that to the read."""
    context = link.context
    written = Span.Link.FromString(_link_frame(context.is_remote, *(link.attributes or {}).items()))
    written.trace_id = context.trace_id.to_bytes(16)
    written.span_id = context.span_id.to_bytes(8)
    return bytes(Span(links=[written]).SerializeToString())


@lru_cache(maxsize=64)
def _link_frame(is_remote: bool, *attributes: tuple[str, AttributeValue]) -> bytes:
    part = _part(links=[Link(SpanContext(0, 0, is_remote), dict(attributes))])
    return bytes(part.links[0].SerializeToString())


def _part(name: str = "", **has: Any) -> Span:
    part: Span = _message(name, **has).resource_spans[0].scope_spans[0].spans[0]
    return part


def _message(name: str = "", **has: Any) -> ExportTraceServiceRequest:
    """Return what the SDK's encoder makes of a span that only has this."""
    return encode_spans([ReadableSpan(name, SpanContext(0, 0, is_remote=False), **{"resource": _NO_RESOURCE, **has})])


def _valid(words: str) -> str:
    """Return words that protobuf takes; an exception may say others."""
    return words.encode("utf-8", "replace").decode()
