"""The span and the measurements of enqueueing (`send`). Jobs without a context of their own get its context."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from time import perf_counter

from opentelemetry.trace import INVALID_SPAN, SpanKind

from workers.protocol.calls.enqueueing import PackedJob
from workers.protocol.messages import FIELD_TRACEPARENT, text
from workers.telemetry import instruments
from workers.telemetry import names as telemetry
from workers.telemetry.deliveries import tracer, write_context
from workers.telemetry.names import Attributes


@contextmanager
def sending(stream: str, jobs: Sequence[PackedJob]) -> Iterator[None]:
    """Report the block as one `send`. Without an exporter it is nearly free."""
    if not jobs:
        yield
        return
    labels = telemetry.common(telemetry.SEND, telemetry.SEND, stream)
    about: Attributes = {telemetry.BATCH_COUNT: len(jobs)}
    if len(jobs) == 1:
        about = {telemetry.JOB_ID: text(jobs[0].job_id)}
    name, began = f"{telemetry.SEND} {stream}", perf_counter()
    span_of = partial(tracer().start_as_current_span, name, kind=SpanKind.PRODUCER, record_exception=False)
    with span_of(attributes=labels | about) if telemetry.is_tracing() else nullcontext(INVALID_SPAN) as span:
        fields = write_context() if telemetry.is_tracing() else []
        for job in jobs if fields else ():
            if FIELD_TRACEPARENT not in job.words[::2]:
                job.words.extend(fields)
        try:
            yield
        except BaseException as error:
            labels[telemetry.ERROR_TYPE] = type(error).__qualname__
            span.set_attribute(telemetry.ERROR_TYPE, type(error).__qualname__)
            raise
        finally:
            instruments.SENT.add(len(jobs), labels)
            instruments.OPERATION_DURATION.record(perf_counter() - began, labels)
