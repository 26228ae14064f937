"""Workers that are slow, blocked, hung or paused, next to a real reaper. Live ones keep their jobs, the others do not.

They extend all the time, and no busy machine makes them late, because the visibility timeout is long, and passes on the
server.
"""

import re
from collections import Counter
from functools import partial

import anyio
import pytest
from redis.asyncio import Redis

from tests.faults.reapers import VISIBILITY_MS, Case, holding, quick_settings
from tests.support.gate import Gate
from tests.support.knobs import HURRY
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.tiers import in_matrix
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

VISIBILITY_S = VISIBILITY_MS // 1000


def start_worker(
    processes: Processes,
    server: RedisServer,
    *flags: str,
    worker: str = "worker",
    concurrency: int = 16,
    visibility_s: int = VISIBILITY_S,
) -> Running:
    """Start a worker whose jobs block, or wait. It extends ten times in a second."""
    return processes.worker(
        f"tests.faults.blocking_program:{worker}",
        *("--redis-url", server.url),
        *("--visibility-timeout", str(visibility_s)),
        *("--concurrency", str(concurrency)),
        *("--backoff-base", "0"),
        *flags,
        env=HURRY,
    )


async def started(worker: Running, jobs: int) -> str:
    """Wait until ``worker`` runs so many jobs. Return its consumer's name."""
    await wait_until(lambda: len(said(worker, "start")) == jobs, f"{jobs} jobs run")
    return (await worker.prints(r"worker started: consumer=(\S+)"))[1]


def said(worker: Running, what: str) -> list[str]:
    """Return the jobs that ``worker`` has printed ``what`` of, in order."""
    return re.findall(rf"^{what} (\S+)$", worker.output, re.MULTILINE)


async def passes(seconds: float, what: str) -> None:
    """Wait until so much time has passed for certain, in every process."""
    over_at = anyio.current_time() + seconds
    await wait_until(lambda: anyio.current_time() > over_at, f"{what} has passed")


async def names(case: Case) -> Counter[str]:
    return Counter(event.event for event in await case.events())


@pytest.mark.parametrize("flags", [(), ("--timeout", "3600")], ids=["no timeout", "within its timeout"])
async def test_a_handler_that_blocks_the_event_loop_for_five_visibility_timeouts_keeps_its_job(
    server: RedisServer, client: Redis, processes: Processes, gate: Gate, flags: tuple[str, ...]
) -> None:
    case = await Case.prepared(server, client)
    jobs = [*await case.enqueue(1, block=str(gate.path)), *await case.enqueue(3)]
    async with holding(quick_settings(server)):
        worker = start_worker(processes, server, *flags)
        await started(worker, 1)
        await case.lives_on(thirds=5 * 3)
        gate.open()
        await case.all_over()
        assert said(worker, "start") == said(worker, "completion") == jobs
        assert await names(case) == {"acked": 4}


async def test_one_that_blocks_it_past_its_timeout_loses_its_job_and_those_behind_it_and_starts_none_of_them(
    server: RedisServer, client: Redis, processes: Processes, gate: Gate
) -> None:
    case = await Case.prepared(server, client)
    jobs = [*await case.enqueue(1, block=str(gate.path)), *await case.enqueue(3)]
    # No slot is free, because a read during the blocking of the loop would be given the copies. There is no reaper yet,
    # so only this worker uses its visibility timeout.
    hung = start_worker(processes, server, "--timeout", "1", concurrency=4, visibility_s=1)
    consumer = await started(hung, 1)
    await passes(1, "its timeout")
    async with holding(quick_settings(server)):
        await client.hset(case.keys.settings, "unbroken", 1)  # a busy machine is no gap by the holder's timeout
        await case.make_overdue(consumer)  # once, because an extension would make it young again
        healthy = start_worker(processes, server)
        await wait_until(lambda: len(said(healthy, "completion")) == 4, "the other worker has done all of them")
        assert said(hung, "completion") == []
        await passes(1, "its visibility timeout")
        gate.open()
        await hung.prints(r"settlement rejected(.|\n)*settlement rejected")
        await case.all_over()
        hung.terminate()
        assert await hung.wait() == 0

    assert said(hung, "start") == jobs[:1]
    assert sorted(said(healthy, "start")) == sorted(jobs)
    assert await names(case) == {"recovered": 4, "acked": 4, "rejected": 1}


@pytest.mark.parametrize("worker", ["worker", "in_thread"])
async def test_jobs_longer_than_the_visibility_timeout_start_once_and_end_once(
    server: RedisServer, client: Redis, processes: Processes, gate: Gate, worker: str
) -> None:
    case = await Case.prepared(server, client)
    async with holding(quick_settings(server)):
        running = start_worker(processes, server, worker=worker, concurrency=10)
        jobs = await case.enqueue(20, wait=str(gate.path))
        await started(running, 10)
        await case.lives_on(thirds=4)
        gate.open()
        await case.all_over()
    assert sorted(said(running, "start")) == sorted(said(running, "completion")) == sorted(jobs)
    assert await names(case) == {"acked": 20}


@pytest.mark.parametrize("policy", ["stream", in_matrix("retry-stream")])
async def test_a_rolling_restart_under_full_load_redelivers_nothing_finished_and_burns_no_delivery(
    server: RedisServer, client: Redis, processes: Processes, gate: Gate, policy: str
) -> None:
    case = await Case.prepared(server, client)
    flags = ("--drain-timeout", "0.3", "--redelivery", policy, "--max-deliveries", "2")

    async def start() -> tuple[Running, str]:
        running = start_worker(processes, server, *flags, concurrency=8)
        return running, (await running.prints(r"worker started: consumer=(\S+)"))[1]

    async with holding(quick_settings(server, max_deliveries=2, redelivery=policy)):
        workers = [await start() for _ in range(3)]
        everybody = [running for running, _ in workers]
        long = set(await case.enqueue(24, wait=str(gate.path)))
        jobs = [*long, *await case.enqueue(1_600, sleep="0.02")]
        begun = partial(said, everybody[0], "start")
        await wait_until(lambda: long.intersection(begun()), "the first one runs what it cannot finish")
        for running, consumer in workers:
            running.terminate()
            assert await running.wait() == 0
            assert await held_by(client, case, consumer) == 0
            everybody.append((await start())[0])
        gate.open()
        await case.all_over()
        for running in everybody[3:]:
            running.terminate()
            assert await running.wait() == 0

    completions = [job for running in everybody for job in said(running, "completion")]
    acked = await case.events("acked")
    happened = await names(case)
    assert sorted(completions) == sorted(jobs)
    assert (sorted(event.job for event in acked), {event.data["delivery"] for event in acked}) == (sorted(jobs), {1})
    assert happened == {"acked": len(jobs), "handed_back": happened["handed_back"]}
    assert happened["handed_back"] > 0


async def held_by(client: Redis, case: Case, consumer: str) -> int:
    """Return how many deliveries ``consumer`` holds."""
    held = 0
    for source in (case.keys.stream, case.keys.retry):
        if await client.exists(source):
            held += len(await client.xpending_range(source, case.keys.group, "-", "+", 100, consumer))
    return held
