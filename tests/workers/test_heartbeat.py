"""Heartbeats extend the deliveries in hand, let lost ones go, and keep unknown ones."""

import asyncio
import threading
from contextlib import suppress
from functools import partial

import anyio
import pytest
from redis.asyncio import Redis

from tests.conftest import StartProxy
from tests.support.proxy import runs
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until, wait_until_here
from tests.workers.extending import extended, extending, extensions, steal
from tests.workers.scene import (
    KEYS,
    Holding,
    blocked,
    enqueue,
    event_names,
    make_job,
    make_worker,
    number_of,
    pending_of,
    reports_of,
    running,
    wait_for_settled,
)
from workers import Job
from workers.loop.heartbeat import MAX_BATCH_BYTES, _batches
from workers.protocol.calls.moves import ACK

pytestmark = pytest.mark.anyio

VISIBILITY_S = 3_600
"""Nothing is overdue, however busy the machine is: where it matters, workers extend ten times in a second."""
LONG_S = 30 * 86_400
"""Longer than most machines are up."""


# ---- extended deliveries


@extending
@pytest.mark.parametrize("stream", [KEYS.stream, KEYS.retry], ids=["stream", "retry stream"])
async def test_running_jobs_are_extended_as_long_as_they_run(server: RedisServer, client: Redis, stream: str) -> None:
    handler = Holding()
    [job_id] = await enqueue(client, 1, stream=stream)

    async with running(make_worker(server.url, handler, visibility_timeout=VISIBILITY_S, concurrency=4)) as worker:
        await wait_until(extended(job_id, 6), "the job was extended again and again")
        assert await pending_of(client, stream=stream) == [(job_id, worker.consumer, 1)]
        handler.gate.set()

    assert (worker.counts.acked, worker.counts.rejected) == (1, 0)


def block_until_extended(job_id: str, times: int) -> None:
    """Block the event loop until the job was extended so often."""
    wait_until_here(extended(job_id, times), f"{job_id} was extended {times} times")


@extending
async def test_jobs_behind_a_handler_that_blocks_the_loop_are_extended(server: RedisServer, client: Redis) -> None:
    ran = []

    async def handle(job: Job) -> None:
        ran.append(number_of(job))
        if number_of(job) == 1:
            for one in ids:
                block_until_extended(one, 6)

    ids = await enqueue(client, 1, 2, 3)
    async with running(make_worker(server.url, handle, visibility_timeout=VISIBILITY_S)) as worker:
        await wait_for_settled(worker, 3)

    assert ran == [1, 2, 3]
    assert (worker.counts.acked, worker.counts.rejected) == (3, 0)


@extending
async def test_running_jobs_are_extended_while_the_server_is_full(server: RedisServer, client: Redis) -> None:
    async def has_connected() -> bool:
        others = [one for one in await client.client_list() if int(one["id"]) not in before]
        return sum(one["cmd"].startswith("eval") for one in others) == 2

    handler, before = Holding(), {int(one["id"]) for one in await client.client_list()}
    worker = make_worker(server.url, handler, visibility_timeout=VISIBILITY_S, concurrency=4)
    async with running(worker):
        await wait_until(partial(blocked, client), "the worker reads")
        await wait_until(has_connected, "the heartbeat and the join have connections, before there is a job")
        await client.config_set("maxclients", str(len(await client.client_list())))
        try:
            [job_id] = await enqueue(client, 1)
            await wait_until(extended(job_id, 6), "the job was extended all the same")
        finally:
            await client.config_set("maxclients", "10000")
        handler.gate.set()

    assert (worker.counts.acked, worker.counts.rejected) == (1, 0)


@extending
@pytest.mark.parametrize("visibility_s", [VISIBILITY_S, LONG_S])
async def test_a_job_lost_in_the_queue_is_not_started(server: RedisServer, client: Redis, visibility_s: int) -> None:
    ran = []

    async def handle(job: Job) -> None:
        ran.append(number_of(job))
        if number_of(job) == 1:
            server.command("XCLAIM", KEYS.stream, KEYS.group, "thief", 0, lost)
            block_until_extended(kept, 3)

    _, lost, kept = await enqueue(client, 1, 2, 3)
    async with running(make_worker(server.url, handle, visibility_timeout=visibility_s)) as worker:
        await wait_for_settled(worker, 3)

    assert ran == [1, 3]
    assert (worker.counts.acked, worker.counts.rejected) == (2, 1)
    assert [(entry_id, owner) for entry_id, owner, _ in await pending_of(client)] == [(lost, "thief")]


@extending
async def test_a_verdict_that_waits_is_not_extended(server: RedisServer, client: Redis, proxy: StartProxy) -> None:
    await client.script_load(ACK.source)
    through = await proxy(server)
    settling = through.hold_request(runs(ACK))
    handler = Holding()

    async def handle(job: Job) -> None:
        if number_of(job) == 2:
            await handler(job)

    done, busy = await enqueue(client, 1, 2)
    async with running(make_worker(through.url, handle, visibility_timeout=VISIBILITY_S)) as worker:
        await settling.wait()
        so_far = extensions().count(busy)
        await wait_until(extended(busy, so_far + 1), "an extension that was under way has arrived")
        before = extensions().count(done)
        await wait_until(extended(busy, so_far + 7), "the other job was extended again and again")
        assert extensions().count(done) == before
        settling.release()
        handler.gate.set()
        await wait_for_settled(worker, 2)

    assert (worker.counts.acked, worker.counts.rejected) == (2, 0)


def test_a_call_is_bounded_by_number_and_by_bytes() -> None:
    small = [make_job(entry_id=b"1700000000000-%04d" % number) for number in range(1_200)]
    large = [make_job(b"n", bytes(MAX_BATCH_BYTES // 2), entry_id=b"1700000000001-%d" % number) for number in range(5)]

    assert [len(batch) for batch in _batches([*large, *small])] == [500, 500, 202, 2, 1]
    assert list(_batches([])) == []


# ---- lost deliveries


@extending
async def test_a_rejected_extension_cancels_the_handler_and_is_told_once(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Holding()
    worker = make_worker(server.url, handler, visibility_timeout=VISIBILITY_S)
    reports = reports_of(worker, "rejected")
    lost, kept = await enqueue(client, 1, 2)
    async with running(worker):
        await handler.has_started(2)
        await steal(client, lost)
        await wait_until(lambda: handler.ended, "one is cancelled")
        assert handler.ended == [(1, "cancelled")]
        handler.gate.set()

    assert handler.ended == [(1, "cancelled"), (2, "done")]
    assert (worker.counts.rejected, worker.counts.acked, worker.counts.nacked) == (1, 1, 0)
    assert [(report.facts["job"], report.facts["verb"]) for report in reports] == [(lost, "extension")]
    assert caplog.text.count("settlement rejected") == 1
    assert [(entry_id, owner) for entry_id, owner, _ in await pending_of(client)] == [(lost, "thief")]
    assert await event_names(client) == ["acked"]
    assert kept != lost


@extending
async def test_w1_a_handler_that_returns_settles_no_lost_delivery(server: RedisServer, client: Redis) -> None:
    """Rule W1."""
    started = anyio.Event()

    async def handle(_job: Job) -> None:
        started.set()
        with suppress(asyncio.CancelledError):  # a stubborn handler goes on
            await anyio.sleep_forever()

    [lost] = await enqueue(client, 1)
    async with running(make_worker(server.url, handle, visibility_timeout=VISIBILITY_S)) as worker:
        await started.wait()
        await steal(client, lost)
        await wait_until(lambda: worker.counts.rejected, "the loss is noticed")

    assert (worker.counts.rejected, worker.counts.acked) == (1, 0)
    assert await event_names(client) == []


@extending
async def test_a_job_whose_payload_was_lost_runs_to_its_end(server: RedisServer, client: Redis) -> None:
    """It cannot be extended, so a leader takes it away after a visibility timeout. No other worker can ever run it.

    The leader has acknowledged it, so the worker's own acknowledgement comes too late and is rejected.
    """
    handler = Holding()
    gone, there = await enqueue(client, 1, 2)

    async with running(make_worker(server.url, handler, visibility_timeout=VISIBILITY_S)) as worker:
        await handler.has_started(2)
        await client.xdel(KEYS.stream, gone)
        was_extended = extensions().count(there)
        await wait_until(extended(there, was_extended + 3), "it was found to be gone")
        await client.xack(KEYS.stream, KEYS.group, gone)
        was_extended = extensions().count(there)
        await wait_until(extended(there, was_extended + 3), "its extension was answered")
        handler.gate.set()

    assert sorted(handler.ended) == [(1, "done"), (2, "done")]
    assert (worker.counts.acked, worker.counts.rejected) == (1, 1)
    assert await client.hget(KEYS.settings, "lost_payload") is None, "the leader has reported it"


# ---- no contact


@extending
async def test_no_contact_is_no_rejection(server: RedisServer, client: Redis, proxy: StartProxy) -> None:
    through = await proxy(server)
    handler = Holding()
    [job_id] = await enqueue(client, 1)
    worker = make_worker(through.url, handler, visibility_timeout=VISIBILITY_S)
    errors = reports_of(worker, "error")
    async with running(worker):
        await handler.has_started()
        await through.cut()
        await wait_until(lambda: errors, "the outage is noticed")
        before = extensions().count(job_id)
        await through.mend()
        await wait_until(extended(job_id, before + 2), "it is extended again")
        assert handler.ended == []
        handler.gate.set()

    assert (worker.counts.acked, worker.counts.rejected) == (1, 0)


# ---- Job.extend


async def test_a_job_tells_whether_it_is_still_ours(server: RedisServer, client: Redis) -> None:
    answers = []

    async def handle(job: Job) -> None:
        answers.append(await job.extend())
        await steal(client, job.entry_id)
        answers.append(await job.extend())

    await enqueue(client, 1)
    async with running(make_worker(server.url, handle, visibility_timeout=VISIBILITY_S)) as worker:
        await wait_for_settled(worker, 1)

    assert answers == [True, False]
    assert (worker.counts.acked, worker.counts.rejected) == (1, 0), "it is the first completion, so it wins"
    assert await pending_of(client) == []


async def test_a_job_that_no_worker_runs_cannot_be_extended() -> None:
    with pytest.raises(RuntimeError, match="no worker runs it"):
        await make_job().extend()


# ---- beginning and end


@extending
async def test_thread_and_connection_end_with_the_worker(server: RedisServer, client: Redis) -> None:
    handler = Holding()
    for number in range(3):
        await enqueue(client, number)
        async with running(make_worker(server.url, handler, visibility_timeout=VISIBILITY_S)):
            await wait_until(lambda: handler.ended or handler.started, "the job runs")
            handler.gate.set()

    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("heartbeat")] == []
    await wait_until(lambda: only_connection(client), "the server has no other client")


async def only_connection(client: Redis) -> bool:
    return len(await client.client_list()) == 1
