"""Only the poison job becomes a dead letter, if workers of quarantined jobs are stopped, or services are down."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
from redis.asyncio import Redis

from tests.faults.quarantine_program import KILL, LEDGER
from tests.faults.reapers import Case, holding, quick_settings
from tests.support.modes import EMBEDDED_IN_PLACE, mode_settings
from tests.support.notes import read_notes
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.tiers import by_claim, in_matrix
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

MAX_DELIVERIES = 3
VISIBILITY_S = 0.6
INNOCENT = 4
MAY_END = (1, 2, 3)
"""Processes that the poison job may end: with one delivery left one; another one in company, which it has once it has
lived until its worker's first beat; and another one where it outlives a visibility timeout (decision 6)."""

Start = Callable[[], Running]
both_modes = pytest.mark.parametrize("mode", ["reaper", "embedded", by_claim(EMBEDDED_IN_PLACE)])


@pytest.fixture
async def case(server: RedisServer, client: Redis) -> Case:
    return await Case.prepared(server, client)


@asynccontextmanager
async def served(case: Case, processes: Processes, mode: str) -> AsyncIterator[Start]:
    """Have the group looked after; yield what starts a worker."""

    def start() -> Running:
        flags: dict[str, object] = {
            "redis-url": case.server.url,
            "stream": case.keys.stream,
            "group": case.keys.group,
            "concurrency": 16,
            "drain-timeout": 0.1,
            "visibility-timeout": VISIBILITY_S,
            **mode_settings(mode),
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        return processes.worker("tests.faults.quarantine_program", *words)

    async with AsyncExitStack() as stack:
        if mode == "reaper":
            await stack.enter_async_context(holding(quick_settings(case.server, visibility_timeout=VISIBILITY_S)))
        yield start


@asynccontextmanager
async def kept_alive(start: Start) -> AsyncIterator[None]:
    """Keep a worker alive until the block ends."""

    async def keep_alive() -> None:
        while True:
            await start().wait()

    async with anyio.create_task_group() as supervisor:
        supervisor.start_soon(keep_alive)
        yield
        supervisor.cancel_scope.cancel()


async def quarantined(case: Case, *payloads: dict[str, str]) -> list[str]:
    """Enqueue jobs that have one delivery left after the death of a worker long ago, and return their IDs."""
    jobs = [(await case.enqueue(1, **payload))[0] for payload in payloads]
    assert await case.read("gone", len(jobs)) == jobs
    await case.stall(*jobs, times=MAX_DELIVERIES - 1, consumer="gone")
    return jobs


async def started(case: Case) -> int:
    return len((await read_notes(case.client, LEDGER))[0])


async def the_poison_alone_was_given_up(case: Case, poison: str) -> None:
    """Check the state after the end of all jobs."""
    assert await case.violations(finished=True, poison=frozenset({poison}), max_deliveries=MAX_DELIVERIES) == []
    assert [letter.job for letter in (await case.state()).dead] == [poison]
    assert {done.job for done in case.completions} == case.enqueued.keys() - {poison}
    assert Counter(end.job for end in case.endings or ())[poison] in MAY_END


@both_modes
@pytest.mark.parametrize("stops", [in_matrix(1), 4])
async def test_workers_that_are_stopped_while_a_poison_quarantined_job_is_out_take_no_innocent_along(
    case: Case, processes: Processes, mode: str, stops: int
) -> None:
    poison, *_ = await quarantined(case, {"poison": ""}, *({} for _ in range(INNOCENT)))
    async with served(case, processes, mode) as start:
        for _ in range(stops):
            before = await started(case)  # a process that is stopped before may have run more than one
            worker = start()

            async def has_started(before: int = before) -> bool:
                return await started(case) > before

            await wait_until(has_started, "the worker has started a quarantined job")
            worker.terminate()
            assert await worker.wait() == 0
        await case.client.set(KILL, "now")
        async with kept_alive(start):
            await case.all_over(LEDGER)
    await the_poison_alone_was_given_up(case, poison)


@both_modes
async def test_quarantined_jobs_whose_service_is_down_are_not_taken_along_by_a_poison_job_among_them(
    case: Case, processes: Processes, mode: str
) -> None:
    down, poison = {"down": "3"}, {"poison": ""}
    jobs = await quarantined(case, down, down, poison, down, down)
    await case.client.set(KILL, "now")
    async with served(case, processes, mode) as start, kept_alive(start):
        await case.all_over(LEDGER)
    await the_poison_alone_was_given_up(case, jobs[2])
