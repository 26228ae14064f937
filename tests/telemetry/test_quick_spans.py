"""Quick spans are exported as the SDK's own would be."""

from collections.abc import Iterator
from functools import partial

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from workers.telemetry.deliveries import (
    QUICK,
    Begin,
    Delivery,
    SpanIds,
    Story,
    _called,
    context_of,
    read_context,
    write_context,
)
from workers.telemetry.quick_encoding import encode
from workers.telemetry.quick_spans import QuickSpan
from workers.telemetry.sdk import DeliveryIds, KeepsDecisions

CREATION = SpanContext(
    0xABC, 0xDEF, is_remote=True, trace_flags=TraceFlags(3), trace_state=TraceState.from_header(["a=b,c=d"])
)
DELIVERY = Delivery("orders", "billing", b"job \xff", b"0.1.1")


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Where spans go."""
    return InMemorySpanExporter()


@pytest.fixture
def begin(exporter: InMemorySpanExporter) -> Begin:
    """Begins quick spans."""
    return partial(QuickSpan, SimpleSpanProcessor(exporter), Resource({"service.name": "w", "n": 1}))


def told(begin: Begin, exporter: InMemorySpanExporter, **attributes: object) -> ReadableSpan:
    """Return a quick span with everything that one may have."""
    about = {"text": "äöü" * 100, "yes": True, "number": -7, "large": 2**62, "share": 0.25, "": "", **attributes}
    link = Link(SpanContext(1, 2, is_remote=False), {"reaper.link": "receive"})
    span = begin("process orders", CREATION, SpanKind.CONSUMER, about, [link], 5, DELIVERY.ids())  # type: ignore[arg-type]
    span.set_status(Status(StatusCode.ERROR, "no"))
    span.end(9)
    return exporter.get_finished_spans()[-1]


def as_the_sdk_does(*spans: ReadableSpan) -> ExportTraceServiceRequest:
    return encode_spans(spans)


def test_what_is_written_reads_as_what_the_sdk_writes(begin: Begin, exporter: InMemorySpanExporter) -> None:
    span = told(begin, exporter)
    root = begin("receive orders", None, SpanKind.CLIENT, {}, [], None, None)
    root.end()
    both = exporter.get_finished_spans()
    assert both[0] is span
    assert encode(both) == as_the_sdk_does(*both)


def test_what_is_not_plain_is_left_to_the_sdk(begin: Begin, exporter: InMemorySpanExporter) -> None:
    plain, other = told(begin, exporter), told(begin, exporter, many=("a", "b"))
    read = encode([other, plain])
    (first,), (second,) = (resource.scope_spans[0].spans for resource in read.resource_spans)
    expected = as_the_sdk_does(plain, other).resource_spans[0].scope_spans[0].spans
    assert [first, second] == list(expected)
    assert encode([other]) == as_the_sdk_does(other)


def test_words_that_are_no_unicode_stop_no_export(begin: Begin, exporter: InMemorySpanExporter) -> None:
    span = begin("process orders", CREATION, SpanKind.CONSUMER, {"a": "no \udc80"}, [], None, None)
    span.set_status(StatusCode.ERROR, "no \udc80")
    span.end()
    (read,) = encode(exporter.get_finished_spans()).resource_spans[0].scope_spans[0].spans
    assert (read.status.message, read.attributes[0].value.string_value) == ("no ?", "no ?")


def test_a_handler_may_say_anything_until_the_span_ends(begin: Begin, exporter: InMemorySpanExporter) -> None:
    span = begin("process orders", CREATION, SpanKind.CONSUMER, {"a": 1}, [], None, None)
    span.set_attribute("a", 2)
    span.set_attributes({"b": 3})
    span.add_event("half way", {"c": 4})
    span.record_exception(ValueError("no"))
    span.update_name("process mail")
    span.set_status(StatusCode.OK)
    span.set_status(StatusCode.ERROR, "too late")
    span.end()
    span.end()
    span.set_attribute("a", 5)
    (ended,) = exporter.get_finished_spans()
    assert dict(ended.attributes or {}) == {"a": 2, "b": 3}
    assert [event.name for event in ended.events] == ["half way", "exception"]
    assert (ended.name, ended.status.status_code, span.is_recording()) == ("process mail", StatusCode.OK, False)


@pytest.fixture
def quick(begin: Begin) -> Iterator[None]:
    """Begin spans of deliveries the quick way."""
    QUICK.begin = begin
    yield
    QUICK.begin = None


@pytest.mark.usefixtures("quick")
def test_a_delivery_is_called_the_same_by_everybody(exporter: InMemorySpanExporter) -> None:
    story = Story(CREATION)
    story.begin(DELIVERY, {}).end()
    (span,) = exporter.get_finished_spans()
    provider = TracerProvider(id_generator=DeliveryIds(), shutdown_on_exit=False)
    with _called(DELIVERY.ids()):
        slow = provider.get_tracer("x").start_span("x", context_of(CREATION))
    known = story.span_of(DELIVERY)
    ids = [(context.trace_id, context.span_id) for context in (span.context, slow.get_span_context(), known) if context]
    assert len(ids) == 3
    assert len(set(ids)) == 1


def test_every_delivery_has_a_name_of_its_own() -> None:
    names = [b"0.0.1", b"0.0.2", b"0.1.1", b"1.0.1"]
    ids = {DELIVERY.called(name).ids(operation) for name in names for operation in ("process", "recover")}
    others = {DELIVERY._replace(group="audit").ids(), DELIVERY._replace(stream="mail").ids()}
    assert len(ids | others) == 10
    assert all(isinstance(one, SpanIds) for one in ids)


@pytest.mark.parametrize(
    ("traceparent", "known"),
    [
        (b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", True),
        (b"cc-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01-more", True),
        (b"ff-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", False),
        (b"00-" + b"0" * 32 + b"-" + b"b" * 16 + b"-01", False),
        (b"00-" + b"a" * 32 + b"-" + b"0" * 16 + b"-01", False),
        (b"00-" + b"A" * 32 + b"-" + b"b" * 16 + b"-01", False),
        (b"00-11-22-01", False),
        (b"", False),
    ],
)
def test_a_context_is_read_as_w3c_says(traceparent: bytes, known: bool) -> None:
    assert (read_context(traceparent) is not None) == known


def test_a_context_is_written_as_it_was_read_without_a_tracestate_that_is_too_long() -> None:
    fields = dict(write_context(CREATION))
    assert read_context(fields[b"traceparent"], fields[b"tracestate"]) == CREATION
    endless = read_context(fields[b"traceparent"], b"a=" + b"b" * 600)
    assert endless is not None
    assert len(endless.trace_state) == 0


@pytest.mark.parametrize(("sampled", "decision"), [(True, True), (False, False)])
def test_a_new_trace_that_links_a_producers_keeps_its_decision(sampled: bool, decision: bool) -> None:
    provider = TracerProvider(sampler=ParentBased(KeepsDecisions(ALWAYS_OFF)), shutdown_on_exit=False)
    creation = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(sampled))
    span = provider.get_tracer("x").start_span("x", context_of(None), links=[Link(creation)])
    assert span.is_recording() == decision
