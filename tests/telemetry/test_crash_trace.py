"""One story per job: producer, workers and reapers as processes, one of them killed -9, and their spans received."""

import pytest

from tests.telemetry.scene import Scene, dangling, told

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


async def test_a_killed_workers_delivery_is_told_of_by_the_reaper_in_one_trace_without_dangling_links(
    scene: Scene,
) -> None:
    await scene.reaper()
    first = await scene.worker()
    job = await scene.produce("kills=1")
    await first.wait(60)
    await scene.worker()
    spans = await scene.spans(job, "send", "receive", "process", "recover", "process", "ack")
    assert dangling(spans) == []
    own = [span for span in spans if not span.name.startswith("receive")]
    assert len({span.trace_id for span in own}) == 1
    # A receive that was not exported before the kill is missing; nobody links to it then.
    later = [span for span in spans if span.name == "receive orders"][-1]
    story = [*own, later]
    lost, again = "process orders #1", "process orders #2"
    assert [told(span, story) for span in own] == [
        ("producer", "send orders", "PRODUCER", "", []),
        ("reaper", lost, "CONSUMER", "send orders", []),
        ("reaper", "recover orders #1", "CLIENT", "send orders", [lost]),
        ("worker", again, "CONSUMER", "send orders", [lost, "receive orders", "recover orders #1"]),
        ("worker", "ack orders", "CLIENT", again, []),
    ]
    by_name = {told(span, story)[1]: span for span in own}
    attributes = dict(by_name[lost].attributes)
    assert attributes.pop("messaging.message.id").count("-") == 1
    assert "." in attributes.pop("messaging.client.id")
    assert attributes == {
        "messaging.system": "redis",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "billing",
        "app.job.id": job,
        "app.job.generation": 0,
        "app.delivery.attempt": 1,
        "app.synthesized": True,
        "error.type": "visibility_timeout",
    }
    assert by_name[lost].failed
    assert by_name[lost].end_ns - by_name[lost].start_ns >= 1_000_000_000
    recovery = by_name["recover orders #1"].attributes
    assert {name: recovery[name] for name in recovery if name.startswith("app.recovery") or name == "app.epoch"} == {
        "app.recovery.reason": "visibility_timeout",
        "app.recovery.outcome": "redelivered",
        "app.recovery.mode": "reaper",
        "app.epoch": 1,
    }
    assert recovery["app.idle_ms"] >= 1000
    assert recovery["messaging.operation.type"] == "settle"
    assert "app.synthesized" not in by_name[again].attributes
