"""The span and the measurements of enqueueing: `send`. Its context goes into each job that brings none of its own."""

from collections.abc import Sequence
from contextlib import ExitStack
from time import perf_counter
from types import TracebackType
from typing import Self

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from workers.protocol.calls.enqueueing import PackedJob
from workers.protocol.messages import FIELD_TRACEPARENT, text
from workers.telemetry import instruments
from workers.telemetry import names as telemetry
from workers.telemetry.deliveries import tracer, write_context
from workers.telemetry.names import Attributes


class Sending:
    """What is done inside is told of as one `send`. Costs a look at two globals where nobody listens."""

    def __init__(self, stream: str, jobs: Sequence[PackedJob]) -> None:
        self._stream = stream
        self._jobs = jobs
        self._traces = bool(jobs) and telemetry.is_tracing()
        self._measures = bool(jobs) and telemetry.is_measuring()
        self._inside = ExitStack()
        self._began = 0.0

    def __enter__(self) -> Self:
        if self._traces:
            self._begin_span()
        if self._measures:
            self._began = perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._traces:
            if error is not None:
                span = trace.get_current_span()
                span.set_attribute(telemetry.ERROR_TYPE, type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, str(error)))
            self._inside.close()
        if self._measures:
            self._measure(error)

    def _begin_span(self) -> None:
        jobs = self._jobs
        many: Attributes = {telemetry.BATCH_COUNT: len(jobs)}
        if len(jobs) == 1:
            many = {telemetry.JOB_ID: text(jobs[0].job_id)}
        span = self._inside.enter_context(
            tracer().start_as_current_span(
                f"{telemetry.SEND} {self._stream}",
                kind=SpanKind.PRODUCER,
                attributes={**telemetry.common(telemetry.SEND, telemetry.SEND, self._stream), **many},
            )
        )
        context = span.get_span_context()
        if not context.is_valid:
            return
        fields = [word for pair in write_context(context) for word in pair]
        for job in jobs:
            if FIELD_TRACEPARENT not in job.words[::2]:
                job.words.extend(fields)

    def _measure(self, error: BaseException | None) -> None:
        labels = telemetry.common(telemetry.SEND, telemetry.SEND, self._stream)
        if error is not None:
            labels[telemetry.ERROR_TYPE] = type(error).__qualname__
        instruments.SENT.add(len(self._jobs), labels)
        instruments.OPERATION_DURATION.record(perf_counter() - self._began, labels)
