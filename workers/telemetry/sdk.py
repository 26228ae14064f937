"""The OpenTelemetry SDK, set up as our spans and metrics need it. Needs the extra ``telemetry``.

A program with its own providers needs `DeliveryIds` and `KeepsDecisions` in its ``TracerProvider``.

Exports run in threads with bounded queues. If an endpoint is dead or slow, the surplus is dropped.
"""

import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from time import monotonic
from typing import Any, cast

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from workers.protocol.log_fields import fields
from workers.runtime.health_server import METRICS
from workers.telemetry.deliveries import DELIVERY_IDS, any_sampled
from workers.telemetry.instruments import LONG_JOB_BUCKETS_S, PROCESS_DURATION_NAME
from workers.telemetry.names import CONSOLE, NONE, OTLP

logger = logging.getLogger(__name__)

SPAN_DELAY_MS = 200
"""How long ended spans wait for company: what has not left a process that is killed is lost."""
MOST_SPANS_WAITING = 16_384
"""Some ten megabytes. With the SDK's own 2,048 a worker that is busy with short jobs loses spans of every tenth."""
SPANS_AT_ONCE = 2_048
"""Half a megabyte. A request costs milliseconds whatever it holds, and takes them from the event loop."""
LOUD = ("opentelemetry.exporter", "opentelemetry.sdk", "opentelemetry.util.re")
"""Loggers that would write a traceback for each export that fails, or quote headers, which may hold a secret."""

LONG_JOBS = View(
    instrument_name=PROCESS_DURATION_NAME, aggregation=ExplicitBucketHistogramAggregation(LONG_JOB_BUCKETS_S)
)
"""Buckets up to an hour: the conventions end at ten seconds."""


class DeliveryIds(RandomIdGenerator):
    """Makes the span IDs of deliveries computable, and all others random."""

    def generate_span_id(self) -> int:
        """Return what the next span is to be called."""
        ids = DELIVERY_IDS.get()
        return super().generate_span_id() if ids is None else ids.span_id

    def generate_trace_id(self) -> int:
        """Return what the next trace is to be called."""
        ids = DELIVERY_IDS.get()
        return super().generate_trace_id() if ids is None else ids.trace_id


class KeepsDecisions(Sampler):
    """Samples a new trace that links to a sampled one, since the producer has decided. Else ``others`` decides."""

    def __init__(self, others: Sampler) -> None:
        self._others = others

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Decide about a span without parent."""
        if any_sampled(links or ()):
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, trace_state)
        return self._others.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """Return what it is called."""
        return f"KeepsDecisions({self._others.get_description()})"


def set_up(service: str, *, traces: str, measures: str, shows_metrics: bool) -> list[Callable[[], object]]:
    """Set the providers, with these exporters for traces and metrics. Return functions that close them."""
    for name in LOUD:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    resource = resource_of(service)
    closes: list[Callable[[], object]] = []
    if traces != NONE:
        closes.append(_set_up_traces(resource, traces))
    readers = _readers(measures, shows_metrics=shows_metrics)
    if readers:
        closes.append(_set_up_metrics(resource, readers))
    return closes


def resource_of(service: str) -> Resource:
    """Return the attributes of this process. Those of the environment (``OTEL_…``) have priority."""
    ours = {"service.name": service, "service.version": version("stream-reaper"), "host.name": socket.gethostname()}
    said = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in ours.items() if name not in said})


def _set_up_traces(resource: Resource, exports: str) -> Callable[[], object]:
    chosen = TracerProvider(shutdown_on_exit=False).sampler  # by OTEL_TRACES_SAMPLER
    provider = TracerProvider(
        sampler=ParentBased(KeepsDecisions(chosen)),
        resource=resource,
        shutdown_on_exit=False,
        id_generator=DeliveryIds(),
    )
    provider.add_span_processor(_batches(_span_exporter(exports)))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _batches(exports: SpanExporter) -> BatchSpanProcessor:
    """Return the SDK's own processor, with our sizes where the environment has none."""
    queue = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") or MOST_SPANS_WAITING)
    return BatchSpanProcessor(
        exports,
        max_queue_size=queue,
        schedule_delay_millis=float(os.environ.get("OTEL_BSP_SCHEDULE_DELAY") or SPAN_DELAY_MS),
        max_export_batch_size=int(os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") or min(SPANS_AT_ONCE, queue)),
    )


def _span_exporter(chosen: str) -> SpanExporter:
    if chosen == CONSOLE:
        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return cast("SpanExporter", _told_once(OTLPSpanExporter(), "traces"))


def _set_up_metrics(resource: Resource, readers: Sequence[MetricReader]) -> Callable[[], object]:
    provider = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False, views=[LONG_JOBS])
    metrics.set_meter_provider(provider)
    return provider.shutdown


def _readers(chosen: str, *, shows_metrics: bool) -> list[MetricReader]:
    readers: list[MetricReader] = []
    if chosen == CONSOLE:
        readers.append(PeriodicExportingMetricReader(ConsoleMetricExporter(out=sys.stderr)))
    elif chosen == OTLP:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        readers.append(PeriodicExportingMetricReader(_told_once(OTLPMetricExporter(), "metrics")))
    if shows_metrics:
        readers.append(_prometheus_reader())
    return readers


def _prometheus_reader() -> MetricReader:
    """Return a reader whose metrics the health port shows as ``/metrics``."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

    def render() -> tuple[bytes, str]:
        return generate_latest(REGISTRY), CONTENT_TYPE_LATEST

    METRICS.render = render
    return PrometheusMetricReader()


def _told_once(exports: Any, what: str) -> Any:
    """Make an exporter log its first failure, and the end of the failures."""
    export, failing_since = exports.export, 0.0

    def note(cause: str) -> None:
        nonlocal failing_since
        if cause and not failing_since:
            failing_since = monotonic()
            logger.warning(
                "telemetry is not exported, and waits in memory up to a limit: %s", fields(signal=what, cause=cause)
            )
        elif failing_since and not cause:
            after_s = round(monotonic() - failing_since, 1)
            failing_since = 0.0
            logger.warning("telemetry is exported again: %s", fields(signal=what, after_s=after_s))

    def export_and_note(*arguments: Any, **named: Any) -> Any:
        try:
            result = export(*arguments, **named)
        except Exception as error:
            note(f"{type(error).__name__}: {error}")
            raise
        note("" if result.value == 0 else "the endpoint does not take them")
        return result

    exports.export = export_and_note
    return exports
