"""Embedded workers as processes, killed and paused, without any reaper."""

import re
from collections import Counter

import pytest
from redis.asyncio import Redis

from reaper.drill.promises import Execution
from tests.faults.reapers import Case
from tests.faults.test_proof_of_life import names, said, start_worker, started
from tests.scripts.scene import Scene
from tests.support.gate import Gate
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.tiers import by_claim
from tests.support.waiting import wait_until
from tests.workers.scene import pending_of

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

EMBEDDED = ("--recovery", "embedded")


def note(case: Case, *workers: Running) -> None:
    """Take over the executions that ``workers`` have printed."""
    case.starts = [Execution(job) for worker in workers for job in said(worker, "start")]
    case.completions = [Execution(job) for worker in workers for job in said(worker, "completion")]


@pytest.mark.parametrize("policy", ["stream", by_claim("in-place")])
async def test_what_a_killed_worker_held_is_run_by_the_others(
    server: RedisServer, client: Redis, processes: Processes, gate: Gate, policy: str
) -> None:
    case = await Case.prepared(server, client)
    flags = (*EMBEDDED, "--redelivery", policy)
    doomed = start_worker(processes, server, *flags, concurrency=30)
    jobs = await case.enqueue(30, wait=str(gate.path))
    consumer = await started(doomed, 30)
    doomed.kill()
    await case.make_overdue(consumer)
    gate.open()
    healthy = start_worker(processes, server, *flags, concurrency=30)
    await case.all_over()
    assert sorted(said(healthy, "completion")) == sorted(jobs)
    note(case, doomed, healthy)
    assert await names(case) == {"recovered": 30, "acked": 30}
    assert await case.violations(finished=True) == []


async def test_a_paused_owner_that_resumes_has_its_extensions_and_its_acks_rejected(
    server: RedisServer, client: Redis, processes: Processes, gate: Gate
) -> None:
    """In place this is in test_in_place, because there a heartbeat can be made old."""
    case = await Case.prepared(server, client)
    paused = start_worker(processes, server, *EMBEDDED, concurrency=4)
    jobs = await case.enqueue(4, wait=str(gate.path))
    owner = await started(paused, 4)
    paused.pause()
    await case.make_overdue(owner)
    healthy = start_worker(processes, server, *EMBEDDED, concurrency=4)
    await started(healthy, 4)
    scripts, before = Scene(client), await pending_of(client)
    assert await scripts.extend(*jobs, consumer=owner) == [0] * 4
    assert await pending_of(client) == before, "nothing was taken back, and no count was raised"
    paused.resume()
    await wait_until(lambda: len(said(paused, "cancelled")) == 4, "the handlers are cancelled")
    gate.open()
    await case.all_over()
    assert sorted(said(healthy, "completion")) == sorted(jobs)
    acked = await case.events("acked")
    assert len({event.data["consumer"] for event in acked}) == 1, "the paused one has settled nothing"
    assert Counter(event.job for event in acked) == dict.fromkeys(jobs, 1)
    note(case, paused, healthy)
    assert re.search(r"settlement rejected.* verb=extension", paused.output)
    assert await case.violations(finished=True) == []
