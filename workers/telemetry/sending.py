"""The span and the measurements of enqueueing (`send`). Jobs without a context of their own get its context."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from time import perf_counter

from opentelemetry.trace import SpanKind, Status, StatusCode

from workers.protocol.calls.enqueueing import PackedJob
from workers.protocol.messages import FIELD_TRACEPARENT, text
from workers.telemetry import instruments
from workers.telemetry import names as telemetry
from workers.telemetry.deliveries import tracer, write_context
from workers.telemetry.names import Attributes


@contextmanager
def sending(stream: str, jobs: Sequence[PackedJob]) -> Iterator[None]:
    """Report the block as one `send`. Without an exporter this costs next to nothing."""
    labels = telemetry.common(telemetry.SEND, telemetry.SEND, stream)
    measures = bool(jobs) and telemetry.is_measuring()
    began = perf_counter()
    try:
        with _span(stream, jobs, labels) if jobs and telemetry.is_tracing() else nullcontext():
            yield
    except BaseException as error:
        labels = labels | {telemetry.ERROR_TYPE: type(error).__qualname__}
        raise
    finally:
        if measures:
            instruments.SENT.add(len(jobs), labels)
            instruments.OPERATION_DURATION.record(perf_counter() - began, labels)


@contextmanager
def _span(stream: str, jobs: Sequence[PackedJob], labels: Attributes) -> Iterator[None]:
    many: Attributes = {telemetry.BATCH_COUNT: len(jobs)}
    if len(jobs) == 1:
        many = {telemetry.JOB_ID: text(jobs[0].job_id)}
    begun = tracer().start_as_current_span(
        f"{telemetry.SEND} {stream}",
        kind=SpanKind.PRODUCER,
        attributes={**labels, **many},
        record_exception=False,
        set_status_on_exception=False,
    )
    with begun as span:
        if span.get_span_context().is_valid:
            fields = [word for pair in write_context(span.get_span_context()) for word in pair]
            for job in jobs:
                if FIELD_TRACEPARENT not in job.words[::2]:
                    job.words.extend(fields)
        try:
            yield
        except BaseException as error:
            span.set_attribute(telemetry.ERROR_TYPE, type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
            raise
