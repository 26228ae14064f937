"""Log lines carry the span they are written in."""

import json
import logging
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from tests.support.hostile import EVIL, forged_lines, raw_characters
from tests.telemetry.scene import Scene
from workers.protocol.log_fields import fields
from workers.runtime.logs import ConsoleFormatter, JsonFormatter

IDS = {"trace_id": f"{0xABC:032x}", "span_id": f"{0xDEF:016x}"}


@pytest.fixture
def span() -> Iterator[None]:
    """Be inside a span."""
    context = SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1))
    with trace.use_span(NonRecordingSpan(context)):
        yield


def a_record(message: str = "two\nlines of %s", *arguments: object, failed: bool = False) -> logging.LogRecord:
    error = ValueError("no")
    info = (type(error), error, None) if failed else None
    return logging.LogRecord("workers", logging.ERROR, __file__, 1, message, arguments or ("text",), info)


@pytest.mark.usefixtures("span")
def test_a_json_line_has_the_ids_of_the_span() -> None:
    line = JsonFormatter().format(a_record(failed=True))
    facts = json.loads(line)
    assert "\n" not in line
    assert facts.pop("at").endswith("+00:00")
    assert facts == {
        "level": "error",
        "logger": "workers",
        "message": "two\nlines of text",
        "thread": "MainThread",
        "error": "ValueError: no",
        **IDS,
    }


@pytest.mark.usefixtures("span")
def test_a_line_for_people_ends_with_the_ids_of_the_span() -> None:
    assert ConsoleFormatter().format(a_record()).endswith(" ".join(f"{name}={value}" for name, value in IDS.items()))


@pytest.mark.parametrize("failed", [False, True])
def test_a_record_does_nothing_but_stand_there(failed: bool) -> None:
    record = a_record("job %s", EVIL, failed=failed)
    if failed:
        record.exc_info = (ValueError, ValueError(EVIL), None)
    told = ConsoleFormatter().format(record)
    assert (raw_characters(told), forged_lines(told)) == (set(), [])
    assert all(line.startswith("  ") for line in told.split("\n")[1:])
    as_json = JsonFormatter().format(record)
    assert (as_json.isascii(), raw_characters(as_json), "\n" in as_json) == (True, set(), False)
    assert json.loads(as_json)["message"] == f"job {EVIL}"


def test_outside_of_any_span_there_are_no_ids() -> None:
    assert "trace_id" not in JsonFormatter().format(a_record())
    assert "trace_id" not in ConsoleFormatter().format(a_record())


@pytest.mark.anyio
@pytest.mark.processes
async def test_a_failure_is_logged_with_the_ids_of_its_delivery(scene: Scene) -> None:
    worker = await scene.worker("--log-format", "json")
    job = await scene.produce("fails=1")
    await worker.prints("job failed")
    spans = await scene.spans(job, "process")
    failed = next(span for span in spans if span.name == "process orders")
    lines = [json.loads(line) for line in worker.output.splitlines() if line.startswith("{")]
    told = next(line for line in lines if line["message"] == "job failed")
    assert (told["trace_id"], told["span_id"]) == (failed.trace_id, failed.span_id)


def test_fields_are_key_value_for_people_and_keys_in_json() -> None:
    facts = fields(group="orders/billing", consumer=b"w 1\n", redelivered=2, reason=None)
    record = logging.LogRecord("reaper", logging.INFO, "x.py", 1, "recovered stalled jobs: %s", (facts,), None)
    assert record.getMessage() == r'recovered stalled jobs: group=orders/billing consumer="w 1\n" redelivered=2'
    found = json.loads(JsonFormatter().format(record))
    assert found["message"] == "recovered stalled jobs"
    assert (found["group"], found["consumer"], found["redelivered"]) == ("orders/billing", "w 1\n", 2)
    assert "reason" not in found
