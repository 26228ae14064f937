"""The reply of one request is lost: the server has done the work, and the client never learns it.

Nothing may be done twice, nothing may be lost, and nobody may be rejected what is theirs.
"""

import random
from collections import Counter

import anyio
import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_state
from tests.conftest import StartProxy
from tests.faults import scene
from tests.support.proxy import Catch, Proxy, runs, served_read
from tests.support.servers import RedisServer
from tests.support.tiers import by_claim, in_matrix
from tests.support.waiting import wait_until
from workers.protocol.calls.moves import ACK, SETTLE
from workers.protocol.scripts import Script, load_script

pytestmark = pytest.mark.anyio


async def _lose(through: Proxy, client: Redis, script: Script, nth: int = 1) -> Catch:
    """Drop the reply of the ``nth`` run of ``script``; the server knows the script, so that each run does its work."""
    await client.script_load(script.source)
    return through.drop_reply(runs(script), nth)


# --- workers ------------------------------------------------------------------------------------------------


async def test_a_batch_whose_read_was_not_answered_is_found_again_and_runs_once(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    through, handler = await proxy(server), scene.Handler()
    enqueued = await scene.enqueue(client, 10)
    drop = through.drop_reply(served_read(server))
    async with scene.running_worker(through.url, handler) as worker:
        await scene.nothing_left(client)
    assert drop.happened
    assert scene.times(handler.starts) == dict.fromkeys(enqueued, 1)
    acked = await scene.events(client, "acked")
    assert [event.data["delivery"] for event in acked] == [1] * 10, "what nobody ran must not count"
    assert (worker.counts.read, worker.counts.acked) == (10, 10)


async def test_acknowledgements_that_were_not_answered_are_not_taken_for_rejected(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    through, handler = await proxy(server), scene.Handler()
    enqueued = await scene.enqueue(client, 10)
    drop = await _lose(through, client, ACK)
    async with scene.running_worker(through.url, handler) as worker:
        await scene.nothing_left(client)
    assert drop.happened
    assert await scene.count_events(client) == {"acked": 10}
    assert scene.times(handler.starts) == dict.fromkeys(enqueued, 1)
    assert (worker.counts.rejected, worker.counts.acked) == (0, 10)


@pytest.mark.parametrize("nth", [1, 3], ids=["of a nack", "of the dead letter"])
async def test_a_failed_job_whose_nack_was_not_answered_is_made_ready_once_and_dies_once(
    server: RedisServer, client: Redis, proxy: StartProxy, nth: int
) -> None:
    through, handler = await proxy(server), scene.Handler()
    enqueued = await scene.enqueue(client, 1, fail="")
    drop = await _lose(through, client, SETTLE, nth)
    async with scene.running_worker(through.url, handler) as worker:
        await drop.wait()
        await scene.nothing_left(client)
    assert scene.times(handler.starts) == dict.fromkeys(enqueued, 3)
    assert await scene.count_events(client) == {"nacked": 2, "dead_lettered": 1}
    assert worker.counts.rejected == 0
    assert await scene.violations(client, enqueued, finished=True) == []


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("script", ["recover", "move_due"])
@pytest.mark.parametrize("max_deliveries", [2, 3])
@pytest.mark.parametrize("policy", ["stream", by_claim("in-place")])
async def test_an_embedded_worker_that_misses_an_answer_recovers_each_job_once(
    server: RedisServer, client: Redis, proxy: StartProxy, script: str, max_deliveries: int, policy: str
) -> None:
    through, handler = await proxy(server), scene.Handler()
    await scene.create_group(client)
    enqueued = await scene.enqueue(client, 6)
    await scene.strand(client, 6, overdue=True)  # with two deliveries: quarantined jobs, which come back one at a time
    drop = await _lose(through, client, load_script("workers.protocol", script))
    settings = {"recovery": "embedded", "redelivery": policy, "max_deliveries": max_deliveries}
    async with scene.running_worker(through.url, handler, **settings):
        await drop.wait()
        await scene.nothing_left(client)
    assert scene.times(handler.starts) == dict.fromkeys(enqueued, 1)
    assert (await scene.count_events(client))["acked"] == 6
    assert await scene.violations(client, enqueued, [handler], finished=True, max_deliveries=max_deliveries) == []


# --- holders ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "script"),
    [
        ("reaper", "register"),
        ("reaper", "lease_take"),
        ("workers.protocol", "maintain_group"),
        ("workers.protocol", "recover"),
        ("workers.protocol", "move_due"),
        ("reaper", "tick"),
    ],
)
async def test_a_holder_that_misses_an_answer_goes_on_in_its_term_and_recovers_each_job_once(
    server: RedisServer, client: Redis, proxy: StartProxy, package: str, script: str
) -> None:
    through, handler = await proxy(server), scene.Handler()
    await scene.create_group(client)
    enqueued = await scene.enqueue(client, 6)
    await scene.strand(client, 6, overdue=True)  # with two deliveries: quarantined jobs, which come back one at a time
    drop = await _lose(through, client, load_script(package, script))
    async with scene.running_reaper(through.url, max_deliveries=2) as reaper:
        await scene.holds(reaper)
        async with scene.running_worker(server.url, handler, max_deliveries=2):
            await drop.wait()
            await scene.nothing_left(client)
        assert await scene.holds(reaper) == await scene.token_of(client) == 1
    assert scene.times(handler.starts) == dict.fromkeys(enqueued, 1)
    assert await scene.count_events(client) == {"quarantined": 6, "recovered": 6, "acked": 6}
    assert await scene.violations(client, enqueued, [handler], max_deliveries=2) == []


async def test_nobody_is_locked_out_by_a_hand_over_without_an_answer(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    through = await proxy(server)
    drop = await _lose(through, client, load_script("reaper", "lease_hand"))
    async with scene.running_reaper(through.url) as first:
        assert await scene.holds(first) == 1
        async with scene.running_reaper(server.url, after=first.replica_id) as second:
            await wait_until(lambda: second.has_worked, "the second knows who holds the lease")
            first.stop()
            assert await scene.holds(second) == 2
    assert drop.happened


# --- everybody ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, in_matrix(2)])
async def test_a_network_that_loses_replies_all_the_time_neither_loses_nor_doubles_work(
    server: RedisServer, client: Redis, proxy: StartProxy, seed: int
) -> None:
    through, handler, dice = await proxy(server), scene.Handler(), random.Random(seed)
    await scene.create_group(client)
    enqueued = await scene.enqueue(client, 20)
    await scene.strand(client, 20, overdue=True)
    enqueued |= await scene.enqueue(client, 20, fail="") | await scene.enqueue(client, 200)
    dropped: Counter[str] = Counter()
    enqueued |= await scene.enqueue(client, 1, hold="")
    async with (
        scene.running_reaper(through.url) as reaper,
        scene.running_worker(through.url, handler) as first,
        scene.running_worker(through.url, handler) as second,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_lose_replies, through, dice, dropped)
        await scene.holds(reaper)
        await wait_until(lambda: dropped["replies"] > 5, "replies were lost")
        handler.open_gate()
        await scene.nothing_left(client)
        tasks.cancel_scope.cancel()
    assert first.counts.rejected + second.counts.rejected == 0
    fails = {letter.job for letter in (await read_state(client, scene.KEYS)).dead}
    assert scene.times(handler.starts) == {job: 3 if job in fails else 1 for job in enqueued}
    assert await scene.violations(client, enqueued, [handler], finished=True, poison=frozenset(fails)) == []


async def _lose_replies(through: Proxy, dice: random.Random, dropped: Counter[str]) -> None:
    """Drop a reply of a script or a read every now and then, until cancelled."""
    losable = {b"EVALSHA", b"EVAL", b"XREADGROUP", b"XPENDING"}
    while True:
        drop = through.drop_reply(lambda request: request.command in losable, dice.randint(1, 8))
        await drop.wait()
        dropped["replies"] += 1
