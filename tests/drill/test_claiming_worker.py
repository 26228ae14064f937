"""The loops of the reference do what is usual: they claim what runs long, and give up with a line in a log."""

import hashlib
import signal
import sys

import pytest
from redis.asyncio import Redis

from reaper.drill.cast import CLAIMING_WORKER
from reaper.drill.records import Line, Step, read_lines
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.messages import text

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

LIMIT = 3


@pytest.fixture
async def group(client: Redis) -> str:
    await client.xgroup_create("jobs", "workers", id="0", mkstream=True)
    return "workers"


def _start(processes: Processes, server: RedisServer, group: str, *, min_idle_ms: int, loops: int = 1) -> Running:
    words = ["jobs", group, "w1-1", str(loops), str(min_idle_ms), str(LIMIT)]
    return processes.start(sys.executable, str(CLAIMING_WORKER), *words, env={"REDIS_URL": server.url})


async def _enqueue(client: Redis, *numbers: int, duration_ms: int = 1) -> list[str]:
    fields = ("duration_ms", duration_ms, "payload", b"\xff")
    return [text(await client.execute_command("XADD", "jobs", "*", "n", n, *fields)) for n in numbers]


async def _all_settled(client: Redis, group: str, worker: Running, steps: int) -> list[Line]:
    """Wait until nothing is pending and so many lines are written, and return them."""

    async def settled() -> bool:
        pending = await client.execute_command("XPENDING", "jobs", group)
        return pending[0] == 0 and len(worker.output.splitlines()) >= steps

    await wait_until(settled, "everything is acknowledged")
    worker.terminate()
    assert await worker.wait() == -signal.SIGTERM
    written = (line for line in worker.output.splitlines() if not line.startswith("gave up"))
    return list(read_lines("\n".join(written)))


def _told(lines: list[Line]) -> list[tuple[Step, int]]:
    return [(line.step, line.n) for line in lines]


async def test_jobs_are_read_and_run_one_by_one(
    processes: Processes, server: RedisServer, client: Redis, group: str
) -> None:
    await _enqueue(client, 1, 2)
    lines = await _all_settled(client, group, _start(processes, server, group, min_idle_ms=3_000), 4)
    assert _told(lines) == [(Step.START, 1), (Step.DONE, 1), (Step.START, 2), (Step.DONE, 2)]
    assert {line.digest for line in lines if line.step is Step.START} == {hashlib.sha256(b"\xff").hexdigest()}


async def test_what_somebody_else_left_is_claimed_and_over_the_limit_it_is_acknowledged_and_logged(
    processes: Processes, server: RedisServer, client: Redis, group: str
) -> None:
    ids = await _enqueue(client, 1, 2)
    await client.xreadgroup(group, "gone", {"jobs": ">"})
    for entry_id, deliveries in zip(ids, (LIMIT - 1, LIMIT), strict=True):
        await client.execute_command(
            "XCLAIM", "jobs", group, "gone", 0, entry_id, "IDLE", 60_000, "RETRYCOUNT", deliveries
        )
    worker = _start(processes, server, group, min_idle_ms=3_000)
    lines = await _all_settled(client, group, worker, 3)
    assert _told(lines) == [(Step.START, 1), (Step.DONE, 1)]
    assert f"gave up {ids[1]}" in worker.output
    assert await client.keys("*") == [b"jobs"], "nothing is kept of it"


async def test_a_job_is_taken_from_a_loop_that_still_runs_it(
    processes: Processes, server: RedisServer, client: Redis, group: str
) -> None:
    (entry_id,) = await _enqueue(client, 1, duration_ms=3_000)  # a busy machine gets round to its second thread by then
    worker = _start(processes, server, group, min_idle_ms=250, loops=2)
    lines = await _all_settled(client, group, worker, 4)
    assert {line.entry_id for line in lines} == {entry_id}
    assert sum(line.step is Step.DONE for line in lines) > 1, "the work was done more than once"
