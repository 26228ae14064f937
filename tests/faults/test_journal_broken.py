"""The journal cannot be written, or one entry of a batch cannot be copied: everything else goes on.

The journal's key holds something that is no stream, so that every write to it is rejected with WRONGTYPE.
"""

from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_state
from tests.faults import scene
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers import Job
from workers.protocol.messages import text
from workers.runtime.callbacks import Report

pytestmark = pytest.mark.anyio

TOO_MANY_FIELDS = 10_100
"""Pairs in an entry that no script can copy: ``unpack`` fails."""


async def break_journals(client: Redis) -> None:
    """Put something else where the journals belong."""
    for journal in (scene.KEYS.journal, scene.NAMESPACE.journal):
        await client.delete(journal)
        await client.set(journal, "no stream")


async def test_jobs_are_run_recovered_and_dead_lettered(server: RedisServer, client: Redis) -> None:
    handler = scene.Handler()
    await break_journals(client)
    await scene.create_group(client)
    enqueued = await scene.enqueue(client, 5)
    await scene.strand(client, 5, overdue=True)
    enqueued |= await scene.enqueue(client, 50) | await scene.enqueue(client, 5, fail="")
    enqueued |= await scene.enqueue(client, 5, reject="")
    async with (
        scene.running_reaper(server.url) as reaper,
        scene.running_worker(server.url, handler) as worker,
    ):
        await scene.holds(reaper)
        await scene.nothing_left(client)
    assert (worker.counts.acked, worker.counts.nacked, worker.counts.dead_lettered) == (55, 10, 10)
    assert (worker.counts.rejected, worker.counts.held) == (0, 0)
    assert await scene.violations(client, enqueued, [handler], journal=False, finished=True) == []


# --- one bad entry ------------------------------------------------------------------------------------------


async def add_uncopyable(client: Redis, **fields: str) -> str:
    """Add a job with too many fields; return its ID."""
    extra = [part for n in range(TOO_MANY_FIELDS) for part in (f"f{n}", "")]
    named = [part for pair in fields.items() for part in pair]
    return text(await client.execute_command("XADD", scene.STREAM, "*", *named, *extra))


@pytest.mark.parametrize(
    ("max_deliveries", "jobs"),
    [(1, 100), (2, 30), (3, 100)],  # quarantined ones run one at a time
    ids=["to be dead-lettered", "to be quarantined", "to be made ready"],
)
async def test_of_many_stalled_jobs_the_one_that_cannot_be_copied_is_held_and_told(
    server: RedisServer, client: Redis, max_deliveries: int, jobs: int, caplog: pytest.LogCaptureFixture
) -> None:
    handler = scene.Handler()
    await scene.create_group(client)
    good = await scene.enqueue(client, jobs // 2)
    bad = await add_uncopyable(client)
    good |= await scene.enqueue(client, jobs // 2 - 1)
    await scene.strand(client, jobs, overdue=True)
    reaper_settings: dict[str, Any] = {"max_deliveries": max_deliveries, "full_scan_interval": 0.2}

    def told() -> list[str]:
        return [line for line in caplog.messages if line.startswith("cannot redeliver an entry")]

    # Its limit is the holder's, else it would count for a while, should the worker join first.
    async with (
        scene.running_reaper(server.url, **reaper_settings),
        scene.running_worker(server.url, handler, max_deliveries=max_deliveries),
    ):
        await wait_until(lambda: _only_pending(client, bad), "all others are settled")
        await wait_until(lambda: len(told()) > 1, "it is tried again and told again")
    assert {f'entry={bad} cause="too many fields"' in line for line in told()} == {True}
    assert scene.times(handler.starts) == ({} if max_deliveries == 1 else dict.fromkeys(good, 1))
    assert await scene.violations(client, good, max_deliveries=max_deliveries) == []


async def _only_pending(client: Redis, entry_id: str) -> bool:
    state = await read_state(client, scene.KEYS)
    return list(state.pending) == [entry_id] and not (state.ready or state.scheduled)


async def test_of_a_hundred_failed_jobs_the_one_that_cannot_be_copied_is_held_and_told(
    server: RedisServer, client: Redis
) -> None:
    told = list[Report]()
    gate = scene.Handler()
    good = await scene.enqueue(client, 50, hold="", fail="")
    bad = await add_uncopyable(client, hold="", fail="")
    good |= await scene.enqueue(client, 49, hold="", fail="")
    async with scene.running_worker(server.url, gate, concurrency=100, max_deliveries=2) as worker:

        @worker.on("held")
        async def tell(report: Report) -> None:
            told.append(report)

        await gate.has_started(100)
        gate.open_gate()
        await wait_until(lambda: _only_pending(client, bad), "all others are dead letters")
        await wait_until(lambda: told, "the held one is told")
    assert [(report.facts["job"], report.facts["why"]) for report in told] == [(bad, "too many fields")]
    assert await client.xlen(scene.KEYS.dead) == len(good)
    assert scene.times(gate.starts) == dict.fromkeys(good, 2) | {bad: 1}
    assert await scene.violations(client, good, max_deliveries=2) == []


async def test_metadata_that_makes_no_sense_is_read_as_none(server: RedisServer, client: Redis) -> None:
    handler = scene.Handler()
    await scene.create_group(client)
    nonsense: list[dict[Any, Any]] = [
        {"reaper.deliveries": "-1", "reaper.generation": "many"},
        {"reaper.deliveries": "9" * 400, "reaper.first_ms": "1e308", "reaper.generation": b"\xff\0"},
        {"reaper.visibility_ms": "never", "reaper.consumers": ",,,", "reaper.first_ms": ""},
        {"reaper.job": ""},
        {"reaper.job": "x" * 300},
    ]
    boastful = text(await client.xadd(scene.STREAM, {"reaper.deliveries": "99"}))
    others = [text(await client.xadd(scene.STREAM, fields)) for fields in nonsense]
    good = await scene.enqueue(client, 20)
    await scene.strand(client, 21 + len(nonsense), overdue=True)
    seen = list[Job]()

    async def note(job: Job) -> None:
        seen.append(job)
        await handler(job)

    async with scene.running_reaper(server.url), scene.running_worker(server.url, note):
        await scene.nothing_left(client)
    assert {job.id for job in seen} == {*good, *others, boastful}, "each is run once more"
    numbers = {job.id: (job.deliveries, job.generation) for job in seen}
    assert numbers == {job: (3 if job == boastful else 2, 0) for job in numbers}, "what is claimed convicts nobody"
