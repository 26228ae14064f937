"""One story per job: producer, workers and reapers as processes, one of them killed -9, and their spans received."""

import pytest

from tests.support.waiting import wait_until
from tests.telemetry.scene import Scene, dangling, told_of, trace_of

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


async def test_a_killed_workers_delivery_is_told_of_by_the_reaper_in_one_trace_without_dangling_links(
    scene: Scene,
) -> None:
    await scene.reaper()
    first = await scene.worker()
    job = await scene.produce("kills=1")
    await first.wait()
    await scene.worker()
    spans = await scene.spans(job, "send", "process", "recover", "process", "ack")
    assert dangling(spans) == []
    own = spans
    assert len({span.trace_id for span in own}) == 1
    lost, again = "process orders #1", "process orders #2"
    assert [told_of(span, own) for span in own] == [
        ("producer", "send orders", "PRODUCER", "", []),
        ("reaper", lost, "CONSUMER", "send orders", []),
        ("reaper", "recover orders #1", "CLIENT", "send orders", [lost]),
        ("worker", again, "CONSUMER", "send orders", [lost, "recover orders #1"]),
        ("worker", "ack orders", "CLIENT", again, []),
    ]
    by_name = {told_of(span, own)[1]: span for span in own}
    attributes = dict(by_name[lost].attributes)
    assert attributes.pop("messaging.message.id").count("-") == 1
    assert "." in attributes.pop("messaging.client.id")
    assert attributes == {
        "messaging.system": "redis",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "billing",
        "reaper.job.id": job,
        "reaper.job.generation": 0,
        "reaper.delivery": 1,
        "reaper.synthesized": True,
        "error.type": "visibility_timeout",
    }
    assert by_name[lost].failed
    assert by_name[lost].end_ns - by_name[lost].start_ns >= 500_000_000  # its idle time, less what the call took
    recovery = by_name["recover orders #1"].attributes
    told = {name: value for name, value in recovery.items() if name.startswith(("reaper.recovery", "reaper.fencing"))}
    assert told == {
        "reaper.recovery.reason": "visibility_timeout",
        "reaper.recovery.outcome": "redelivered",
        "reaper.recovery.mode": "reaper",
        "reaper.fencing_token": 1,
    }
    assert recovery["reaper.idle_ms"] >= 1000
    assert recovery["messaging.operation.type"] == "settle"
    assert "reaper.synthesized" not in by_name[again].attributes


async def test_an_embedded_worker_tells_of_what_it_takes_over(scene: Scene) -> None:
    embedded = ("--recovery", "embedded")
    first = await scene.worker(*embedded)
    job = await scene.produce("kills=1")
    await first.wait()
    await scene.worker(*embedded)
    spans = await scene.spans(job, "send", "process", "recover", "process", "ack")
    assert dangling(spans) == []
    own = spans
    assert len({span.trace_id for span in own}) == 1
    lost, again = "process orders #1", "process orders #2"
    assert [told_of(span, own) for span in own] == [
        ("producer", "send orders", "PRODUCER", "", []),
        ("worker", lost, "CONSUMER", "send orders", []),
        ("worker", "recover orders #1", "CLIENT", "send orders", [lost]),
        ("worker", again, "CONSUMER", "send orders", [lost, "recover orders #1"]),
        ("worker", "ack orders", "CLIENT", again, []),
    ]
    synthesized = [span.attributes.get("reaper.synthesized") for span in own]
    assert synthesized == [None, True, None, None, None]
    recovery = own[2].attributes
    assert (recovery["reaper.recovery.mode"], recovery["reaper.recovery.outcome"]) == ("embedded", "claimed")
    assert "reaper.fencing_token" not in recovery


async def test_the_last_delivery_an_embedded_worker_gives_up_is_told_of_too(scene: Scene) -> None:
    embedded = ("--recovery", "embedded", "--max-deliveries", "1")
    first = await scene.worker(*embedded)
    job = await scene.produce("kills=1")
    await first.wait()
    await scene.worker(*embedded)
    spans = await scene.spans(job, "send", "process", "recover")
    own = spans
    assert dangling(spans) == []
    assert [told_of(span, own)[:2] for span in own] == [
        ("producer", "send orders"),
        ("worker", "process orders #1"),
        ("worker", "recover orders #1"),
    ]
    assert own[2].attributes["reaper.recovery.outcome"] == "dead_lettered"


async def test_a_job_that_crashes_twice_links_both_recoveries(scene: Scene) -> None:
    await scene.reaper("--max-deliveries", "4")
    job = ""
    for _ in range(2):
        worker = await scene.worker("--max-deliveries", "4")
        job = job or await scene.produce("kills=2")
        await worker.wait()
    await scene.worker("--max-deliveries", "4")
    spans = await scene.spans(job, "send", "process", "recover", "process", "recover", "process", "ack")
    assert dangling(spans) == []
    own = spans
    links = {told_of(span, own)[1]: [link for link in told_of(span, own)[4] if link != "?"] for span in own}
    assert links == {
        "send orders": [],
        "process orders #1": [],
        "recover orders #1": ["process orders #1"],
        "process orders #2": ["process orders #1", "recover orders #1"],
        "recover orders #2": ["process orders #2", "recover orders #1"],
        "process orders #3": ["process orders #2", "recover orders #2"],
        "ack orders": [],
    }


async def test_a_failure_is_retried_in_the_same_trace_and_links_the_attempt_that_failed(scene: Scene) -> None:
    await scene.worker("--backoff-base", "0")
    job = await scene.produce("fails=1")
    spans = await scene.spans(job, "send", "process", "nack", "process", "ack")
    assert dangling(spans) == []
    own = spans
    failed, again = "process orders #1", "process orders #2"
    assert [told_of(span, own)[1:4:2] for span in own] == [
        ("send orders", ""),
        (failed, "send orders"),
        ("nack orders", failed),
        (again, "send orders"),
        ("ack orders", again),
    ]
    assert failed in told_of(own[3], own)[4]
    assert (own[1].failed, own[1].attributes["error.type"]) == (True, "ValueError")
    assert not own[3].failed
    assert "error.type" not in own[3].attributes


async def test_a_redriven_job_stays_in_its_trace_and_links_its_last_attempt(scene: Scene) -> None:
    await scene.worker("--max-deliveries", "1")
    job = await scene.produce("fails=1")
    await scene.spans(job, "send", "process", "nack")
    await scene.redrive()
    spans = await scene.spans(job, "send", "process", "nack", "process")
    assert dangling(spans) == []
    runs = [span for span in spans if span.name == "process orders"]
    assert [span.attributes["reaper.job.generation"] for span in runs] == [0, 1]
    assert len({span.span_id for span in runs}) == 2
    assert runs[0].span_id in [link.span_id for link in runs[1].links]


async def test_what_is_given_up_after_a_restart_is_told_of_and_linked_by_its_next_generation(scene: Scene) -> None:
    """The restart makes the delivery look overdue, so its span may begin before the job was sent."""
    named = ("--name", "w", "--max-deliveries", "1", "--recovery", "embedded")
    first = await scene.worker(*named)
    job = await scene.produce("kills=1")
    await first.wait()
    await scene.worker(*named)
    spans = await scene.spans(job, "send", "process", "recover")
    assert dangling(spans) == []
    own = spans
    lost, recovery = "process orders #1", "recover orders #1"
    own.sort(key=lambda span: ("send", "process", "recover").index(span.name.split()[0]))
    assert [told_of(span, own) for span in own] == [
        ("producer", "send orders", "PRODUCER", "", []),
        ("worker", lost, "CONSUMER", "send orders", []),
        ("worker", recovery, "CLIENT", "send orders", [lost]),
    ]
    assert (own[1].attributes["error.type"], own[1].attributes["reaper.synthesized"]) == ("visibility_timeout", True)
    facts = {name: value for name, value in own[2].attributes.items() if name.startswith("reaper.recovery")}
    assert facts == {
        "reaper.recovery.reason": "visibility_timeout",
        "reaper.recovery.outcome": "dead_lettered",
        "reaper.recovery.mode": "embedded",
    }
    assert 0 < own[1].end_ns - own[1].start_ns <= own[2].attributes["reaper.idle_ms"] * 1_000_000
    await scene.redrive()
    spans = await scene.spans(job, "send", "process", "recover", "process")
    assert dangling(spans) == []
    again = next(span for span in spans if span.attributes.get("reaper.job.generation") == 1 and "process" in span.name)
    assert {own[1].span_id, own[2].span_id} <= {link.span_id for link in again.links}


async def test_what_the_producer_does_not_sample_is_told_of_by_nobody(scene: Scene) -> None:
    await scene.reaper()
    first = await scene.worker()
    scene.env = {"OTEL_TRACES_SAMPLER": "always_off"}
    await scene.produce("kills=1")
    await first.wait()
    scene.env = {}
    worker = await scene.worker()
    await worker.prints("started")
    sampled = await scene.produce("n=1")
    await scene.spans(sampled, "send", "process", "ack")
    assert {span.attributes.get("reaper.job.id") for span in scene.received.spans} - {None} == {sampled}
    assert [span.name for span in scene.received.spans if span.name.startswith("recover")] == []


async def test_a_worker_that_was_only_slow_leaves_one_span_for_its_delivery(scene: Scene) -> None:
    await scene.reaper()
    slow = await scene.worker()
    job = await scene.produce("waits=2")
    await slow.prints("started")
    slow.pause()
    await scene.worker()
    await scene.spans(job, "process", "recover", "process", "ack")
    slow.resume()
    slow.terminate()
    assert await slow.wait() == 0
    await wait_until(lambda: not dangling(trace_of(scene.received, job)), "all that is linked arrives")
    spans = trace_of(scene.received, job)
    attempts = [span for span in spans if span.name == "process orders"]
    # The read that blocked when it was paused may have taken the next delivery, too.
    numbers = [span.attributes["reaper.delivery"] for span in attempts]
    assert numbers == list(range(1, len(attempts) + 1))
    assert [span.service for span in attempts] == ["reaper"] * (len(attempts) - 1) + ["worker"]
    late = [span.attributes.get("error.type") for span in spans if span.name == "ack orders"]
    assert late.count(None) == 1
    assert set(late) <= {None, "refused"}
