"""The cost of the loop around a job, measured with jobs that do no work.

Two worker processes with 64 slots each wait on an empty stream. Then a script adds all jobs at once, and the clock runs
until the last one is settled, with the journal at its default level. With a batch handler of 100 jobs, the workers have
200 slots each. The bare loop is two processes with ``XREADGROUP COUNT 100`` and ``XACK`` in redis-py. Server and
workers share two cores, so the rate follows from the CPU time of all.

With batches of 100, the server takes 2 µs a job, half for the read, half for ``ack.lua``. The script acknowledges each
ID by itself, because ``XACK`` of many, 0.45 µs cheaper, does not tell which ones it rejects. The worker takes 2.4 µs,
1.3 in its loop. For 0.75 of the bare rate, both may take 4.3 µs. With 64 slots, a read is a third of the loop.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import anyio
from redis.asyncio import Redis

from tests.benchmarks import server_load, usage
from tests.benchmarks.figures import (
    Demand,
    Result,
    Row,
    at_least_ratio,
    at_most,
    at_most_ratio,
    median_ratio,
)
from tests.benchmarks.stage import Stage, open_stage, stopped
from tests.benchmarks.streams import create_group, enqueue, progress, server_ms
from tests.support.processes import Running
from tests.support.waiting import wait_until
from workers.protocol.keys import GroupKeys, group_keys

JOBS, QUICK_JOBS = 100_000, 20_000
"""For ours. The bare loop is given more, so that it runs about as long."""
BARE_TIMES = 4
ROUNDS, QUICK_ROUNDS = 5, 1
WORKERS = 2
SLOTS = 64
OURS, BARE = (group_keys(stream, "billing") for stream in ("jobs", "bare"))
FLAGS = ("--stream", OURS.stream, "--group", OURS.group, "--concurrency", str(SLOTS))
BATCH_FLAGS = (*FLAGS[:-1], "200")
"""Two batches, so that one can be read while another one runs."""
TIMEOUT_S = 120.0
DEMANDED_RATIO = 0.5 if sys.version_info >= (3, 12) else 0.4
POLL_S = 0.005
"""How exactly the end is known; `wait_until` would be ten times as coarse."""


@dataclass(frozen=True, slots=True)
class _Drain:
    """One stream, worked off."""

    jobs: int
    seconds: float
    requests: int
    worker_us: float
    server_us: float

    @property
    def per_second(self) -> float:
        return self.jobs / self.seconds


async def measure(*, quick: bool) -> Result:
    """Drain in turn with the bare loop."""
    jobs, rounds = (QUICK_JOBS, QUICK_ROUNDS) if quick else (JOBS, ROUNDS)
    ours, batched, bare = [], [], []
    for _ in range(rounds):
        ours.append(await _our_drain(jobs, "worker", FLAGS))
        batched.append(await _our_drain(jobs, "batched", BATCH_FLAGS))
        bare.append(await _bare_drain(jobs * BARE_TIMES))
    return Result(tuple(_rows(ours, batched, bare)))


def _rows(ours: list[_Drain], batched: list[_Drain], bare: list[_Drain]) -> list[Row]:
    def row(
        what: str, of: Callable[[_Drain], float], unit: str, demand: Demand | None = None, mine: list[_Drain] = ours
    ) -> Row:
        one, other = [of(drain) for drain in mine], [of(drain) for drain in bare]
        return Row(what, median(one), unit, median(other), demand, median_ratio(one, other))

    return [
        row(
            f"no-op jobs settled by {WORKERS} processes", lambda drain: drain.per_second, "/s",
            at_least_ratio(DEMANDED_RATIO),
        ),
        row("requests to the server, a job", lambda drain: drain.requests / drain.jobs, "", at_most(0.1)),
        row("CPU time of the workers, a job", lambda drain: drain.worker_us / drain.jobs, "µs"),
        row("CPU time of the server, a job", lambda drain: drain.server_us / drain.jobs, "µs", at_most_ratio(2)),
        row(
            "CPU time of all processes, a job", lambda drain: (drain.worker_us + drain.server_us) / drain.jobs, "µs",
            at_most(30),
        ),
        row("by a batch handler: jobs settled", lambda drain: drain.per_second, "/s", mine=batched),
        row(
            "by a batch handler: CPU time of the workers, a job", lambda drain: drain.worker_us / drain.jobs, "µs",
            mine=batched,
        ),
    ]  # fmt: skip


async def _our_drain(jobs: int, program: str, flags: Sequence[str]) -> _Drain:
    async with open_stage() as stage:
        workers = [stage.worker(program, *flags) for _ in range(WORKERS)]
        for worker in workers:
            await worker.prints("worker started")
        return await _drain(stage, OURS, workers, jobs, scripts=True)


async def _bare_drain(jobs: int) -> _Drain:
    async with open_stage() as stage:
        await create_group(stage.client, BARE)
        loops = [stage.bare("read", BARE.stream, BARE.group, f"bare-{number}") for number in range(WORKERS)]
        await _all_wait(stage.client)
        return await _drain(stage, BARE, loops, jobs, scripts=False)


async def _drain(stage: Stage, keys: GroupKeys, workers: list[Running], jobs: int, *, scripts: bool) -> _Drain:
    await _all_wait(stage.client)
    await server_load.reset(stage.client)
    started_ms = await enqueue(stage.client, keys.stream, jobs)
    worker_us, server_us = sum(usage.cpu_us(worker.pid) for worker in workers), usage.cpu_us(stage.server.pid)
    ended_ms = await _settled(stage.client, keys)
    worker_us = sum(usage.cpu_us(worker.pid) for worker in workers) - worker_us
    server_us = usage.cpu_us(stage.server.pid) - server_us
    requests = server_load.requests(await server_load.commands(stage.client), scripts=scripts)
    await stopped(*workers)
    return _Drain(jobs, (ended_ms - started_ms) / 1000, requests, worker_us, server_us)


async def _all_wait(client: Redis) -> None:
    """Wait until every worker blocks in a read."""

    async def blocked() -> bool:
        return int((await client.info("clients"))["blocked_clients"]) == WORKERS

    await wait_until(blocked, f"{WORKERS} workers wait for jobs", TIMEOUT_S)


async def _settled(client: Redis, keys: GroupKeys) -> int:
    """Wait until all jobs are settled. Return the server's time in ms."""
    with anyio.fail_after(TIMEOUT_S):
        while not (await progress(client, keys)).done:  # noqa: ASYNC110 - the end of a script is not an event here
            await anyio.sleep(POLL_S)
    return await server_ms(client)
