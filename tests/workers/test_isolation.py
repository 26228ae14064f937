"""Quarantined jobs that have their last delivery run apart from other jobs."""

from collections import defaultdict
from functools import partial
from math import inf
from time import monotonic
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from tests.conftest import StartProxy
from tests.support.proxy import runs
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.extending import extensions
from tests.workers.scene import KEYS, enqueue, make_worker, number_of, pending_of, running, wait_for_settled
from workers import Job
from workers.loop.heartbeat import FIRST_BEAT_S, first_beat_at
from workers.protocol.calls.moves import ACK
from workers.protocol.messages import text

pytestmark = pytest.mark.anyio

MARKED = (b"n", b"2", b"reaper.deliveries", b"1", b"reaper.quarantined", b"1")
"""A quarantined job, where two deliveries are the limit."""
LOOKS = 20


class Gated:
    """A handler each job of which waits for its own gate, and which notes what had started by its end."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.beside: dict[int, list[int]] = {}
        self.gates: defaultdict[int, anyio.Event] = defaultdict(anyio.Event)

    async def __call__(self, job: Job) -> None:
        number = number_of(job)
        self.started.append(number)
        await self.gates[number].wait()
        self.beside[number] = list(self.started)

    def has_started(self, *numbers: int) -> bool:
        return self.started == list(numbers)


async def release_one(client: Redis, number: int = 2) -> str:
    """Make a quarantined job ready, as the gate does; return its entry ID."""
    entry_id = text(await client.execute_command("XADD", KEYS.stream, "*", b"n", number, *MARKED[2:]))
    await client.hset(KEYS.quarantine, entry_id, "stream,,0")
    return entry_id


async def release_with_another(client: Redis) -> None:
    """Have a quarantined job and job 3 read at once."""
    async with client.pipeline(transaction=True) as both:
        both.execute_command("XADD", KEYS.stream, "*", *MARKED)
        both.xadd(KEYS.stream, {"n": 3})
        await both.execute()


async def arrived(client: Redis, quarantined: str) -> bool:
    """Return whether a worker has shown that it has the quarantined job in hand, as its first delivery."""
    value: Any = await client.hget(KEYS.quarantine, quarantined)
    return text(value).split(",")[1] == "1"


async def look_on(client: Redis) -> None:
    """Wait for as long as a worker would need to break the rule."""
    for _ in range(LOOKS):
        await client.ping()


@pytest.mark.parametrize("limit", [2, 1, 5])
async def test_w3_a_quarantined_job_runs_alone(server: RedisServer, client: Redis, limit: int) -> None:
    """So it is, too, where the limit was changed since the job was quarantined."""
    handler = Gated()
    worker = make_worker(server.url, handler, max_deliveries=limit, concurrency=8)
    async with running(worker):
        await enqueue(client, 1)
        await wait_until(lambda: handler.has_started(1), "the first one runs")
        quarantined = await release_one(client)
        await enqueue(client, 3)
        await wait_until(lambda: worker.counts.read >= 2, "the quarantined job is read")
        await look_on(client)
        assert (handler.started, await arrived(client, quarantined)) == ([1], False)

        handler.gates[1].set()
        await wait_until(lambda: handler.has_started(1, 2), "the quarantined job is apart")
        assert await arrived(client, quarantined)
        await look_on(client)
        handler.gates[2].set()
        await wait_until(lambda: handler.has_started(1, 2, 3), "the others go on")
        assert handler.beside[2] == [1, 2]
        handler.gates[3].set()
        await wait_for_settled(worker, 3)
    assert await pending_of(client) == []


@pytest.mark.usefixtures("hurried")
async def test_w4_a_heartbeat_of_a_waiting_job_does_not_confirm_its_arrival(server: RedisServer, client: Redis) -> None:
    handler = Gated()
    worker = make_worker(server.url, handler, max_deliveries=2, concurrency=8, visibility_timeout=3_600)
    async with running(worker):
        await enqueue(client, 1)
        await wait_until(lambda: handler.has_started(1), "the first one runs")
        quarantined = await release_one(client)

        await wait_until(lambda: quarantined in extensions(), "the quarantined job is extended")
        assert (handler.started, await arrived(client, quarantined)) == ([1], False)
        for gate in (1, 2):
            handler.gates[gate].set()
        await wait_for_settled(worker, 2)


async def test_w3_a_job_that_was_read_with_it_begins_when_its_settlement_is_answered_and_not_before(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    """Rule W3. A crash in between makes a dead letter, although the job has ended (seed 11085)."""
    handler = Gated()
    await client.script_load(ACK.source)
    through = await proxy(server)
    settling = through.hold_request(runs(ACK))
    worker = make_worker(through.url, handler, max_deliveries=2, concurrency=8)
    async with running(worker):
        await release_with_another(client)
        await wait_until(lambda: worker.counts.read == 2 and handler.has_started(2), "the quarantined job runs")
        await look_on(client)
        handler.gates[2].set()
        await settling.wait()
        await look_on(client)
        assert handler.started == [2]
        settling.release()
        await wait_until(lambda: handler.has_started(2, 3), "the other one goes on")
        handler.gates[3].set()
        await wait_for_settled(worker, 2)


async def test_w3_quarantined_jobs_run_one_after_the_other(server: RedisServer, client: Redis) -> None:
    """A wide gate may release several jobs, and one worker may read them together. A crash is the fault of one."""
    handler = Gated()
    worker = make_worker(server.url, handler, max_deliveries=2, concurrency=8)
    for number in (1, 2, 3):
        await release_one(client, number)
    async with running(worker):
        for number in (1, 2, 3):
            await wait_until(partial(handler.has_started, *range(1, number + 1)), "the next one runs")
            await wait_until(lambda: worker.counts.read == 3, "all are read")
            await look_on(client)
            assert handler.started == list(range(1, number + 1))
            handler.gates[number].set()
        await wait_for_settled(worker, 3)


async def test_w3_a_job_longer_than_a_visibility_timeout_blocks_no_job(server: RedisServer, client: Redis) -> None:
    handler = Gated()
    worker = make_worker(server.url, handler, max_deliveries=2, concurrency=8, visibility_timeout=0.3)
    async with running(worker):
        await enqueue(client, 1)
        await wait_until(lambda: handler.has_started(1), "the first one runs")
        await release_one(client)
        await wait_until(lambda: handler.has_started(1, 2), "the first one has lasted")
        await enqueue(client, 3)
        await wait_until(lambda: handler.has_started(1, 2, 3), "the quarantined job has lasted")
        for gate in (1, 2, 3):
            handler.gates[gate].set()
        await wait_for_settled(worker, 3)
        assert worker.counts.acked == 3


async def test_waiting_jobs_are_handed_back_by_a_worker_that_stops(server: RedisServer, client: Redis) -> None:
    handler = Gated()
    worker = make_worker(server.url, handler, max_deliveries=2, concurrency=8)
    async with running(worker):
        await enqueue(client, 1)
        await wait_until(lambda: handler.has_started(1), "the first one runs")
        await release_with_another(client)
        await wait_until(lambda: worker.counts.read == 3, "the quarantined job is read, and one more with it")
        worker.stop()
        handler.gates[1].set()
    assert (handler.started, worker.counts.acked, worker.counts.handed_back) == ([1], 1, 2)
    assert await pending_of(client) == []


# ---- the first heartbeat


async def lives(client: Redis, quarantined: str) -> bool:
    """Return whether the gate knows that the job runs, so that it may release the next one."""
    value: Any = await client.hget(KEYS.quarantine, quarantined)
    return text(value).split(",")[2] == "1"


class Extending(Gated):
    """A handler that extends its own delivery at once, and notes when it began."""

    began = inf

    async def __call__(self, job: Job) -> None:
        self.began = monotonic()
        await job.extend()
        await super().__call__(job)


@pytest.mark.usefixtures("hurried")
async def test_w8_no_heartbeat_reports_a_quarantined_job_within_a_second(server: RedisServer, client: Redis) -> None:
    """Not even the one that the handler sends.

    Otherwise the gate opens before the job had time to crash its process.
    """
    handler = Extending()
    worker = make_worker(server.url, handler, max_deliveries=2, visibility_timeout=3_600)
    quarantined = await release_one(client)
    async with running(worker):
        await wait_until(lambda: handler.has_started(2), "the quarantined job runs")
        so_far = extensions().count(quarantined)
        await wait_until(lambda: extensions().count(quarantined) > so_far + 2, "heartbeats have extended it")
        await wait_until(partial(lives, client, quarantined), "the gate knows that it runs")
        assert monotonic() - handler.began >= FIRST_BEAT_S
        handler.gates[2].set()
        await wait_for_settled(worker, 1)


async def test_w8_a_quarantined_job_is_reported_before_a_quarter_of_the_timeout(
    server: RedisServer, client: Redis
) -> None:
    """Otherwise the gate releases one job in each quarter of the visibility timeout."""
    handler = Gated()
    worker = make_worker(server.url, handler, max_deliveries=2, visibility_timeout=3_600)
    quarantined = await release_one(client)
    async with running(worker):
        await wait_until(partial(lives, client, quarantined), "the gate knows that it runs")
        assert extensions() in ([quarantined], [quarantined] * 2), "its arrival and its first heartbeat, or both in one"
        handler.gates[2].set()
        await wait_for_settled(worker, 1)


@pytest.mark.parametrize(("visibility_s", "after_s"), [(60.0, 1.0), (3.0, 1.0), (1.5, 0.5)])
def test_w8_it_is_reported_after_a_second_or_a_third_of_the_timeout(visibility_s: float, after_s: float) -> None:
    assert first_beat_at(10.0, visibility_s) == 10.0 + after_s
