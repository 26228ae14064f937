"""How late the deliveries of a killed worker are ready again.

A worker with 1,000 deliveries in flight is killed with -9. The overshoot of a delivery is the time from the end of its
visibility timeout to the ID of its copy, on the server's clock. Bare: a loop that calls ``XAUTOCLAIM`` once a second.
"""

import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from redis.asyncio import Redis

from tests.benchmarks.figures import Result, Row, at_most, spread
from tests.benchmarks.holding import until_held
from tests.benchmarks.stage import Stage, open_stage, result_of, stopped
from tests.benchmarks.streams import create_group, delivered_at, enqueue, wait_for_pending
from workers.protocol.keys import GroupKeys, group_keys
from workers.protocol.messages import entry_ms, pair_up

JOBS, QUICK_JOBS = 1_000, 200
ROUNDS, QUICK_ROUNDS = 2, 1
VISIBILITY_S = 2.0
SPREAD_S, STEPS = 1.0, 50
DEMANDED_MS = 100.0
OURS, BARE = (group_keys(stream, "billing") for stream in ("jobs", "bare"))
VISIBILITY = ("--visibility-timeout", str(VISIBILITY_S))

Enqueue = Callable[[Redis, GroupKeys, int], Awaitable[None]]


async def measure(*, quick: bool) -> Result:
    """Kill workers, and wait for their deliveries."""
    jobs, rounds = (QUICK_JOBS, QUICK_ROUNDS) if quick else (JOBS, ROUNDS)
    rows: list[Row] = []
    for how, enqueue_jobs in (("in one batch", _at_once), ("over one second", _spread_out)):
        ours = [late for _ in range(rounds) for late in await _reaper_is_late(jobs, enqueue_jobs)]
        bare = await _loop_is_late(jobs, enqueue_jobs)
        rows += _rows(f"{jobs:,} deliveries of a killed worker, delivered {how}", ours, bare)
    return Result(tuple(rows))


def _rows(what: str, ours: list[float], bare: list[float]) -> list[Row]:
    one, other = spread(ours), spread(bare)
    return [
        Row(f"{what}: overshoot p50", one.p50, "ms", other.p50),
        Row(f"{what}: overshoot p99", one.p99, "ms", other.p99, at_most(DEMANDED_MS)),
        Row(f"{what}: overshoot max", one.max, "ms", other.max),
    ]


# ---- jobs


async def _at_once(client: Redis, keys: GroupKeys, jobs: int) -> None:
    await enqueue(client, keys.stream, jobs)


async def _spread_out(client: Redis, keys: GroupKeys, jobs: int) -> None:
    for _ in range(STEPS):
        await enqueue(client, keys.stream, math.ceil(jobs / STEPS))
        await anyio.sleep(SPREAD_S / STEPS)  # the pace of a producer


async def _killed(stage: Stage, keys: GroupKeys, jobs: int, enqueue_jobs: Enqueue) -> dict[bytes, int]:
    """Kill a worker with ``jobs`` deliveries in flight; return when each delivery's visibility timeout ends, in ms."""
    flags = ("--stream", keys.stream, "--group", keys.group, "--concurrency", str(jobs), *VISIBILITY)
    worker = stage.worker("holder", *flags)
    await worker.prints("worker started")
    await enqueue_jobs(stage.client, keys, jobs)
    await wait_for_pending(stage.client, keys, jobs)
    delivered = await delivered_at(stage.client, keys, jobs)
    worker.kill()
    return {entry_id: at_ms + round(VISIBILITY_S * 1000) for entry_id, at_ms in delivered.items()}


# ---- ours


async def _reaper_is_late(jobs: int, enqueue_jobs: Enqueue) -> list[float]:
    async with open_stage() as stage:
        await create_group(stage.client, OURS)
        reaper = stage.reaper("--groups", OURS.name, *VISIBILITY)
        await until_held(stage.client, OURS)
        ends = await _killed(stage, OURS, jobs, enqueue_jobs)
        await wait_for_pending(stage.client, OURS, 0)
        ready = await _copies(stage.client)
        await stopped(reaper)
    assert ready.keys() == ends.keys(), f"{len(ends):,} deliveries were in flight, {len(ready):,} jobs are ready again"
    return [ready[entry_id] - end for entry_id, end in ends.items()]


async def _copies(client: Redis) -> dict[bytes, int]:
    """Return when each job was made ready again, by the entry it was delivered in first."""
    rows: Any = await client.execute_command("XRANGE", OURS.stream, "-", "+")
    return {dict(pair_up(flat))[b"reaper.job"]: entry_ms(entry_id) for entry_id, flat in rows}


# ---- bare


async def _loop_is_late(jobs: int, enqueue_jobs: Enqueue) -> list[float]:
    async with open_stage() as stage:
        await create_group(stage.client, BARE)
        loop = stage.bare("claim", BARE.stream, BARE.group, round(VISIBILITY_S * 1000), jobs)
        ends = await _killed(stage, BARE, jobs, enqueue_jobs)
        claimed: dict[str, float] = await result_of(loop)
    return [claimed[entry_id.decode()] - end for entry_id, end in ends.items()]
