"""The reference loop does what is published: it steals what waits, and gives up with a line in a log."""

import hashlib
import sys

import pytest
from redis.asyncio import Redis

from reaper.drill.cast import PUBLISHED_WORKER
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
    return processes.start(sys.executable, str(PUBLISHED_WORKER), *words, env={"REDIS_URL": server.url})


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
    assert await worker.wait() == 0, "it stops in order"
    return list(read_lines(worker.output))


def _told(lines: list[Line]) -> list[tuple[Step, int]]:
    return [(line.step, line.n) for line in lines]


async def test_a_batch_is_read_at_once_and_run_one_by_one(
    processes: Processes, server: RedisServer, client: Redis, group: str
) -> None:
    await _enqueue(client, 1, 2)
    lines = await _all_settled(client, group, _start(processes, server, group, min_idle_ms=3_000), 6)
    assert _told(lines) == [
        (Step.READ, 1), (Step.READ, 2),
        (Step.START, 1), (Step.DONE, 1), (Step.START, 2), (Step.DONE, 2),
    ]  # fmt: skip
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
    lines = await _all_settled(client, group, _start(processes, server, group, min_idle_ms=3_000), 5)
    assert _told(lines) == [
        (Step.CLAIM, 1), (Step.CLAIM, 2), (Step.START, 1), (Step.DONE, 1), (Step.DROPPED, 2),
    ]  # fmt: skip
    assert await client.keys("*") == [b"jobs"], "nothing is kept of it"


async def test_what_waits_in_a_batch_is_taken_from_a_worker_that_lives(
    processes: Processes, server: RedisServer, client: Redis, group: str
) -> None:
    (entry_id,) = await _enqueue(client, 1, duration_ms=3_000)  # a busy machine gets round to its second thread by then
    worker = _start(processes, server, group, min_idle_ms=250, loops=2)
    lines = await _all_settled(client, group, worker, 6)
    assert [line.entry_id for line in lines if line.step is Step.CLAIM][:1] == [entry_id]
    assert sum(line.step is Step.DONE for line in lines) > 1, "the work was done more than once"
