"""How late a delivery was recovered in both modes. Without an owner, a delivery has no deadline."""

from datetime import timedelta
from typing import Any

import pytest

from reaper.recovery.telemetry import GroupTelemetry
from reaper.settings import WatchedGroup
from workers.loop.telemetry import WorkerTelemetry
from workers.protocol.calls.group_moves import Outcome, Recovered
from workers.protocol.messages import Redelivery
from workers.settings import WorkerSettings
from workers.telemetry import instruments

VISIBILITY_S = 30.0
ROWS = [Recovered(b"1-%d" % n, Outcome.REDELIVERED, idle_ms=idle_ms) for n, idle_ms in enumerate((-1, 29_000, 31_500))]


class Recorded:
    """The values of a histogram."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def record(self, value: float, _labels: Any) -> None:
        self.values.append(value)


@pytest.fixture
def latency(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()
    monkeypatch.setattr(instruments, "RECOVERY_LATENCY", recorded)
    return recorded


def test_of_what_a_replica_recovers(latency: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.telemetry.names.is_measuring", lambda: True)
    group = WatchedGroup(
        stream="orders",
        group="billing",
        visibility_timeout=timedelta(seconds=VISIBILITY_S),
        max_deliveries=3,
        redelivery=Redelivery.STREAM,
    )
    GroupTelemetry(group).recovered(ROWS)
    assert latency.values == [0.0, 1.5]


def test_of_what_embedded_workers_recover(latency: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.telemetry.names.is_measuring", lambda: True)
    told = WorkerTelemetry(WorkerSettings(stream="orders", group="billing"), "w.1")
    told.recovered(ROWS, VISIBILITY_S)
    assert latency.values == [0.0, 1.5]
