"""The OpenTelemetry SDK, set up as our spans and metrics need it. Needs the extra ``telemetry``.

Exports run in threads with bounded queues. If an endpoint is dead or slow, the surplus is dropped.
"""

import logging
import os
import socket
from collections.abc import Callable
from importlib.metadata import version

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

SPAN_DELAY_MS = 200
"""How long ended spans wait for more. A killed process loses the spans that it has not exported."""
MOST_SPANS_WAITING = 16_384
"""Some ten megabytes. A worker that is busy with short jobs fills the SDK's own 2,048 between two exports."""


def set_up(service: str, *, traces: bool, measures: bool, shows_metrics: bool) -> list[Callable[[], object]]:
    """Set the providers of traces and metrics. Return functions that close them."""
    logging.getLogger("opentelemetry.util.re").setLevel(logging.CRITICAL)  # it quotes headers, which may hold a secret
    resource = resource_of(service)
    closes: list[Callable[[], object]] = []
    if traces:
        closes.append(_set_up_traces(resource))
    readers: list[MetricReader] = []
    if measures:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    if shows_metrics:  # prometheus_client has them then, and the health port shows them
        from opentelemetry.exporter.prometheus import PrometheusMetricReader

        readers.append(PrometheusMetricReader())
    if readers:
        provider = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
        metrics.set_meter_provider(provider)
        closes.append(provider.shutdown)
    return closes


def resource_of(service: str) -> Resource:
    """Return the attributes of this process. Those of the environment (``OTEL_…``) have priority."""
    ours = {"service.name": service, "service.version": version("stream-reaper"), "host.name": socket.gethostname()}
    return Resource.create(ours).merge(OTELResourceDetector().detect())


def _set_up_traces(resource: Resource) -> Callable[[], object]:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    processor = BatchSpanProcessor(
        OTLPSpanExporter(),
        max_queue_size=int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") or MOST_SPANS_WAITING),
        schedule_delay_millis=float(os.environ.get("OTEL_BSP_SCHEDULE_DELAY") or SPAN_DELAY_MS),
    )
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    return provider.shutdown
