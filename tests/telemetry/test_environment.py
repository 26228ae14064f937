"""Values in the environment that OpenTelemetry cannot use: a sentence that names the variable, and no traceback."""

import os
import sys
from pathlib import Path

import anyio
import pytest

from tests.support.processes import ROOT
from workers.runtime.options import USAGE_EXIT
from workers.telemetry.environment import doubts

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
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "best"),
        ("OTEL_TRACES_EXPORTER", "nowhere"),
    ],
)
async def test_what_cannot_be_is_a_sentence_that_names_the_variable(name: str, value: str) -> None:
    code, (line,) = await _ended(("workers", "run", "tests.web.shop:worker"), {name: value})
    assert (code, line[:7]) == (USAGE_EXIT, "error: ")
    assert name in line


@pytest.mark.anyio
@pytest.mark.processes
@pytest.mark.parametrize(
    "words",
    [
        ("workers", "run", "tests.web.shop:worker"),
        ("reaper", "run", "--groups", "orders/billing"),
        ("reaper", "dead-letters", "redrive", "--all", "--groups", "orders/billing"),
    ],
    ids=lambda words: " ".join(words[:3]),
)
async def test_what_counts_for_nothing_is_told_by_every_command_that_exports(words: tuple[str, ...]) -> None:
    code, lines = await _ended(words, {"OTEL_TRACES_SAMPLER": "non\x1bsense"})
    assert code == USAGE_EXIT
    assert "OTEL_TRACES_SAMPLER=non\\x1bsense is unknown, so all new traces are sampled: use one of" in lines[0]
    assert ["error: no usable Redis" in line for line in lines] == [False, True]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment in which everything is exported, and nothing else is said of it."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in EXPORTS.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("OTEL_SDK_DISABLED=yes", "turns nothing off: only true does."),
        ("OTEL_TRACES_SAMPLER=best", "is unknown, so all new traces are sampled"),
        ("OTEL_TRACES_SAMPLER_ARG=0.1", "counts for nothing: it is for OTEL_TRACES_SAMPLER=traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG=10% OTEL_TRACES_SAMPLER=traceidratio", "is no number from 0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG=2 OTEL_TRACES_SAMPLER=ParentBased_TraceIdRatio", "is no number from 0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG=nan OTEL_TRACES_SAMPLER=traceidratio", "is no number from 0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG= OTEL_TRACES_SAMPLER=traceidratio", "is no number from 0 to 1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT=collector:4318", "is no address that can be exported to"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT=http://:4318", "is no address"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://collector:99999", "is no address"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=grpc://collector:4317", "is no address"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "is not spoken here: it is exported by http/protobuf (port 4318)."),
        ("OTEL_EXPORTER_OTLP_TIMEOUT=10s", "is no number of seconds"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION=zstd", "is unknown: use none, gzip, deflate."),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE=/nowhere/ca.pem", "cannot be read: nothing can be exported."),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY=/", "cannot be read"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=d", "is unknown: use cumulative, delta, lowmemory."),
        ("OTEL_METRIC_EXPORT_INTERVAL=1m", "is no number of milliseconds"),
        ("OTEL_BSP_EXPORT_TIMEOUT=-1", "is no number of milliseconds"),
        ("OTEL_RESOURCE_ATTRIBUTES=shop", "holds what is no name=value pair"),
    ],
)
def test_a_value_without_sense_is_one_sentence_that_names_the_variable(
    environment: pytest.MonkeyPatch, words: str, sentence: str
) -> None:
    for word in words.split():
        environment.setenv(*word.split("=", 1))
    (doubt,) = doubts()
    assert doubt.startswith(words.split()[0])
    assert sentence in doubt


def test_what_makes_sense_is_not_doubted(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert doubts() == []
    (tmp_path / "ca.pem").touch()
    for name, value in {
        "OTEL_SDK_DISABLED": "false",
        "OTEL_TRACES_SAMPLER": "ParentBased_TraceIdRatio",
        "OTEL_TRACES_SAMPLER_ARG": "0.1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "https://[::1]:4318/path",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "0.5",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "GZIP",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=b, c=d==",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "ca.pem"),
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "DELTA",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_RESOURCE_ATTRIBUTES": "team=a,",
    }.items():
        environment.setenv(name, value)
    assert doubts() == []


def test_what_is_not_exported_is_not_doubted(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("OTEL_TRACES_EXPORTER", "none")
    environment.setenv("OTEL_METRICS_EXPORTER", "console")
    for name in ("TRACES_SAMPLER", "EXPORTER_OTLP_ENDPOINT", "EXPORTER_OTLP_PROTOCOL", "BSP_EXPORT_TIMEOUT"):
        environment.setenv(f"OTEL_{name}", "nonsense")
    assert doubts() == []


def test_the_variable_of_a_signal_is_the_stronger_one(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    environment.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    environment.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf")
    assert doubts() == []


def test_secrets_are_not_quoted(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Bearer secret")
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://me:secret@collector")
    said = doubts()
    assert len(said) == 2
    assert "secret" not in "".join(said)
