"""Quarantined jobs that have their last delivery run apart from other jobs."""

from collections import defaultdict
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


async def release_one(client: Redis) -> str:
    """Make a quarantined job ready, as the gate does; return its entry ID."""
    entry_id = text(await client.execute_command("XADD", KEYS.stream, "*", *MARKED))
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
    """Give everybody the time to do what they should not."""
    for _ in range(LOOKS):
        await client.ping()


@pytest.mark.parametrize("limit", [2, 1, 5])
async def test_a_quarantined_job_waits_for_what_runs_and_others_wait_for_it(
    server: RedisServer, client: Redis, limit: int
) -> None:
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
async def test_that_it_is_extended_while_it_waits_is_no_sign_that_it_has_begun(
    server: RedisServer, client: Redis
) -> None:
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


async def test_what_was_read_with_it_waits_as_well(server: RedisServer, client: Redis) -> None:
    handler = Gated()
    worker = make_worker(server.url, handler, max_deliveries=2, concurrency=8)
    async with running(worker):
        await release_with_another(client)
        await wait_until(lambda: worker.counts.read == 2 and handler.has_started(2), "the quarantined job runs")
        await look_on(client)
        handler.gates[2].set()
        await wait_until(lambda: handler.has_started(2, 3), "the other one goes on")
        assert handler.beside[2] == [2]
        handler.gates[3].set()
        await wait_for_settled(worker, 2)


async def test_what_waits_goes_on_when_the_settlement_is_answered_and_not_before(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    """Rule W3: who dies in between is convicted, although the job has ended (seed 11085)."""
    handler = Gated()
    await client.script_load(ACK.source)
    through = await proxy(server)
    settling = through.hold_request(runs(ACK))
    worker = make_worker(through.url, handler, max_deliveries=2, concurrency=8)
    async with running(worker):
        await release_with_another(client)
        await wait_until(lambda: worker.counts.read == 2 and handler.has_started(2), "the quarantined job runs")
        handler.gates[2].set()
        await settling.wait()
        await look_on(client)
        assert handler.started == [2]
        settling.release()
        await wait_until(lambda: handler.has_started(2, 3), "the other one goes on")
        handler.gates[3].set()
        await wait_for_settled(worker, 2)


async def test_quarantined_jobs_wait_for_none_of_their_kind(server: RedisServer, client: Redis) -> None:
    handler = Gated()
    worker = make_worker(server.url, handler, max_deliveries=2, concurrency=8)
    for _ in range(3):
        await release_one(client)
    async with running(worker):
        await wait_until(lambda: handler.has_started(2, 2, 2), "all run")
        handler.gates[2].set()
        await wait_for_settled(worker, 3)


async def test_what_lasts_for_a_visibility_timeout_is_waited_for_no_longer(server: RedisServer, client: Redis) -> None:
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


async def test_who_waits_is_handed_back_by_who_stops(server: RedisServer, client: Redis) -> None:
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


async def test_a_mark_on_a_job_that_has_deliveries_left_says_nothing(server: RedisServer, client: Redis) -> None:
    handler = Gated()
    worker = make_worker(server.url, handler, max_deliveries=3, concurrency=8)
    async with running(worker):
        await enqueue(client, 1)
        await wait_until(lambda: handler.has_started(1), "the first one runs")
        await release_one(client)
        await wait_until(lambda: handler.has_started(1, 2), "both run")
        for gate in (1, 2):
            handler.gates[gate].set()
        await wait_for_settled(worker, 2)
