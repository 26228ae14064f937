"""One story per job: producer, workers and reapers as processes, one of them killed -9, and their spans received."""

import pytest

from tests.telemetry.scene import Scene, dangling, told_of

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


async def test_a_killed_workers_delivery_is_recovered_in_the_trace_of_its_job(scene: Scene) -> None:
    await scene.reaper()
    first = await scene.worker()
    job = await scene.produce("kills=1")
    await first.wait()
    await scene.worker()
    spans = await scene.spans(job, "send", "recover", "process")
    assert dangling(spans) == []
    assert len({span.trace_id for span in spans}) == 1
    assert [told_of(span, spans) for span in spans] == [
        ("producer", "send orders", "PRODUCER", ""),
        ("reaper", "recover orders #1", "CLIENT", "send orders"),
        ("worker", "process orders #2", "CONSUMER", "send orders"),
    ]
    _, recovery, again = spans
    assert recovery.failed
    assert recovery.end_ns - recovery.start_ns >= 1_000_000_000  # it begins with the last heartbeat
    attributes = dict(recovery.attributes)
    assert attributes.pop("messaging.message.id").count("-") == 1
    assert "~" in attributes.pop("messaging.client.id")
    assert attributes.pop("reaper.idle_ms") >= 1000
    assert attributes == {
        "messaging.system": "redis",
        "messaging.operation.name": "recover",
        "messaging.operation.type": "settle",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "billing",
        "reaper.job.id": job,
        "reaper.job.generation": 0,
        "reaper.delivery": 1,
        "reaper.recovery.outcome": "redelivered",
        "reaper.recovery.mode": "reaper",
        "reaper.fencing_token": 1,
        "error.type": "visibility_timeout",
    }
    assert again.attributes["reaper.outcome"] == "ack"


async def test_an_embedded_worker_tells_of_what_it_takes_over(scene: Scene) -> None:
    embedded = ("--recovery", "embedded")
    first = await scene.worker(*embedded)
    job = await scene.produce("kills=1")
    await first.wait()
    await scene.worker(*embedded)
    spans = await scene.spans(job, "send", "recover", "process")
    assert dangling(spans) == []
    assert [told_of(span, spans) for span in spans] == [
        ("producer", "send orders", "PRODUCER", ""),
        ("worker", "recover orders #1", "CLIENT", "send orders"),
        ("worker", "process orders #2", "CONSUMER", "send orders"),
    ]
    recovery = spans[1].attributes
    assert (recovery["reaper.recovery.mode"], recovery["reaper.recovery.outcome"]) == ("embedded", "claimed")
    assert "reaper.fencing_token" not in recovery


async def test_a_failure_is_retried_in_the_same_trace(scene: Scene) -> None:
    await scene.worker("--backoff-base", "0")
    job = await scene.produce("fails=1")
    spans = await scene.spans(job, "send", "process", "process")
    assert dangling(spans) == []
    assert [told_of(span, spans)[1:4:2] for span in spans] == [
        ("send orders", ""),
        ("process orders #1", "send orders"),
        ("process orders #2", "send orders"),
    ]
    _, failed, again = spans
    assert (failed.failed, failed.attributes["error.type"]) == (True, "ValueError")
    assert failed.attributes["reaper.outcome"] == "nack"
    assert not again.failed
    assert "error.type" not in again.attributes


async def test_each_job_of_a_batch_has_its_span(scene: Scene) -> None:
    """The handler gets the jobs in one call, and rejects the second one."""
    await scene.worker("--name", "w", attribute="batches")
    jobs = [await scene.produce(f"rejects={n}") for n in range(2)]
    for job, outcome in zip(jobs, ("ack", "reject"), strict=True):
        spans = await scene.spans(job, "send", "process")
        assert dangling(spans) == []
        assert [told_of(span, spans) for span in spans] == [
            ("producer", "send orders", "PRODUCER", ""),
            ("worker", "process orders #1", "CONSUMER", "send orders"),
        ]
        process = spans[1]
        assert (process.attributes["reaper.job.id"], process.attributes["reaper.outcome"]) == (job, outcome)
        assert process.failed is (outcome == "reject")
        assert process.end_ns > process.start_ns
    assert len([span for span in scene.received.spans if span.name == "process orders"]) == len(jobs)


async def test_a_redriven_job_stays_in_its_trace(scene: Scene) -> None:
    await scene.worker("--max-deliveries", "1")
    job = await scene.produce("fails=1")
    await scene.spans(job, "send", "process")
    await scene.redrive()
    spans = await scene.spans(job, "send", "process", "process")
    assert dangling(spans) == []
    runs = [span for span in spans if span.name == "process orders"]
    assert [span.attributes["reaper.job.generation"] for span in runs] == [0, 1]


async def test_a_job_that_the_producer_does_not_sample_has_no_span(scene: Scene) -> None:
    await scene.reaper()
    first = await scene.worker()
    scene.env = {"OTEL_TRACES_SAMPLER": "always_off"}
    await scene.produce("kills=1")
    await first.wait()
    scene.env = {}
    worker = await scene.worker()
    await worker.prints("started")
    sampled = await scene.produce("n=1")
    await scene.spans(sampled, "send", "process")
    assert {span.attributes.get("reaper.job.id") for span in scene.received.spans} - {None} == {sampled}
    assert [span.name for span in scene.received.spans if span.name.startswith("recover")] == []


async def test_a_worker_that_was_only_slow_leaves_a_failed_span(scene: Scene) -> None:
    await scene.reaper()
    slow = await scene.worker()
    job = await scene.produce("waits=2")
    await slow.prints("started")
    slow.pause()
    await scene.worker()
    await scene.spans(job, "recover", "process")
    slow.resume()
    slow.terminate()
    assert await slow.wait() == 0
    spans = await scene.spans(job, "recover", "process", "process")
    runs = [span for span in spans if span.name == "process orders"]
    attempts = sorted(((span.attributes["reaper.delivery"], span) for span in runs), key=lambda one: one[0])
    # The read that blocked when it was paused may have taken the next delivery, too.
    assert attempts[0][0] == 1
    assert [span.attributes.get("error.type") for _, span in attempts] == ["rejected"] * (len(attempts) - 1) + [None]
