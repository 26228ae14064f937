"""A server that has lost its latest writes hands out anew what a worker has in hand (decision 12)."""

from math import inf

import pytest
from redis.asyncio import Redis

from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import (
    KEYS,
    Holding,
    enqueue,
    event_names,
    make_worker,
    number_of,
    pending_of,
    process_of,
    running,
)
from workers import Job
from workers.loop.execution import ACKED
from workers.loop.in_flight import Delivery, Interruption, Source
from workers.worker import Worker

pytestmark = pytest.mark.anyio


async def before_it_is_read(client: Redis) -> tuple[str, bytes]:
    """Add a job for an existing group. Return its entry ID, and the stream at that moment."""
    await client.xgroup_create(KEYS.stream, KEYS.group, "0", mkstream=True)
    [entry_id] = await enqueue(client, 1)
    dump = await client.dump(KEYS.stream)
    assert dump is not None
    return entry_id, dump


async def lose_latest_writes(client: Redis, worker: Worker, dump: bytes) -> None:
    """Have the server lose what became of the stream, and wait until the worker knows what it has read once more."""
    proven = {held: held.proven for held in in_hand(worker)}
    await client.restore(KEYS.stream, 0, dump, replace=True)

    async def is_read_again() -> bool:
        return [row[1:] for row in await pending_of(client)] == [(worker.consumer, 1)]

    await wait_until(is_read_again, "it is delivered anew")
    await wait_until(lambda: all(held.proven > proven[held] for held in in_hand(worker)), "it has come again")


def in_hand(worker: Worker) -> list[Delivery]:
    return list(process_of(worker).in_hand())


async def test_w5_an_entry_that_comes_again_with_the_same_count_runs_once(server: RedisServer, client: Redis) -> None:
    handler = Holding()
    worker = make_worker(server.url, handler, concurrency=4)
    entry_id, dump = await before_it_is_read(client)
    async with running(worker):
        for _ in range(2):
            await handler.has_started()
            await lose_latest_writes(client, worker, dump)
        [other] = await enqueue(client, 2)
        await handler.has_started(2)
        handler.gate.set()
        await wait_until(lambda: worker.counts.acked == 2, "both are settled")
    assert [(number_of(job), job.deliveries) for job in handler.started] == [(1, 1), (2, 1)]
    assert (worker.counts.rejected, await pending_of(client)) == (0, [])
    assert sorted(await event_names(client)) == ["acked", "acked"]
    assert entry_id != other


# ---- a last delivery


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_the_arrival_of_a_last_delivery_is_reported_first(server: RedisServer, client: Redis, times: int) -> None:
    """Else who dies of it at once looks like one who was dead before (seed 14779)."""
    seen: list[object] = []

    async def handle(job: Job) -> None:
        seen.append(await client.hget(KEYS.quarantine, job.raw_entry_id))

    await client.hset(KEYS.quarantine, "7-1", "stream,,0")
    await client.xadd(KEYS.stream, {"number": "1", "reaper.deliveries": str(times - 1)}, id="7-1")
    async with running(make_worker(server.url, handle, max_deliveries=3)) as worker:
        await wait_until(lambda: worker.counts.acked == 1, "it is settled")
    [said] = seen
    assert isinstance(said, bytes)
    assert said.split(b",")[1:2] == [b"1" if times == 3 else b""]


# ---- the difference between the two


def held_of(source: Source, times_delivered: int) -> Delivery:
    held = Delivery(source, b"1-1", (), times_delivered, 3, 0, 5.0)
    source.hold([held])
    return held


def test_w5_an_entry_that_comes_again_with_another_count_is_dropped() -> None:
    source = Source("orders", "orders", inf, None)
    held = held_of(source, 2)
    assert not source.comes_again(b"2-1", 2, 7.0)
    assert not source.comes_again(b"1-1", 1, 7.0)
    assert (held.interruption, source.deliveries) == (Interruption.LOST, {})
    assert not source.comes_again(b"1-1", 1, 7.0), "it is nobody's"


def test_it_is_proven_by_what_has_read_it_again_and_never_later() -> None:
    source = Source("orders", "orders", inf, None)
    held = held_of(source, 1)
    assert source.comes_again(b"1-1", 1, 7.0)
    assert held.proven == 7.0
    assert source.comes_again(b"1-1", 1, 6.0)
    assert held.proven == 7.0
    assert source.holds(held)


def test_what_has_ended_and_has_another_count_makes_room_and_is_not_taken_for_lost() -> None:
    source = Source("orders", "orders", inf, None)
    held = held_of(source, 2)
    held.end(ACKED, 0)
    assert not source.comes_again(b"1-1", 1, 7.0)
    assert (held.interruption, source.deliveries) == (None, {})
