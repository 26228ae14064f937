"""A receiver of OTLP/HTTP in a thread. It keeps the exports of processes."""

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span as it was exported. IDs are hexadecimal. Moments are Unix nanoseconds."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    """'' = a root."""
    start_ns: int
    end_ns: int
    failed: bool
    attributes: Mapping[str, Any]


@dataclass(slots=True)
class Received:
    """The received data. Read it in any thread."""

    port: int = 0
    spans: list[ReceivedSpan] = field(default_factory=list)
    metrics: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    """Labels of the data points that came, by the metric's name."""

    @property
    def endpoint(self) -> str:
        """Value for OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self.port}"

    def take_traces(self, body: bytes) -> None:
        """Keep the spans of one export."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = str(_read(resource.resource.attributes).get("service.name", ""))
            self.spans += [_span(service, span) for scope in resource.scope_spans for span in scope.spans]

    def take_metrics(self, body: bytes) -> None:
        """Keep the names and labels of one export."""
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                data = getattr(metric, str(metric.WhichOneof("data")))
                self.metrics.setdefault(metric.name, []).extend(_read(point.attributes) for point in data.data_points)


def _span(service: str, span: ProtoSpan) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        kind=ProtoSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        failed=span.status.code == span.status.STATUS_CODE_ERROR,
        attributes=_read(span.attributes),
    )


def _read(attributes: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in attributes if isinstance(pair, KeyValue)}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


class _Handler(BaseHTTPRequestHandler):
    received: ClassVar[Received]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            self.received.take_traces(body)
        elif self.path == "/v1/metrics":
            self.received.take_metrics(body)
        self.send_response(200 if self.path.startswith("/v1/") else 404)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:  # it writes to stderr
        pass


@contextmanager
def receiver() -> Iterator[Received]:
    """Receive on a free port of this machine while the block runs."""
    received = Received()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"received": received}))
    server.daemon_threads = True
    received.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="otlp", daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
