"""Metrics of workers and reapers, as a collector gets them."""

import socket
import urllib.request
from collections.abc import Iterator

import anyio
import pytest

from tests.support.servers import free_port
from tests.support.waiting import wait_until
from tests.telemetry.scene import Scene
from workers.telemetry.instruments import DISABLED, GAUGES, GROUPS_DEGRADED, GROUPS_WATCHED, LEASES_HELD, UNDELIVERABLE

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

ALLOWED = {
    "messaging.system", "messaging.operation.name", "messaging.operation.type", "messaging.destination.name",
    "messaging.consumer.group.name", "error.type", "reaper.recovery.mode", "reaper.recovery.outcome",
    "reaper.namespace", "reaper.loss", "reaper.problem",
}  # fmt: skip

BY_REAPERS = (LEASES_HELD, GROUPS_WATCHED, GROUPS_DEGRADED, DISABLED, UNDELIVERABLE)


async def test_everything_is_measured_and_no_label_names_a_job_or_a_consumer(scene: Scene) -> None:
    await scene.reaper()
    first = await scene.worker()
    await scene.produce("kills=1")
    await first.wait()
    await scene.worker()
    rare = {"reaper.writes.refused"}
    metrics = scene.received.metrics
    wanted = {
        "messaging.client.sent.messages", "messaging.client.consumed.messages", "messaging.client.operation.duration",
        "messaging.process.duration", "reaper.recovered", "reaper.recovery.latency", "reaper.leases.taken",
        "reaper.scan.duration", "reaper.lost_deliveries", "reaper.lost", "reaper.false_recoveries",
        *(gauge.name for gauge in GAUGES),
    }  # fmt: skip
    await wait_until(lambda: wanted <= metrics.keys(), "every metric has come")
    ours = {name for name in metrics if name.startswith(("reaper.", "messaging."))}
    assert ours - rare == wanted
    assert {label for name in ours for labels in metrics[name] for label in labels} <= ALLOWED
    assert metrics["reaper.recovered"][-1] == {
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "billing",
        "reaper.recovery.mode": "reaper",
        "reaper.recovery.outcome": "redelivered",
    }


async def test_embedded_workers_measure_all_but_leases(scene: Scene) -> None:
    embedded = ("--recovery", "embedded")
    first = await scene.worker(*embedded)
    await scene.produce("kills=1")
    await first.wait()
    await scene.worker(*embedded)
    wanted = {
        "messaging.client.sent.messages", "messaging.client.consumed.messages", "messaging.client.operation.duration",
        "messaging.process.duration", "reaper.recovered", "reaper.recovery.latency", "reaper.scan.duration",
        "reaper.lost", *(gauge.name for gauge in GAUGES if gauge not in BY_REAPERS),
    }  # fmt: skip
    metrics = scene.received.metrics
    await wait_until(lambda: wanted <= metrics.keys(), "every metric has come")
    ours = {name for name in metrics if name.startswith(("reaper.", "messaging."))}
    assert ours == wanted
    assert {label for name in ours for labels in metrics[name] for label in labels} <= ALLOWED
    pair = {"messaging.destination.name": "orders", "messaging.consumer.group.name": "billing"}
    assert metrics["reaper.scan.duration"][-1] == pair
    assert metrics["reaper.recovered"][-1] == {
        **pair, "reaper.recovery.mode": "embedded", "reaper.recovery.outcome": "claimed"
    }  # fmt: skip


async def test_metrics_are_shown_on_the_health_port_as_prometheus_reads_them(scene: Scene) -> None:
    scene.env = {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}
    worker = await scene.worker("--health-port", "0")
    url = (await worker.prints(r"health endpoint started: url=(http://[\d.:]+)"))[1]
    await scene.produce("n=1")
    await worker.prints("started")

    def shown() -> str:
        text: str = urllib.request.urlopen(f"{url}/metrics").read().decode()  # noqa: S310 - our own
        return text if "messaging_process_duration_seconds_bucket" in text else ""

    text = await wait_until(lambda: anyio.to_thread.run_sync(shown), "the job's duration is shown")
    assert 'le="3600' in text
    assert 'messaging_destination_name="orders"' in text


@pytest.fixture(params=["gone", "hangs"])
def endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    """An endpoint that refuses connections, or takes them and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if request.param == "gone":
            listener.close()
            yield f"http://127.0.0.1:{free_port()}"
        else:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_an_endpoint_that_is_gone_or_hangs_costs_the_jobs_nothing(scene: Scene, endpoint: str) -> None:
    producer_env, scene.env = scene.env, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    worker = await scene.worker()
    scene.env = producer_env
    for _ in range(3):
        await scene.produce("n=1")
    await worker.prints("export")
    worker.terminate()
    assert await worker.wait() == 0
    assert " read=3 acked=3" in worker.output
