"""Receives the traces of a drill's processes, and prints that of one recovered job as a tree."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

from reaper.drill.otlp import Received, ReceivedSpan, receiver
from workers.telemetry import names as telemetry

QUEUE = 50_000
"""Spans that may wait in a process: in a drill none is to be dropped."""
DELAY_MS = 200


@dataclass(frozen=True, slots=True)
class Tracing:
    """Where everybody exports to, and the tracer of the drill's producer."""

    received: Received
    tracer: Tracer
    _provider: TracerProvider

    @property
    def env(self) -> Mapping[str, str]:
        """Environment of the processes."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.received.endpoint,
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_TRACES_SAMPLER": "parentbased_always_on",
            "OTEL_BSP_MAX_QUEUE_SIZE": str(QUEUE),
            "OTEL_BSP_SCHEDULE_DELAY": str(DELAY_MS),
        }

    def flush(self) -> None:
        """Send what the producer has told."""
        self._provider.force_flush()


@contextmanager
def tracing() -> Iterator[Tracing]:
    """Receive traces while the block runs."""
    with receiver() as received:
        provider = TracerProvider(resource=Resource({"service.name": "producer"}), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{received.endpoint}/v1/traces")
        provider.add_span_processor(BatchSpanProcessor(exporter, QUEUE, DELAY_MS))
        try:
            yield Tracing(received, provider.get_tracer(telemetry.SCOPE), provider)
        finally:
            provider.shutdown()


# ---- the trace of one recovered job


def recovered_trace(spans: Sequence[ReceivedSpan]) -> list[ReceivedSpan]:
    """Return the spans of one job that was recovered and then acknowledged, and the reads they link; else nothing.

    The job is one whose worker was killed, where there is one, and the first of those.
    """
    by_trace: dict[str, list[ReceivedSpan]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, []).append(span)
    stories = [trace for trace in by_trace.values() if _is_complete(trace)]
    if not stories:
        return []
    story = min(stories, key=lambda trace: min(span.start_ns for span in trace))
    linked = {(link.trace_id, link.span_id) for span in story for link in span.links}
    own = {span.trace_id for span in story}
    reads = [span for span in spans if span.trace_id not in own and (span.trace_id, span.span_id) in linked]
    return sorted([*story, *reads], key=lambda span: (span.start_ns, span.end_ns))


def _is_complete(trace: Sequence[ReceivedSpan]) -> bool:
    operations = [_operation(span) for span in trace]
    return {telemetry.SEND, telemetry.RECOVER, "ack"} <= set(operations) and operations.count(telemetry.PROCESS) > 1


def _operation(span: ReceivedSpan) -> str:
    return str(span.attributes.get(telemetry.OPERATION, ""))


def as_tree(spans: Sequence[ReceivedSpan]) -> str:
    """Print a trace: one line a span, what it is part of above it, times since the first in milliseconds."""
    began_ns = min(span.start_ns for span in spans)
    there = {span.span_id for span in spans}
    lines: list[tuple[str, ReceivedSpan]] = []

    def add(span: ReceivedSpan, indent: str, branch: str, below: str) -> None:
        lines.append((indent + branch + _title(span), span))
        children = [other for other in spans if other.parent_id == span.span_id]
        for child in children:
            last = child is children[-1]
            add(child, indent + below, "└─ " if last else "├─ ", "   " if last else "│  ")

    for root in (span for span in spans if span.parent_id not in there):
        add(root, "", "", "")
    width = max(len(title) for title, _ in lines)
    names = {span.span_id: _title(span) for span in spans}
    return "\n".join(f"  {title:<{width}}  {_details(span, began_ns, names)}" for title, span in lines)


def _title(span: ReceivedSpan) -> str:
    attempt = span.attributes.get(telemetry.ATTEMPT)
    lost = ", lost" if telemetry.SYNTHESIZED in span.attributes else ""
    told = f" (attempt {attempt}{lost})" if attempt and _operation(span) == telemetry.PROCESS else ""
    return f"{_operation(span)}{told}"


def _details(span: ReceivedSpan, began_ns: int, names: Mapping[str, str]) -> str:
    start, end = ((at - began_ns) / 1e6 for at in (span.start_ns, span.end_ns))
    error = span.attributes.get(telemetry.ERROR_TYPE)
    links = [names[link.span_id] for link in span.links if link.span_id in names]
    parts = [
        f"{start:9.1f} … {end:9.1f} ms",
        f"by {span.service}",
        f"error: {error}" if error else "",
        f"links: {', '.join(links)}" if links else "",
    ]
    return "  ".join(filter(None, parts))
