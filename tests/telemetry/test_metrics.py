"""Metrics of workers and reapers, as a collector gets them."""

import socket

import pytest

from tests.support.waiting import wait_until
from tests.telemetry.scene import Scene, metrics_of
from workers.telemetry.instruments import DISABLED, GAUGES, GROUPS_DEGRADED, GROUPS_WATCHED, LEASES_HELD, UNDELIVERABLE

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

GROUP = {"messaging.destination.name": "orders", "messaging.consumer.group.name": "billing"}
ALLOWED = {
    *GROUP, "messaging.system", "messaging.operation.name", "messaging.operation.type", "error.type",
    "reaper.recovery.mode", "reaper.recovery.outcome", "reaper.namespace", "reaper.loss", "reaper.problem",
}  # fmt: skip
MEASURED = {
    "messaging.client.sent.messages", "messaging.client.consumed.messages", "messaging.client.operation.duration",
    "messaging.process.duration", "reaper.recovered", "reaper.recovery.latency", "reaper.scan.duration", "reaper.lost",
    *(gauge.name for gauge in GAUGES),
}  # fmt: skip
BY_REAPERS = {
    "reaper.leases.taken", "reaper.lost_deliveries", "reaper.false_recoveries",
    *(gauge.name for gauge in (LEASES_HELD, GROUPS_WATCHED, GROUPS_DEGRADED, DISABLED, UNDELIVERABLE)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "wanted", "outcome"),
    [("reaper", MEASURED | BY_REAPERS, "redelivered"), ("embedded", MEASURED - BY_REAPERS, "claimed")],
    ids=["reaper", "embedded"],
)
async def test_all_is_measured_without_labels_of_jobs(scene: Scene, mode: str, wanted: set[str], outcome: str) -> None:
    if mode == "reaper":
        await scene.reaper()
    first = await scene.worker("--recovery", mode)
    await scene.produce("kills=1")
    await first.wait()
    await scene.worker("--recovery", mode)
    metrics = scene.received.metrics
    await wait_until(lambda: wanted <= metrics.keys(), "every metric has come")
    ours = {name for name in metrics if name.startswith(("reaper.", "messaging."))}
    assert ours - {"reaper.settlements.rejected"} == wanted, "that one is rare"
    assert {label for name in ours for labels in metrics[name] for label in labels} <= ALLOWED
    assert metrics["reaper.scan.duration"][-1] == GROUP
    assert metrics["reaper.recovered"][-1] == {
        **GROUP, "reaper.recovery.mode": mode, "reaper.recovery.outcome": outcome
    }  # fmt: skip


async def test_metrics_are_shown_on_the_health_port_as_prometheus_reads_them(scene: Scene) -> None:
    scene.env = {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}
    worker = await scene.worker("--health-port", "0")
    await scene.produce("n=1")
    await worker.prints("started")

    async def shown() -> str:
        text = await metrics_of(worker)
        return text if "messaging_process_duration_seconds_bucket" in text else ""

    text = await wait_until(shown, "the job's duration is shown")
    assert 'le="3600' in text
    assert 'messaging_destination_name="orders"' in text


async def test_an_endpoint_that_hangs_costs_the_jobs_nothing(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        producer_env, scene.env = scene.env, {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        }  # fmt: skip
        worker = await scene.worker()
        scene.env = producer_env
        for _ in range(2):
            await scene.produce("n=1")
        await worker.prints("export")
        worker.terminate()
        assert await worker.wait() == 0
    assert " read=2 acked=2" in worker.output
