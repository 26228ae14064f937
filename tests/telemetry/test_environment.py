"""Values in the environment that OpenTelemetry cannot use: a sentence that names the variable, and no traceback."""

import os
import socket
import sys
from importlib.metadata import version

import anyio
import pytest

from tests.support.processes import ROOT
from workers.runtime.options import USAGE_EXIT
from workers.telemetry.sdk import resource_of

NOWHERE = ("--redis-url", "redis://127.0.0.1:1/0")
EXPORTS = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "otlp"}


async def _ended(words: tuple[str, ...], variables: dict[str, str]) -> tuple[int, list[str]]:
    """Return exit code and what is said. No nursery: that has read OpenTelemetry, and the environment with it."""
    env = os.environ | EXPORTS | variables
    ended = await anyio.run_process([sys.executable, "-m", *words, *NOWHERE], env=env, cwd=ROOT, check=False)
    assert ended.stdout == b""
    return ended.returncode, ended.stderr.decode().splitlines()


@pytest.mark.anyio
@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "best"),
        ("OTEL_TRACES_EXPORTER", "nowhere"),
    ],
)
async def test_what_cannot_be_is_a_sentence_that_names_the_variable(name: str, value: str) -> None:
    code, (line,) = await _ended(("workers", "run", "tests.web.shop:worker"), {name: value})
    assert (code, line[:7]) == (USAGE_EXIT, "error: ")
    assert name in line


# ---- attributes of the process on every span and metric


@pytest.fixture
def _nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_nothing_is_said")
def test_it_says_what_runs_in_which_version_and_where() -> None:
    attributes = resource_of("worker").attributes
    assert attributes["service.name"] == "worker"
    assert attributes["service.version"] == version("stream-reaper")
    assert attributes["host.name"] == socket.gethostname()


@pytest.mark.usefixtures("_nothing_is_said")
def test_the_environment_is_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "billing")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=rack-7,deployment.environment.name=test")
    attributes = resource_of("worker").attributes
    assert attributes["service.name"] == "billing"
    assert (attributes["host.name"], attributes["deployment.environment.name"]) == ("rack-7", "test")
    assert attributes["service.version"] == version("stream-reaper")
