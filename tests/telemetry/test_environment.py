"""Values in the environment that OpenTelemetry cannot use: a sentence that names the variable, and no traceback."""

import os
import sys

import anyio
import pytest

from tests.support.processes import ROOT
from workers.runtime.options import USAGE_EXIT

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "best"),
        ("OTEL_TRACES_EXPORTER", "nowhere"),
    ],
)
async def test_what_cannot_be_is_a_sentence_that_names_the_variable(name: str, value: str) -> None:
    words = ["-m", "workers", "run", "tests.web.shop:worker", "--redis-url", "redis://127.0.0.1:1/0"]
    env = os.environ | {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "otlp", name: value}
    # No nursery: that has read OpenTelemetry before, and the environment with it.
    ended = await anyio.run_process([sys.executable, *words], env=env, cwd=ROOT, check=False)
    (line,) = ended.stderr.decode().splitlines()
    assert (ended.returncode, line[:7]) == (USAGE_EXIT, "error: ")
    assert name in line
