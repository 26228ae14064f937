"""A worker is killed with a thousand deliveries in flight, alone or together with the holder of the lease."""

from collections import Counter

import pytest
from redis.asyncio import Redis

from reaper.drill.promises import Execution
from reaper.settings import LONGEST_VISIBILITY_MS
from tests.faults.deliveries import read_long_ago
from tests.faults.reapers import VISIBILITY_MS, Case, holding, quick_settings, running, start_replica
from tests.faults.scene import GROUP, STREAM, create_group, running_reaper
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

IN_FLIGHT = 1_000


def start_worker(processes: Processes, case: Case) -> Running:
    """Start a bare redis-py worker. A job with a field ``hold`` stays in flight."""
    return processes.python(
        "-m", "tests.faults.plain_worker", case.server.url, case.keys.stream, case.keys.group, "w1", str(IN_FLIGHT),
        name="worker",
    )  # fmt: skip


async def all_ready_again(case: Case, jobs: list[str]) -> None:
    """Wait until no entry is pending, and then check the promises."""
    await wait_until(lambda: _none_pending(case), "nothing is pending any more")
    state = await case.state()
    assert sorted(state.ready) == sorted(jobs)
    payloads = await case.payloads()
    assert {job: payloads[job] for job in jobs} == {job: case.enqueued[job] for job in jobs}
    assert Counter(event.event for event in await case.events()) == {"recovered": len(jobs)}
    assert await case.violations() == []  # among them: none early, none lost


async def _none_pending(case: Case) -> bool:
    return await case.pending_count() == 0


async def test_all_that_a_killed_worker_held_is_ready_again_none_early_none_lost(
    server: RedisServer, client: Redis, processes: Processes
) -> None:
    case = await Case.prepared(server, client)
    async with holding(quick_settings(server)):
        worker = start_worker(processes, case)
        jobs = await case.enqueue(IN_FLIGHT, hold="")
        await worker.prints(f"holds {IN_FLIGHT}")
        worker.kill()
        await case.age(VISIBILITY_MS - 500, "w1")  # the last half second of it passes by itself
        await all_ready_again(case, jobs)


async def test_worker_and_holder_killed_together_the_next_holder_recovers_at_once_from_what_is_pending(
    server: RedisServer, client: Redis, processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    case = await Case.prepared(server, client)
    first = start_replica(processes, server)
    holder = await case.holds_it()
    worker = start_worker(processes, case)
    for _ in range(20):  # a holder that knows it has nothing of it afterwards
        await work_once(case)
    async with running(quick_settings(server), after=holder):
        jobs = await case.enqueue(IN_FLIGHT, hold="")
        await worker.prints(f"holds {IN_FLIGHT}")
        first.kill()
        worker.kill()
        await case.make_overdue("w1")
        await case.end_lease()
        await all_ready_again(case, jobs)
    history = await case.lease_history()
    second = next(event for event in history if event.event == "lease_taken" and event.data["token"] == 2)
    recovered = await case.events("recovered")
    assert {event.data["token"] for event in recovered} == {2}
    assert second.at_ms <= recovered[0].at_ms
    assert "recovery waits" not in caplog.text, "Redis was there all the time"


async def work_once(case: Case) -> None:
    """Enqueue a job and wait until it is done."""
    (job,) = await case.enqueue(1)
    await wait_until(lambda: _none_left(case), "the job is done")
    case.completions.append(Execution(job))


async def _none_left(case: Case) -> bool:
    state = await case.state()
    return not (state.ready or state.pending)


async def test_a_job_that_asks_never_to_be_recovered_is_recovered_after_a_week(
    server: RedisServer, client: Redis
) -> None:
    await create_group(client)
    added = await client.xadd(STREAM, {"n": 1, "reaper.visibility_ms": 999_999_999_999_999})
    await read_long_ago(client, STREAM, GROUP, "gone", 1, LONGEST_VISIBILITY_MS)
    async with running_reaper(server.url):

        async def recovered() -> bool:
            return not await client.xrange(STREAM, added, added)

        await wait_until(recovered, "it is ready again, as a copy")
