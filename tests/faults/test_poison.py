"""A job kills every process that runs it, and is read in one batch with 63 others. Only that job is given up."""

import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
from redis.asyncio import Redis

from tests.faults.quarantine_program import KILL, LEDGER
from tests.faults.reapers import (
    VISIBILITY_MS,
    Case,
    holding,
    quick_settings,
)
from tests.support.knobs import HURRY
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.tiers import by_claim, in_matrix
from tests.support.waiting import wait_until
from workers.protocol.events import EventName

pytestmark = pytest.mark.anyio

BATCH = 64
MAX_DELIVERIES = 3

Start = Callable[[str], Running]
"""Starts a worker of this name."""


@pytest.fixture
async def case(server: RedisServer, client: Redis) -> Case:
    await client.set(KILL, "at once")
    return await Case.prepared(server, client)


@pytest.fixture
def bare_worker(processes: Processes, case: Case) -> Start:
    """Start bare redis-py loops."""

    def start(name: str) -> Running:
        return processes.python(
            "-m", "tests.faults.plain_worker", case.server.url, case.keys.stream, case.keys.group, name, str(BATCH),
            LEDGER, name=name,
        )  # fmt: skip

    return start


@pytest.fixture
def our_worker(processes: Processes, case: Case) -> Start:
    """Start workers of ours. Without a name of their own, they adopt no delivery, so all recovery is the reaper's."""
    return partial(start_ours, processes, case)


def start_ours(processes: Processes, case: Case, *words: str) -> Running:
    """Start a worker of ours; the last word is what the test calls it, and those before are its options."""
    *flags, name = words
    place = ("--redis-url", case.server.url, "--stream", case.keys.stream, "--group", case.keys.group)
    return processes.worker(
        "tests.faults.quarantine_program", *place, "--concurrency", str(BATCH), *flags,
        env=HURRY, name=name,
    )  # fmt: skip


async def dies(case: Case, worker: Running, name: str) -> None:
    """Wait until the poison has killed ``worker``, which was started as ``name``. Its deliveries are overdue then."""
    assert await worker.wait() == -signal.SIGKILL
    ours = re.search(r"worker started: consumer=(\S+)", worker.output)
    await case.make_overdue(ours[1] if ours else name)


@asynccontextmanager
async def supervised(case: Case, start: Start, *names: str) -> AsyncIterator[None]:
    """Keep workers of these names alive until the block ends."""

    async def keep_alive(name: str) -> None:
        while True:
            await dies(case, start(name), name)

    async with anyio.create_task_group() as supervisor:
        for name in names:
            supervisor.start_soon(keep_alive, name)
        yield
        supervisor.cancel_scope.cancel()


async def enqueue_batch(case: Case, position: int) -> str:
    """Enqueue a batch with the poison at ``position``. Return the poison's job ID."""
    await case.enqueue(position)
    (poison,) = await case.enqueue(1, poison="")
    await case.enqueue(BATCH - 1 - position)
    return poison


async def only_the_poison_was_given_up(case: Case, poison: str) -> None:
    """Check the result at the end."""
    starts = Counter(start.job for start in case.starts)
    assert starts[poison] == MAX_DELIVERIES
    assert [(letter.job, letter.deliveries) for letter in (await case.state()).dead] == [(poison, MAX_DELIVERIES)]
    assert {done.job for done in case.completions} == case.enqueued.keys() - {poison}
    assert await case.violations(finished=True, poison=frozenset({poison}), max_deliveries=MAX_DELIVERIES) == []


@pytest.mark.parametrize("position", [in_matrix(0), BATCH // 2, in_matrix(BATCH - 1)])
async def test_in_a_burst_read_by_a_bare_worker_the_poison_alone_is_given_up(
    case: Case, bare_worker: Start, position: int
) -> None:
    poison = await enqueue_batch(case, position)

    async def whole_batch_is_ready() -> bool:
        return len((await case.state()).ready) == BATCH

    async with holding(quick_settings(case.server)):
        # No worker reads until all are ready again. Jobs that fall due a bucket earlier would be read, and run, alone.
        for _ in range(MAX_DELIVERIES - 1):
            await wait_until(whole_batch_is_ready, "the whole batch is ready")
            await dies(case, bare_worker("w1"), "w1")
        async with supervised(case, bare_worker, "w1"):
            await case.all_over(LEDGER)
    await only_the_poison_was_given_up(case, poison)
    assert len(await case.events(EventName.QUARANTINED)) == BATCH, "the neighbours went down with the poison twice"


async def test_under_steady_load_on_bare_workers_the_poison_alone_is_given_up(case: Case, bare_worker: Start) -> None:
    await under_steady_load(case, bare_worker)


@pytest.mark.parametrize("redelivery", [in_matrix("stream"), "retry-stream"])
async def test_in_a_burst_read_by_a_worker_of_ours_the_poison_alone_is_given_up(
    case: Case, our_worker: Start, redelivery: str
) -> None:
    poison = await enqueue_batch(case, BATCH // 2)
    settings = quick_settings(case.server, redelivery=redelivery)
    async with holding(settings), supervised(case, our_worker, "w1"):
        await case.all_over(LEDGER)
    await only_the_poison_was_given_up(case, poison)
    assert len(await case.events(EventName.QUARANTINED)) > 1, "it took others along"


@pytest.mark.parametrize("redelivery", ["stream", in_matrix("retry-stream"), by_claim("in-place")])
async def test_among_jobs_of_embedded_workers_the_poison_alone_is_given_up(
    case: Case, processes: Processes, redelivery: str
) -> None:
    flags = ("--recovery", "embedded", "--redelivery", redelivery, "--visibility-timeout", str(VISIBILITY_MS // 1000))
    poison = await enqueue_batch(case, BATCH // 2)
    async with supervised(case, partial(start_ours, processes, case, *flags), "w1", "w2"):
        await case.all_over(LEDGER)
    await only_the_poison_was_given_up(case, poison)


async def test_under_steady_load_on_workers_of_ours_the_poison_alone_is_given_up(case: Case, our_worker: Start) -> None:
    await under_steady_load(case, our_worker)


async def under_steady_load(case: Case, start: Start) -> None:
    """Let two workers meet the poison while jobs keep coming in."""
    async with holding(quick_settings(case.server)), supervised(case, start, "w1", "w2"):
        async with producing(case):
            await wait_until(lambda: case.client.xlen(LEDGER), "the workers are at work")
            poison = await enqueue_batch(case, BATCH // 2)

            async def given_up() -> bool:
                return bool((await case.state()).dead)

            await wait_until(given_up, "the poison is given up")
        await case.all_over(LEDGER)
    await only_the_poison_was_given_up(case, poison)


@asynccontextmanager
async def producing(case: Case) -> AsyncIterator[None]:
    """Enqueue jobs, two every ten milliseconds, until the block ends."""
    enough = anyio.Event()

    async def produce() -> None:
        while not enough.is_set():
            await case.enqueue(2)
            with anyio.move_on_after(0.01):
                await enough.wait()

    async with anyio.create_task_group() as producer:
        producer.start_soon(produce)
        yield
        enough.set()
