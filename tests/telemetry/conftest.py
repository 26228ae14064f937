"""Fixtures of the telemetry's tests."""

from collections.abc import Iterator

import pytest

from tests.support.processes import Processes
from tests.support.servers import RedisServer
from tests.telemetry.otlp import receiver
from tests.telemetry.scene import Scene


@pytest.fixture
def scene(processes: Processes, server: RedisServer) -> Iterator[Scene]:
    """Processes that export to a receiver in this process."""
    with receiver() as received:
        yield Scene(processes, server, received)
