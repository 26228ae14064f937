"""Attributes of the process on every span and metric."""

import socket
from importlib.metadata import version

import pytest

from workers.telemetry.sdk import resource_of


@pytest.fixture(autouse=True)
def _nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)


def test_it_says_what_runs_in_which_version_and_where() -> None:
    attributes = resource_of("worker").attributes
    assert attributes["service.name"] == "worker"
    assert attributes["service.version"] == version("stream-reaper")
    assert attributes["host.name"] == socket.gethostname()


def test_the_environment_is_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "billing")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=rack-7,deployment.environment.name=test")
    attributes = resource_of("worker").attributes
    assert attributes["service.name"] == "billing"
    assert (attributes["host.name"], attributes["deployment.environment.name"]) == ("rack-7", "test")
    assert attributes["service.version"] == version("stream-reaper")
