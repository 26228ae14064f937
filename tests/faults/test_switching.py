"""Both recovery modes in one group, side by side and in turn. No job is lost or done twice."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_state
from reaper.operations.snapshot import find_mismatches
from tests.faults.scene import (
    GROUP,
    KEYS,
    STREAM,
    VISIBILITY_S,
    Handler,
    create_group,
    enqueue,
    events,
    holds,
    make_due,
    make_overdue,
    nothing_left,
    running_reaper,
    running_worker,
    strand,
    times,
    violations,
)
from tests.scripts.scene import Scene
from tests.support.beats import let_beat
from tests.support.modes import EMBEDDED_IN_PLACE, mode_settings
from tests.support.servers import RedisServer
from tests.support.tiers import by_claim
from tests.support.waiting import wait_until
from workers import Producer, Worker
from workers.protocol.messages import text

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("hurried")]

QUICK: dict[str, Any] = {"visibility_timeout": VISIBILITY_S, "refresh_s": 0.2}


@pytest.fixture(params=["embedded", by_claim(EMBEDDED_IN_PLACE)])
def own_recovery(request: pytest.FixtureRequest) -> str:
    """How the workers recover by themselves."""
    return str(request.param)


@asynccontextmanager
async def worker_of(recovery: str, url: str, handler: Any, **changes: Any) -> AsyncIterator[Worker]:
    async with running_worker(url, handler, **{**QUICK, **changes, **mode_settings(recovery)}) as worker:
        yield worker


async def enqueue_for(client: Redis, consumer: str, number: int) -> dict[str, Any]:
    """Let ``consumer`` read jobs before any worker can, and die. Return their fields by job ID."""
    pipeline = client.pipeline(transaction=True)
    for _ in range(number):
        pipeline.execute_command("XADD", STREAM, "*", "n", "dies")
    pipeline.execute_command("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", number, "STREAMS", STREAM, ">")
    *entry_ids, _ = await pipeline.execute()
    await make_overdue(client, consumer)
    return {text(entry_id): [(b"n", b"dies")] for entry_id in entry_ids}


async def in_force(client: Redis) -> dict[str, str]:
    """Return the group settings."""
    return {text(name): text(value) for name, value in (await client.hgetall(KEYS.settings)).items()}


async def mode(client: Redis) -> str:
    return (await in_force(client)).get("recovery", "")


async def modes_of_recoveries(client: Redis) -> set[str]:
    return {event.data["mode"] for event in await events(client, "recovered", "quarantined", "dead_lettered")}


async def test_next_to_a_live_reaper_embedded_workers_stand_by_and_both_say_so(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture, own_recovery: str
) -> None:
    await create_group(client)
    handler = Handler()
    async with running_reaper(server.url) as reaper:
        await holds(reaper)
        await wait_until(lambda: mode(client), "the reaper serves the group")
        async with worker_of(own_recovery, server.url, handler):
            enqueued = await enqueue(client, 20)
            await nothing_left(client)
            more = await enqueue(client, 20, hold="")
            await handler.has_started(36)
            stalled = await enqueue(client, 4)
            await strand(client, 4, overdue=True)
            handler.open_gate()
            await nothing_left(client)
            (mismatch,) = find_mismatches(await in_force(client), 0)  # as in `reaper status`
            assert mismatch.endswith("recovery reaper is in force, embedded is set")
        assert await holds(reaper) == 1, "nobody has taken anything from the reaper"
    assert await modes_of_recoveries(client) == {"reaper"}
    assert "recovery reaper is in force, embedded is set" in caplog.text
    assert times(handler.starts) == dict.fromkeys([*enqueued, *more, *stalled], 1)
    assert await violations(client, {**enqueued, **more, **stalled}, [handler], finished=True) == []


async def _is_mode(client: Redis, name: str) -> bool:
    return await mode(client) == name


async def test_when_the_reaper_is_gone_embedded_workers_take_over_and_its_late_writes_are_fenced(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture, own_recovery: str
) -> None:
    caplog.set_level(logging.INFO)
    await create_group(client)
    handler = Handler()
    async with worker_of(own_recovery, server.url, handler):
        async with running_reaper(server.url) as reaper:
            await holds(reaper)
            await wait_until(lambda: _is_mode(client, "reaper"), "the reaper serves the group")
            lease = text(await client.get(KEYS.lease) or b"")
        enqueued = await enqueue_for(client, "gone", 4)
        await nothing_left(client)
        assert await mode(client) == "embedded"
    assert times(handler.starts) == dict.fromkeys(enqueued, 1)
    assert times(await events(client, "recovered")) == dict.fromkeys(enqueued, 1)
    assert await modes_of_recoveries(client) == {"embedded"}
    assert caplog.text.count("no reaper serves the group, its workers recover stalled jobs: group=orders/billing") == 2
    late, before = Scene(client), await read_state(client, KEYS)
    assert (await late.recover("1-1", lease=lease))[0] == b"fenced"
    assert await read_state(client, KEYS) == before


async def leave_things_behind(client: Redis) -> dict[str, Any]:
    """Enqueue jobs that are stalled by now, before their last delivery and in their first."""
    enqueued = await enqueue(client, 15)
    await strand(client, 10, overdue=True, times=2)
    await strand(client, 5, overdue=True)
    return dict(enqueued)


async def _is_quarantined(client: Redis) -> bool:
    """Tell whether all quarantined jobs but the one that is out are quarantined, and everything else is ready."""
    state = await read_state(client, KEYS)
    return len(state.scheduled) == 9 and state.released == 1 and not state.pending


async def test_embedded_workers_take_up_what_a_reaper_has_left(
    server: RedisServer, client: Redis, own_recovery: str
) -> None:
    await create_group(client)
    async with running_reaper(server.url, full_scan_interval=0.2) as reaper:
        await holds(reaper)
        await wait_until(lambda: _is_mode(client, "reaper"), "the reaper serves the group")
        enqueued = await leave_things_behind(client)
        await wait_until(lambda: _is_quarantined(client), "they are quarantined")
    handler = Handler()
    async with (
        worker_of(own_recovery, server.url, handler),
        Producer(STREAM, server.url) as producer,
    ):
        delayed = await producer.enqueue({"n": "late"}, delay=0.1)
        await nothing_left(client)
    assert times(handler.starts) == dict.fromkeys([*enqueued, delayed], 1)
    assert await modes_of_recoveries(client) == {"reaper", "embedded"}
    assert await violations(client, {**enqueued, delayed: [(b"n", b"late")]}, [handler], finished=True) == []


async def test_a_reaper_takes_up_what_embedded_workers_have_left(
    server: RedisServer, client: Redis, own_recovery: str
) -> None:
    await create_group(client)
    busy = Handler()
    async with Producer(STREAM, server.url) as producer:
        async with worker_of(own_recovery, server.url, busy, concurrency=1, drain_timeout=0):
            held = await enqueue(client, 1, hold="")
            await busy.has_started(1)
            delayed = await producer.enqueue({"n": "late"}, delay=3_600)
            enqueued = {**held, **await leave_things_behind(client)}

            async def left() -> bool:
                state = await read_state(client, KEYS)
                return len(state.scheduled) == 10 and state.released == 1 and len(state.pending) == 1

            await wait_until(left, "they are quarantined, and the rest is ready")
        await make_due(client)
        handler = Handler()
        handler.open_gate()
        async with running_reaper(server.url), running_worker(server.url, handler):
            await nothing_left(client)
    assert times(handler.starts) == dict.fromkeys([*enqueued, delayed], 1)
    assert await modes_of_recoveries(client) == {"reaper", "embedded"}
    assert await violations(client, {**enqueued, delayed: [(b"n", b"late")]}, [handler], finished=True) == []


async def test_where_there_is_no_reaper_embedded_workers_recover_what_plain_ones_hold(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture, own_recovery: str
) -> None:
    """As in the middle of a rolling deployment: the first worker said `reaper`, and there is none."""
    plain, embedded = Handler(), Handler()
    await let_beat(client, KEYS)
    async with running_worker(server.url, plain, concurrency=4, **QUICK):
        assert await mode(client) == "reaper"
        living = await enqueue(client, 4, hold="")
        await plain.has_started(4)
        dead = await enqueue(client, 4)
        await strand(client, 4, overdue=True)
        async with worker_of(own_recovery, server.url, embedded):
            assert await mode(client) == "embedded"
            await wait_until(lambda: len(embedded.completions) == 4, "what was dead is run")
            await wait_until(
                lambda: "recovery embedded is in force, reaper is set" in caplog.text, "the plain worker notices"
            )
            plain.open_gate()
            await nothing_left(client)
    assert times(plain.starts) == dict.fromkeys(living, 1)
    assert times(embedded.starts) == dict.fromkeys(dead, 1)


async def test_going_to_and_fro_between_the_modes_under_load_loses_nothing_and_does_nothing_twice(
    server: RedisServer, client: Redis, own_recovery: str
) -> None:
    handlers = [Handler(), Handler()]
    enqueued: dict[str, Any] = {}

    async def load() -> None:
        """Jobs that go well, some that fail once and for all, and some whose consumer dies."""
        enqueued.update(await enqueue(client, 30))
        enqueued.update(await enqueue(client, 3, fail=""))
        enqueued.update(await enqueue_for(client, "dies", 4))

    async with worker_of(own_recovery, server.url, handlers[0]), worker_of(own_recovery, server.url, handlers[1]):
        for _ in range(2):
            await load()
            async with running_reaper(server.url) as reaper:
                await holds(reaper)
                await load()
                await wait_until(lambda: _is_mode(client, "reaper"), "the reaper serves the group")
                await load()
            await load()
            await wait_until(lambda: _is_mode(client, "embedded"), "the workers have taken over")
        await nothing_left(client)
    assert await violations(client, enqueued, handlers, finished=True) == []
    completed = [done.job for handler in handlers for done in handler.completions]
    assert len(completed) == len(set(completed))
    dead = (await read_state(client, KEYS)).dead  # `dies` can read a copied job three times
    assert sum((b"fail", b"") in job.payload for job in dead) == 3 * 8
