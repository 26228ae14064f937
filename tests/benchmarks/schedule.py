"""How late scheduled jobs are ready.

Jobs are enqueued with delays spread over some seconds, while an idle reaper leads. The lateness of a job is the time
from its due time to the ID of its entry, both on the server's clock. Bare: a loop that looks into the sorted set twenty
times a second.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from redis.asyncio import Redis

from tests.benchmarks.figures import Result, Row, at_most, spread
from tests.benchmarks.holding import until_held
from tests.benchmarks.stage import Stage, open_stage, stopped
from tests.benchmarks.streams import create_group
from tests.support.servers import url_of
from tests.support.waiting import wait_until
from workers import NewJob, Producer
from workers.protocol.keys import group_keys
from workers.protocol.messages import entry_ms, pair_up, text

JOBS, QUICK_JOBS = 10_000, 500
FIRST_S, SPREAD_S, QUICK_SPREAD_S = 3.0, 10.0, 2.0
BARE_POLL_S = 0.05
DEMANDED_MS = 50.0
OURS = group_keys("jobs", "billing")

_DUE = """
local due = {}
for _, key in ipairs(KEYS) do
  local rows = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    due[#due + 1] = { cmsgpack.unpack(rows[i]).job_id, rows[i + 1] }
  end
end
return due
"""


async def measure(*, quick: bool) -> Result:
    """Enqueue delayed jobs, and see when they are ready."""
    jobs, spread_s = (QUICK_JOBS, QUICK_SPREAD_S) if quick else (JOBS, SPREAD_S)
    ours = spread(await _late(jobs, spread_s, _reaper))
    bare = spread(await _late(jobs, spread_s, _loop))
    what = f"{jobs:,} scheduled jobs, due within {spread_s:g} seconds"
    return Result(
        (
            Row(f"{what}: late p50", ours.p50, "ms", bare.p50),
            Row(f"{what}: late p99", ours.p99, "ms", bare.p99, at_most(DEMANDED_MS)),
            Row(f"{what}: late max", ours.max, "ms", bare.max),
        )
    )


async def _late(jobs: int, spread_s: float, mover: Any) -> list[float]:
    dice = random.Random(1)
    delays = [FIRST_S + dice.uniform(0, spread_s) for _ in range(jobs)]
    async with open_stage() as stage:
        await create_group(stage.client, OURS)
        async with mover(stage), Producer(OURS.stream, url_of(stage.client)) as producer:
            await producer.enqueue_many([NewJob({"n": n}, delay=delay) for n, delay in enumerate(delays)])
            due = {text(job): int(at_ms) for job, at_ms in await stage.client.eval(_DUE, 1, OURS.stream_schedule)}
            assert len(due) == jobs, f"{jobs - len(due):,} jobs were due before all were enqueued"

            async def all_ready() -> bool:
                return int(await stage.client.xlen(OURS.stream)) == jobs

            await wait_until(all_ready, "all are ready", FIRST_S + 3 * spread_s)
        rows: Any = await stage.client.execute_command("XRANGE", OURS.stream, "-", "+")
    ready = {text(dict(pair_up(flat))[b"reaper.job"]): entry_ms(entry_id) for entry_id, flat in rows}
    return [float(ready[job] - at_ms) for job, at_ms in due.items()]


@asynccontextmanager
async def _reaper(stage: Stage) -> AsyncIterator[None]:
    reaper = stage.reaper("--groups", OURS.name)
    await until_held(stage.client, OURS)
    yield
    await stopped(reaper)


@asynccontextmanager
async def _loop(stage: Stage) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_move_by_hand, stage.client)
        yield
        tasks.cancel_scope.cancel()


async def _move_by_hand(client: Redis) -> None:
    while True:
        seconds, microseconds = await client.time()
        now = seconds * 1000 + microseconds // 1000
        due: Any = await client.zrangebyscore(OURS.stream_schedule, "-inf", now, start=0, num=100)
        for member in due:
            job: Any = await client.eval("return cmsgpack.unpack(ARGV[1]).job_id", 0, member)
            await client.xadd(OURS.stream, {"reaper.job": job})
            await client.zrem(OURS.stream_schedule, member)
        await anyio.sleep(BARE_POLL_S)
