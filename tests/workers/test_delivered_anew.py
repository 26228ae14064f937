"""A server that has lost its latest writes hands out anew what a worker has in hand (decision 12)."""

from collections.abc import Sequence
from math import inf
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import KEYS, enqueue, event_names, make_worker, number_of, pending_of, running
from workers import Job
from workers.loop.execution import ACKED
from workers.loop.held import Held, Interruption, Source
from workers.protocol.calls.moves import Life, Moves
from workers.runtime.clock import monotonic
from workers.worker import Worker

pytestmark = pytest.mark.anyio


class Handler:
    """Runs until it may end, or is cancelled."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int]] = []
        self.go = anyio.Event()

    async def __call__(self, job: Job) -> None:
        self.started.append((number_of(job), job.deliveries))
        await self.go.wait()


async def before_it_is_read(client: Redis) -> tuple[str, bytes]:
    """Add a job for an existing group. Return its entry ID, and the stream at that moment."""
    await client.xgroup_create(KEYS.stream, KEYS.group, "0", mkstream=True)
    [entry_id] = await enqueue(client, 1)
    dump = await client.dump(KEYS.stream)
    assert dump is not None
    return entry_id, dump


async def lose_latest_writes(client: Redis, worker: Worker, dump: bytes) -> None:
    """Have the server lose what became of the stream, and wait until the worker knows what it has read once more."""
    lost_at = monotonic()
    await client.restore(KEYS.stream, 0, dump, replace=True)

    async def is_read_again() -> bool:
        return [row[1:] for row in await pending_of(client)] == [(worker.consumer, 1)]

    await wait_until(is_read_again, "it is delivered anew")
    await wait_until(lambda: all(held.again_at > lost_at for held in in_hand(worker)), "it has come again")


def in_hand(worker: Worker) -> list[Held]:
    assert worker.process is not None
    return list(worker.process.in_hand())


async def test_w5_an_entry_that_comes_again_with_the_same_count_runs_once(server: RedisServer, client: Redis) -> None:
    handler = Handler()
    worker = make_worker(server.url, handler, concurrency=4)
    entry_id, dump = await before_it_is_read(client)
    async with running(worker):
        for _ in range(2):
            await wait_until(lambda: handler.started, "it runs")
            await lose_latest_writes(client, worker, dump)
        [other] = await enqueue(client, 2)
        await wait_until(lambda: len(handler.started) == 2, "the next one runs")
        handler.go.set()
        await wait_until(lambda: worker.counts.acked == 2, "both are settled")
    assert handler.started == [(1, 1), (2, 1)]
    assert (worker.counts.refused, await pending_of(client)) == (0, [])
    assert sorted(await event_names(client)) == ["acked", "acked"]
    assert entry_id != other


async def test_what_was_refused_before_it_came_again_is_settled_all_the_same(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = Handler()
    worker = make_worker(server.url, handler, concurrency=4)
    _, dump = await before_it_is_read(client)
    answers: list[Sequence[bool] | None] = []
    ack = Moves.ack

    async def ack_late(*words: Any, **more: Any) -> Sequence[bool] | None:
        if not answers:  # it is settled, or owned by another, when the call arrives, and then the server has lost that
            done = await client.xack(KEYS.stream, KEYS.group, *(row[0] for row in await pending_of(client)))
            assert done == 1
        answers.append(await ack(*words, **more))
        if len(answers) == 1:
            await lose_latest_writes(client, worker, dump)
        return answers[-1]

    monkeypatch.setattr(Moves, "ack", ack_late)
    async with running(worker):
        await wait_until(lambda: handler.started, "it runs")
        handler.go.set()
        await wait_until(lambda: worker.counts.acked == 1, "it is settled")
    assert answers[0] == [False]
    assert (len(answers), handler.started) == (2, [(1, 1)])
    assert (worker.counts.refused, await pending_of(client)) == (0, [])


@pytest.mark.parametrize("is_late", [False, True])
async def test_an_extension_that_was_refused_before_it_came_again_takes_nothing_away(
    server: RedisServer, client: Redis, is_late: bool
) -> None:
    handler = Handler()
    worker = make_worker(server.url, handler, concurrency=4)
    _, dump = await before_it_is_read(client)
    async with running(worker):
        await wait_until(lambda: handler.started, "it runs")
        asked_at = monotonic()
        await lose_latest_writes(client, worker, dump)
        [held] = in_hand(worker)
        refusal = 1_700_000_000_000, [Life.REJECTED]
        assert worker.process is not None
        worker.process._heartbeat._learn([held], refusal, monotonic() if is_late else asked_at)
        assert (held.interruption is Interruption.LOST) is is_late
        handler.go.set()
        await wait_until(lambda: worker.counts.acked == 1 - is_late, "it is settled, unless it is lost")
    assert worker.counts.refused == is_late


# ---- a last delivery


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_before_a_job_has_its_last_delivery_redis_knows_that_it_has_reached_us(
    server: RedisServer, client: Redis, times: int
) -> None:
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


def held_of(source: Source, times_delivered: int) -> Held:
    held = Held(source, b"1-1", (), times_delivered, 3, 0, 5.0)
    source.hold(held)
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
    assert held.again_at <= monotonic()


def test_what_has_ended_and_has_another_count_makes_room_and_is_not_taken_for_lost() -> None:
    source = Source("orders", "orders", inf, None)
    held = held_of(source, 2)
    held.end(ACKED, monotonic(), monotonic())
    assert not source.comes_again(b"1-1", 1, 7.0)
    assert (held.interruption, source.deliveries) == (None, {})


def test_what_was_settled_while_a_read_was_under_way_was_settled_for_what_it_brings_too() -> None:
    """If it were handed out again before its settlement, the finder of the missing delivery would run it (seed
    4002349)."""
    source = Source("orders", "orders", inf, None)
    source.is_asked(claims=True)
    held = held_of(source, 2)
    source.forget_all([held])
    source.are_settled([held])
    assert source.comes_again(b"1-1", 2, 7.0)
    assert not source.comes_again(b"1-1", 3, 7.0), "it is another delivery"
    source.is_read()
    assert not source.comes_again(b"1-1", 2, 7.0), "it was delivered anew since"


def test_what_was_settled_before_a_read_was_asked_for_runs_anew() -> None:
    source = Source("orders", "orders", inf, None)
    held = held_of(source, 1)
    source.is_asked(claims=True)
    source.are_settled([held])
    source.forget_all([held])
    source.is_asked(claims=True)
    assert not source.comes_again(b"1-1", 1, 7.0)


def test_what_lies_behind_all_that_was_read_is_not_compared_with_what_was_settled() -> None:
    source = Source("orders", "orders", inf, None)
    for first, last, is_noted, may_come_again in (
        (b"9-1", b"10-1", True, False),
        (b"10-2", b"11-1", False, False),  # no note is written if the server has lost no delivery
        (b"9-2", b"10-2", False, True),
        (b"11-1", b"12-1", True, True),
        (b"12-2", b"12-3", True, False),
    ):
        source.is_asked(claims=False)
        assert (source.settled is not None) is is_noted
        source.has_brought(first, last)
        assert source.may_be_behind is may_come_again
        source.is_read()
    source.is_asked(claims=True)
    assert source.settled == []
