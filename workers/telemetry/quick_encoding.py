"""Writes spans of deliveries as OTLP does, byte by byte: building protobuf messages for them costs five times as much.

Only plain spans are written here (no events, attributes that are text, numbers or flags); all others, and whatever a
program tells itself, are left to the SDK's encoder. A test reads both back and compares.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind
from opentelemetry.util.types import AttributeValue

from workers.telemetry.names import JOB_ID, MESSAGE_ID, SCOPE

# Fields of opentelemetry.proto.trace.v1.Span, and below: a field's number shifted by its wire type.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_KINDS = {kind: bytes([6 << 3 | _VARINT, number + 1]) for number, kind in enumerate(SpanKind)}
_UNIQUE = frozenset({MESSAGE_ID, JOB_ID})
"""Attributes that hardly ever have a value twice."""
_ONE_BYTE = 0x80
_VALUE, _TEXT = 2 << 3 | _BYTES, 1 << 3 | _BYTES
_IDS = struct.Struct(">BBQQBBQ")
_PARENT = struct.Struct(">BBQ")
_TIMES = struct.Struct("<BQBQ")
_FLAGS = struct.Struct("<BBI")
_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200
_PLAIN = frozenset({str, bool, int, float})


def encode(spans: Sequence[ReadableSpan]) -> bytes:
    """Return an ExportTraceServiceRequest."""
    plain = [span for span in spans if _is_plain(span)]
    if not plain:
        return bytes(encode_spans(spans).SerializeToString())
    quick = _request(plain)
    if len(plain) == len(spans):
        return quick
    others = [span for span in spans if not _is_plain(span)]
    return quick + bytes(encode_spans(others).SerializeToString())  # joined, the lists of both are one


def _is_plain(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return (
        scope is not None
        and scope.name == SCOPE
        and not span.events
        and span.attributes is not None
        and _PLAIN.issuperset(map(type, span.attributes.values()))
    )


def _request(spans: Sequence[ReadableSpan]) -> bytes:
    """Put spans into the request that the SDK makes of none: resource and scope are of its making."""
    first = spans[0]
    empty = encode_spans([first])
    resource_spans = empty.resource_spans[0]
    scope_spans = resource_spans.scope_spans[0]
    del scope_spans.spans[:]
    scope = scope_spans.SerializeToString() + b"".join([_field(2, _span(span)) for span in spans])
    del resource_spans.scope_spans[:]
    return _field(1, resource_spans.SerializeToString() + _field(2, scope))


def _span(span: ReadableSpan) -> bytes:
    context, parent, status = span.get_span_context(), span.parent, span.status
    assert context is not None
    parts = [
        _identity(context),
        _PARENT.pack(4 << 3 | _BYTES, 8, parent.span_id) if parent else b"",
        _named(span.name, span.kind),
        _TIMES.pack(7 << 3 | _FIXED64, span.start_time or 0, 8 << 3 | _FIXED64, span.end_time or 0),
        *_attributes(9, span.attributes or {}),
        *[_field(13, _link(link)) for link in span.links],
        _closing(status.status_code.value, status.description or "", _flags(parent)),
    ]
    state = context.trace_state
    if state:
        parts.append(_field(3, ",".join(f"{key}={value}" for key, value in state.items()).encode()))
    return b"".join(parts)


def _identity(context: SpanContext) -> bytes:
    trace_id = context.trace_id
    return _IDS.pack(
        1 << 3 | _BYTES, 16, trace_id >> 64, trace_id & 0xFFFFFFFFFFFFFFFF, 2 << 3 | _BYTES, 8, context.span_id
    )


def _flags(context: SpanContext | None) -> int:
    return _HAS_IS_REMOTE | (_IS_REMOTE if context is not None and context.is_remote else 0)


@lru_cache(maxsize=256)
def _link(link: Link) -> bytes:
    """Write a link; all deliveries of one read share that to the read."""
    flags = struct.pack("<BI", 6 << 3 | _FIXED32, _flags(link.context))
    return b"".join((_identity(link.context), *_attributes(4, link.attributes or {}), flags))


def _attributes(field: int, attributes: Mapping[str, AttributeValue]) -> list[bytes]:
    return [
        _unique(field, key, value)
        if key in _UNIQUE and type(value) is str
        else _attribute(field, key, value, type(value))  # type: ignore[arg-type]
        for key, value in attributes.items()
    ]


def _unique(field: int, key: str, value: str) -> bytes:
    """Write a text as `_attribute` does, in one go where all its lengths are one byte."""
    text, name = value.encode("utf-8", "replace"), _key(key)
    size, whole = len(text), len(text) + len(name) + 4
    if whole >= _ONE_BYTE:
        return _field(field, name + _field(2, _field(1, text)))
    return b"%c%c%b%c%c%c%c%b" % (field << 3 | _BYTES, whole, name, _VALUE, size + 2, _TEXT, size, text)


@lru_cache(maxsize=64)
def _key(key: str) -> bytes:
    return _field(1, key.encode())


@lru_cache(maxsize=2048)
def _attribute(field: int, key: str, value: AttributeValue, kind: type) -> bytes:
    if kind is str:
        encoded = _field(1, str(value).encode("utf-8", "replace"))
    elif kind is float:
        encoded = struct.pack("<Bd", 4 << 3 | _FIXED64, value)
    else:
        number = int(value) & 0xFFFFFFFFFFFFFFFF  # type: ignore[arg-type]
        encoded = bytes([(2 if kind is bool else 3) << 3 | _VARINT]) + _varint(number)
    return _field(field, _key(key) + _field(2, encoded))


@lru_cache(maxsize=256)
def _named(name: str, kind: SpanKind) -> bytes:
    return _field(5, name.encode("utf-8", "replace")) + _KINDS[kind]


@lru_cache(maxsize=256)
def _closing(code: int, description: str, flags: int) -> bytes:
    said = _field(2, description.encode("utf-8", "replace")) if description else b""
    status = _field(15, said + (bytes([3 << 3 | _VARINT, code]) if code else b""))
    return status + _FLAGS.pack(0x85, 0x01, flags)  # 16 << 3 | _FIXED32


def _field(number: int, content: bytes) -> bytes:
    size = len(content)
    if size < _ONE_BYTE:
        return bytes((number << 3 | _BYTES, size)) + content
    return bytes((number << 3 | _BYTES,)) + _varint(size) + content


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
