"""Embedded workers as processes, killed and paused, with nobody else to help."""

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from redis.asyncio import Redis

from reaper.drill.promises import Execution
from tests.faults.reapers import VISIBILITY_MS, Case, nothing_left
from tests.scripts.scene import Scene
from tests.support.gate import Gate
from tests.support.knobs import HURRY
from tests.support.notes import read_notes
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.tiers import by_claim, in_matrix
from tests.support.waiting import wait_until
from tests.workers.scene import pending_of

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

POLICIES = ["stream", by_claim("in-place")]
BATCH = 64
LEDGER = "ledger"


class Fleet:
    """Starts embedded workers of one case."""

    def __init__(self, processes: Processes, case: Case, **settings: str | float) -> None:
        self._processes = processes
        self._case = case
        self._settings = {
            "recovery": "embedded",
            "redis-url": case.server.url,
            "stream": case.keys.stream,
            "group": case.keys.group,
            "visibility-timeout": VISIBILITY_MS / 1000,
            "backoff-base": 0,
            **settings,
        }

    def start(self, target: str, **settings: str | float) -> Running:
        """Start one."""
        flags = [word for name, value in {**self._settings, **settings}.items() for word in (f"--{name}", str(value))]
        return self._processes.worker(target, *flags, env={"LEDGER": LEDGER, **HURRY})

    @asynccontextmanager
    async def kept_alive(self, target: str, count: int) -> AsyncIterator[None]:
        """Keep so many alive until the block ends. The jobs of a dead process are overdue at once."""

        async def keep_alive() -> None:
            while True:
                worker = self.start(target)
                await worker.wait()
                await self._case.make_overdue(consumer_of(worker))

        async with anyio.create_task_group() as supervisor:
            for _ in range(count):
                supervisor.start_soon(keep_alive)
            yield
            supervisor.cancel_scope.cancel()


def consumer_of(worker: Running) -> str:
    """Return the name of its consumer, which it has said."""
    said = re.search(r"worker started: consumer=(\S+)", worker.output)
    assert said, worker.output
    return said[1]


def said(worker: Running, what: str) -> list[str]:
    """Return the jobs that ``worker`` has printed ``what`` of, in order."""
    return re.findall(rf"^{what} (\S+)$", worker.output, re.MULTILINE)


def note(case: Case, *workers: Running) -> None:
    """Take over what ``workers`` have said of executions."""
    case.starts = [Execution(job) for worker in workers for job in said(worker, "start")]
    case.completions = [Execution(job) for worker in workers for job in said(worker, "completion")]


async def all_done(case: Case) -> None:
    async def done() -> bool:
        return nothing_left(await case.state())

    await wait_until(done, "all work is done")


async def events_of(case: Case, name: str, count: int) -> bool:
    return len(await case.events(name)) >= count


@pytest.mark.parametrize("policy", POLICIES)
async def test_what_a_killed_worker_held_is_run_by_the_others(
    server: RedisServer, client: Redis, processes: Processes, gate: Gate, policy: str
) -> None:
    case = await Case.prepared(server, client)
    fleet = Fleet(processes, case, concurrency=30, redelivery=policy)
    doomed = fleet.start("tests.faults.blocking_program:worker")
    jobs = await case.enqueue(30, wait=str(gate.path))
    await wait_until(lambda: len(said(doomed, "start")) == 30, "all run")
    doomed.kill()
    await case.make_overdue(consumer_of(doomed))
    gate.open()
    healthy = fleet.start("tests.faults.blocking_program:worker")
    await all_done(case)
    assert sorted(said(healthy, "completion")) == sorted(jobs)
    note(case, doomed, healthy)
    assert Counter(event.event for event in await case.events()) == {"recovered": 30, "acked": 30}
    assert await case.violations(finished=True) == []


async def test_a_paused_owner_that_resumes_has_its_extensions_and_its_acks_refused(
    server: RedisServer, client: Redis, processes: Processes, gate: Gate
) -> None:
    """In place this is in test_in_place, because there a heartbeat can be made old."""
    case = await Case.prepared(server, client)
    fleet = Fleet(processes, case, concurrency=4)
    paused = fleet.start("tests.faults.blocking_program:worker")
    jobs = await case.enqueue(4, wait=str(gate.path))
    await wait_until(lambda: len(said(paused, "start")) == 4, "all run")
    paused.pause()
    owner = consumer_of(paused)
    await case.make_overdue(owner)
    healthy = fleet.start("tests.faults.blocking_program:worker")
    await wait_until(lambda: len(said(healthy, "start")) == 4, "another worker has claimed and runs them")
    scripts, before = Scene(client), await pending_of(client)
    assert await scripts.extend(*jobs, consumer=owner) == [0] * 4
    assert await pending_of(client) == before, "nothing was taken back, and no count was raised"
    paused.resume()
    await wait_until(lambda: len(said(paused, "cancelled")) == 4, "the handlers are cancelled")
    gate.open()
    await all_done(case)

    assert sorted(said(healthy, "completion")) == sorted(jobs)
    acked = await case.events("acked")
    assert len({event.data["consumer"] for event in acked}) == 1, "the paused one has settled nothing"
    assert Counter(event.job for event in acked) == dict.fromkeys(jobs, 1)
    note(case, paused, healthy)
    assert re.search(r"settlement rejected.* verb=extension", paused.output)
    assert await case.violations(finished=True) == []


@pytest.mark.parametrize("policy", ["stream", in_matrix("retry-stream"), by_claim("in-place")])
async def test_a_poison_job_among_bystanders_kills_three_times_and_drags_nobody_along(
    server: RedisServer, client: Redis, processes: Processes, policy: str
) -> None:
    case = await Case.prepared(server, client)
    fleet = Fleet(processes, case, concurrency=BATCH, redelivery=policy)
    await case.enqueue(BATCH // 2)
    (poison,) = await case.enqueue(1, poison="")
    await case.enqueue(BATCH // 2 - 1)
    async with fleet.kept_alive("tests.faults.poisoned_program", 2):
        await all_done(case)
    jobs = {pairs[0][1].decode(): job for job, pairs in case.enqueued.items()}  # by number, as workers note them
    starts, completions = await read_notes(client, LEDGER)
    case.starts = [Execution(jobs[start.job]) for start in starts]
    case.completions = [Execution(jobs[done.job]) for done in completions]
    assert Counter(start.job for start in case.starts)[poison] == 3
    assert [(letter.job, letter.deliveries) for letter in (await case.state()).dead] == [(poison, 3)]
    assert {done.job for done in case.completions} == case.enqueued.keys() - {poison}
    assert await case.violations(finished=True, poison=frozenset({poison}), max_deliveries=3) == []
