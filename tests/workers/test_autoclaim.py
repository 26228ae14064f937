"""Embedded recovery, in which workers inside the test give back stalled jobs without a reaper."""

import logging
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_state
from reaper.drill.promises import Pairs
from tests.faults.scene import (
    GROUP,
    KEYS,
    OVERDUE_MS,
    STREAM,
    Handler,
    all_events,
    count_events,
    create_group,
    enqueue,
    events,
    make_overdue,
    nothing_left,
    strand,
    times,
    violations,
)
from tests.faults.scene import running_worker as running_any_worker
from tests.support.servers import RedisServer
from tests.support.tiers import by_claim
from tests.support.waiting import wait_until
from tests.workers.scene import key_of
from workers import Job, Producer, Worker
from workers.embedded import autoclaim
from workers.loop.heartbeat import Heartbeat
from workers.loop.in_flight import Delivery
from workers.loop.slots import Slots
from workers.protocol.calls.group_moves import GroupMoves, Recovery
from workers.protocol.messages import text
from workers.runtime.clock import monotonic, server_ms

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("hurried")]


either_way = pytest.mark.parametrize("policy", ["stream", by_claim("in-place")])


@asynccontextmanager
async def running_worker(url: str, handler: Any, **changes: Any) -> AsyncIterator[Worker]:
    """Run an embedded worker inside the test."""
    async with running_any_worker(url, handler, **{"recovery": "embedded", **changes}) as worker:
        yield worker


async def owners(client: Redis) -> Counter[str]:
    """Return how many deliveries each consumer holds."""
    rows: Any = await client.xpending_range(STREAM, GROUP, "-", "+", 10_000)
    return Counter(text(row[1]) for row in rows)


async def stall(client: Redis, number: int) -> dict[str, Pairs]:
    """Create the group, and enqueue jobs that a consumer has read which is gone."""
    await create_group(client)
    enqueued = await enqueue(client, number)
    await strand(client, number, overdue=True)
    return enqueued


# ---- one worker alone


async def test_on_a_quiet_queue_jobs_of_a_dead_consumer_run_in_time(server: RedisServer, client: Redis) -> None:
    await create_group(client)
    enqueued = await enqueue(client, 20)
    entries = await strand(client, 20)
    handler = Handler()
    async with running_worker(server.url, handler, concurrency=20, visibility_timeout=0.5) as worker:
        await nothing_left(client)
        assert worker.counts.read == 20
    assert times(handler.starts) == dict.fromkeys(enqueued, 1)
    recovered = await events(client, "recovered")
    assert {event.data["mode"] for event in recovered} == {"embedded"}
    assert all(event.data["idle_ms"] >= 500 for event in recovered)
    claimed = [text(entry) for entry in entries]
    assert [event.data["new_entry"] for event in recovered] == claimed, "the worker has claimed all of them"
    acked = await events(client, "acked")
    assert {event.data["entry"]: event.data["delivery"] for event in acked} == dict.fromkeys(claimed, 2)
    assert await violations(client, enqueued, [handler], finished=True, visibility_ms=500) == []


async def test_stalled_jobs_are_claimed_one_by_one_also_that_with_the_last_id_of_all(
    server: RedisServer, client: Redis
) -> None:
    await create_group(client)
    await enqueue(client, 1)
    await client.xadd(STREAM, {"n": "2"}, id="18446744073709551615-18446744073709551615")
    await strand(client, 2, overdue=True)
    handler = Handler()
    async with running_worker(server.url, handler, concurrency=1, redelivery="retry-stream") as worker:
        await wait_until(lambda: worker.counts.acked == 2, "both are done")
    assert await owners(client) == {}


async def test_a_worker_without_a_free_slot_makes_stalled_deliveries_ready(server: RedisServer, client: Redis) -> None:
    await create_group(client)
    handler = Handler()
    async with running_worker(server.url, handler, concurrency=1) as worker:
        await enqueue(client, 1, hold="")
        await handler.has_started(1)
        await enqueue(client, 3)
        await strand(client, 3, overdue=True)
        ready: list[bytes] = []

        async def copied() -> bool:  # as a bare worker reads
            reply: Any = await client.xreadgroup(GROUP, "foreign", {STREAM: ">"})
            ready.extend(entry_id for _, entries in reply or () for entry_id, _ in entries)
            return len(ready) == 3

        await wait_until(copied, "what stalled can be read by anybody")
        assert (await owners(client))[worker.consumer] == 1, "its own long job is still its own"
        await client.xack(STREAM, GROUP, *ready)
        handler.open_gate()
        await nothing_left(client)
    assert len(handler.starts) == 1
    assert await count_events(client) == {"recovered": 3, "acked": 1}


async def test_claimed_deliveries_are_run_although_the_reply_was_lost(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover_page, lost = GroupMoves.recover_page, 0

    async def loses_a_reply(*words: Any, **more: Any) -> Any:
        nonlocal lost
        page = await recover_page(*words, **more)
        if isinstance(page, Recovery) and page.claimed and not lost:
            lost = len(page.claimed)
            raise ConnectionError("lost reply")
        return page

    monkeypatch.setattr(GroupMoves, "recover_page", loses_a_reply)
    enqueued = await stall(client, 3)
    handler = Handler()
    async with running_worker(server.url, handler, concurrency=3):
        await nothing_left(client)
    assert lost == 3
    assert times(handler.starts) == dict.fromkeys(enqueued, 1)
    assert {event.data["delivery"] for event in await events(client, "acked")} == {2}


async def test_live_deliveries_in_front_do_not_starve_dead_ones(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoclaim, "PAGE", 30)
    await create_group(client)
    busy, healthy = Handler(), Handler()
    # The owner itself recovers no delivery, so all are left to the one free slot.
    async with running_worker(server.url, busy, concurrency=200, recovery="reaper") as owner:
        living = await enqueue(client, 200, hold="")
        await busy.has_started(200)
        dead = await enqueue(client, 200)
        await strand(client, 200, overdue=True)
        async with running_worker(server.url, healthy, concurrency=1) as worker:
            await wait_until(lambda: len(healthy.completions) == 200, "all dead ones are run")
            await wait_until(lambda: worker.counts.acked == 200, "and settled")
            assert (await owners(client)) == {owner.consumer: 200}
            busy.open_gate()
            await nothing_left(client)
        assert owner.counts.rejected == 0
    assert times(busy.starts) + times(healthy.starts) == dict.fromkeys([*living, *dead], 1)
    assert await violations(client, {**living, **dead}, [busy, healthy], finished=True) == []


# ---- counting


@pytest.mark.parametrize("max_deliveries", [1, 2, 3])
@either_way
async def test_a_job_whose_consumers_all_die_is_run_as_often_as_with_a_reaper(
    server: RedisServer, client: Redis, max_deliveries: int, policy: str
) -> None:
    await create_group(client)
    enqueued = await enqueue(client)
    deliveries: list[int] = []

    async def die(job: Job) -> None:
        deliveries.append(job.deliveries)
        await client.execute_command(
            "XCLAIM", key_of(job), GROUP, f"dead-{len(deliveries)}", 0, job.entry_id, "IDLE", OVERDUE_MS, "RETRYCOUNT",
            job.times_delivered, "JUSTID",
        )  # fmt: skip
        raise ValueError("an acknowledgement would be the first completion, so it would win")

    async with running_worker(server.url, die, redelivery=policy, max_deliveries=max_deliveries):
        await nothing_left(client)
    assert deliveries == list(range(1, max_deliveries + 1))
    (dead,) = (await read_state(client, KEYS)).dead
    assert (dead.job, dead.deliveries, dead.reason) == (next(iter(enqueued)), max_deliveries, "max_deliveries")


# ---- many workers


@either_way
async def test_jobs_that_a_crowd_of_workers_recovers_run_once(server: RedisServer, client: Redis, policy: str) -> None:
    enqueued = await stall(client, 300)
    handlers = [Handler() for _ in range(4)]
    async with anyio.create_task_group() as tasks:
        stop = anyio.Event()

        async def work(handler: Handler) -> None:
            async with running_worker(server.url, handler, redelivery=policy, concurrency=8):
                await stop.wait()

        for handler in handlers:
            tasks.start_soon(work, handler)
        await nothing_left(client)
        stop.set()
    starts = sum((times(handler.starts) for handler in handlers), Counter[str]())
    assert starts == dict.fromkeys(enqueued, 1)
    assert await violations(client, enqueued, handlers, finished=True) == []


# ---- a mass


async def test_of_a_mass_there_are_never_more_deliveries_than_slots_and_it_is_logged_once_a_second(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[int] = []
    put = Slots.put

    def noted(self: Slots, jobs: list[Delivery]) -> None:
        put(self, jobs)
        taken.append(self.taken)

    def logged() -> list[int]:
        lines = [line for line in caplog.messages if "recovered stalled" in line]
        return [sum(map(int, re.findall(r"=(\d+)", line))) for line in lines]

    monkeypatch.setattr(Slots, "put", noted)
    caplog.set_level(logging.INFO)
    stalled = await stall(client, 1_000)
    fresh: dict[str, Pairs] = {}
    handler, began = Handler(), monotonic()

    async def run(job: Job) -> None:
        await handler(job)
        if len(handler.starts) == 1:
            fresh.update(await enqueue(client))

    async with running_worker(server.url, run, concurrency=100) as worker:
        await nothing_left(client)
        await wait_until(lambda: worker.counts.acked == 1_001, "all answers are there")
        assert worker.counts.read == 1_001
        await wait_until(lambda: sum(logged()) == 1_000, "all are logged")
        assert len(logged()) <= 1 + monotonic() - began
    assert times(handler.starts) == dict.fromkeys([*stalled, *fresh], 1)
    assert handler.starts[-1].job not in fresh, "new jobs are read meanwhile"
    assert max(taken) <= 100
    assert caplog.text.count(" consumers=gone ") == len(logged())


async def test_a_worker_stopped_in_a_mass_keeps_and_counts_no_delivery(server: RedisServer, client: Redis) -> None:
    enqueued = await stall(client, 400)
    first = Handler()

    async def run_some(job: Job) -> None:
        await first(job)
        if len(first.completions) == 100:
            stopping.stop()

    async with running_worker(server.url, run_some, concurrency=60) as stopping:
        await wait_until(lambda: len(first.completions) >= 100, "some have run")
        consumer = stopping.consumer
    assert stopping.counts.abandoned == 0
    assert (await owners(client))[consumer] == 0
    deliveries: list[int] = []

    async def run_rest(job: Job) -> None:
        deliveries.append(job.deliveries)
        await first(job)

    async with running_worker(server.url, run_rest):
        await nothing_left(client)
    assert times(first.starts) == dict.fromkeys(enqueued, 1)
    assert set(deliveries) == {2}, "one for the consumer that died, one for whoever ran it"


# ---- retry streams, schedules, quarantined jobs


async def test_stalled_entries_of_a_retry_stream_are_recovered(server: RedisServer, client: Redis) -> None:
    await create_group(client)
    await client.xgroup_create(KEYS.retry, GROUP, "0", mkstream=True)
    await client.xadd(KEYS.retry, {"n": "1", "reaper.job": "left-over", "reaper.deliveries": "1"})
    await client.execute_command("XREADGROUP", "GROUP", GROUP, "gone", "STREAMS", KEYS.retry, ">")
    await make_overdue(client)
    handler = Handler()
    async with running_worker(server.url, handler, max_deliveries=5):
        await nothing_left(client)
    assert [start.job for start in handler.starts] == ["left-over"]
    assert await client.xlen(KEYS.retry) == 0


@either_way
async def test_delayed_jobs_become_ready_without_a_reaper(server: RedisServer, client: Redis, policy: str) -> None:
    handler = Handler()
    async with running_worker(server.url, handler, redelivery=policy), Producer(STREAM, server.url) as producer:
        job = await producer.enqueue({"n": "1"}, delay=0.3)
        await wait_until(lambda: len(handler.completions) == 1, "the delayed job has run")
        await nothing_left(client)
    assert [done.job for done in handler.completions] == [job]


# ---- payloads that are gone


@either_way
async def test_entries_deleted_while_they_were_pending_are_acknowledged_and_reported(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    enqueued = list(await stall(client, 10))
    await client.xdel(STREAM, *enqueued[:6])
    handler = Handler()
    async with running_worker(server.url, handler, redelivery=policy):
        await nothing_left(client)
    assert [event.job for event in await events(client, "lost_payload")] == enqueued[:6]
    assert sorted(times(handler.starts)) == sorted(enqueued[6:])
    assert caplog.text.count("its payload is lost") == 6


# ---- rejections and delays


@either_way
async def test_a_paused_group_is_recovered_once_it_is_resumed(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    caplog.set_level(logging.INFO)
    await stall(client, 3)
    await client.hset(KEYS.settings, "paused", "1")
    handler = Handler()
    async with running_worker(server.url, handler, redelivery=policy):
        await wait_until(lambda: "recovery paused" in caplog.text, "the worker says why it recovers nothing")
        assert handler.starts == []
        await client.hdel(KEYS.settings, "paused")
        await nothing_left(client)
    assert (caplog.text.count("recovery paused"), caplog.text.count("recovery resumed")) == (1, 1)


async def test_in_a_stream_with_a_second_group_what_needs_a_copy_is_held_loudly_until_that_group_is_gone(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker needs no copy to claim an entry, so the job runs at once."""
    await create_group(client)
    await client.xgroup_create(STREAM, "audit", "$")
    held = await enqueue(client, 3)
    entries = await strand(client, 3, overdue=True, times=2)
    claimed = await enqueue(client, 3)
    await strand(client, 3, overdue=True)
    handler = Handler()
    async with running_worker(server.url, handler) as worker:
        await wait_until(
            lambda: caplog.text.count("cannot redeliver an entry, it stays pending") == 3, "the worker says so"
        )
        await wait_until(lambda: worker.counts.acked == 3, "the claimed ones have run")
        assert times(handler.starts) == dict.fromkeys(claimed, 1)
        rows: Any = await client.xpending_range(STREAM, GROUP, "-", "+", 10)
        assert [(row[0], row[1], row[3]) for row in rows] == [(entry, b"gone", 2) for entry in entries]
        await client.xgroup_destroy(STREAM, "audit")
        await nothing_left(client)
    assert times(handler.starts) == dict.fromkeys([*held, *claimed], 1)
    assert await count_events(client) == {"recovered": 6, "quarantined": 3, "acked": 6}


@either_way
async def test_after_an_outage_live_workers_keep_what_they_hold(
    client: Redis, server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    """All deliveries look overdue, and no worker sends a heartbeat before both have looked for stalled ones."""
    monkeypatch.setattr(Heartbeat, "_period_s", lambda _: 3_600)
    caplog.set_level("INFO", "workers.upkeep")
    busy, idle = Handler(), Handler()
    settings = {"redelivery": policy, "concurrency": 17}
    await create_group(client)
    async with running_worker(server.url, busy, **settings), running_worker(server.url, idle, **settings):
        enqueued = await enqueue(client, 16, hold="")
        await wait_until(lambda: len(busy.starts) + len(idle.starts) == 16, "all run")
        two_hours_ago = (await server_ms(client)) - 7_200_000
        await client.hset(KEYS.settings, "beat", two_hours_ago)
        await make_overdue(client)
        await wait_until(
            lambda: sum("recovery waits" in line and "gap_s=72" in line for line in caplog.messages) == 2,
            "both have looked, and wait",
        )
        busy.open_gate()
        idle.open_gate()
        await nothing_left(client)
    assert times([*busy.starts, *idle.starts]) == dict.fromkeys(enqueued, 1)
    assert [event.event for event in await all_events(client)] == ["acked"] * 16
