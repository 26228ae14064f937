"""Delayed retries and delayed enqueues with a real reaper. Each runs once, in its order, under any holder."""

from collections.abc import Mapping
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_state
from reaper.drill.promises import Execution, Pairs
from tests.conftest import StartProxy
from tests.faults import scene
from tests.support.proxy import command, runs
from tests.support.resp import Request
from tests.support.servers import RedisServer, url_of
from tests.support.waiting import wait_until
from workers import Job, NewJob, Producer, Retry
from workers.protocol.calls.group_moves import MOVE_DUE

pytestmark = pytest.mark.anyio

SELDOM: dict[str, Any] = {"tick_interval": 600}
"""A replica that does not learn by its ticks that something is due."""
SOON = 0.2
"""Long enough to be scheduled; nothing is asserted about it."""


def payload(number: int) -> Pairs:
    return [(b"n", b"%d" % number)]


async def enqueue_later(client: Redis, number: int, delay: float = SOON) -> dict[str, Pairs]:
    """Enqueue delayed jobs. Return their fields by job ID."""
    async with Producer(scene.STREAM, url_of(client)) as producer:
        ids = await producer.enqueue_many([NewJob(payload(n), delay=delay) for n in range(number)])
    return {job_id: payload(n) for n, job_id in enumerate(ids)}


class Scripted:
    """Runs jobs by a script. It raises the script's exception at the n-th delivery of any job, and then succeeds."""

    def __init__(self, *answers: Exception) -> None:
        self.inner = scene.Handler()
        self._answers = answers

    async def __call__(self, job: Job) -> None:
        nth = sum(start.job == job.id for start in self.inner.starts)
        if nth < len(self._answers):
            self.inner.starts.append(Execution(job.id, job.generation))
            raise self._answers[nth]
        await self.inner(job)


async def faultless(client: Redis, enqueued: Mapping[str, Pairs], handler: scene.Handler, **facts: Any) -> None:
    assert await scene.violations(client, enqueued, [handler], finished=True, **facts) == []


async def newest_letter(client: Redis) -> Any:
    return await client.xrevrange(scene.KEYS.dead, count=1)


# ---- jobs run when they are due


async def test_a_job_that_fails_is_tried_again_after_its_backoff_until_its_limit(
    server: RedisServer, client: Redis
) -> None:
    handler = scene.Handler()
    async with (
        scene.running_reaper(server.url),
        scene.running_worker(server.url, handler, backoff_base=SOON, backoff_cap=SOON),
    ):
        enqueued = await scene.enqueue(client, 5, fail="")
        await wait_until(lambda: len(handler.starts) == 15, "each was tried three times")
        await scene.nothing_left(client)
    assert scene.times(handler.starts) == dict.fromkeys(enqueued, 3)
    await faultless(client, enqueued, handler, poison=frozenset(enqueued))
    [(_, flat)] = await newest_letter(client)
    trace = dict(zip(flat[::2], flat[1::2], strict=True))[b"reaper.dead.traceback"]
    assert trace.rstrip().endswith(b"RuntimeError: told to fail")


async def test_retries_that_do_not_count_burn_no_delivery(server: RedisServer, client: Redis) -> None:
    down = Retry("the bank is down", delay=0.01, counts=False)
    handler = Scripted(*[down] * 8, Retry("once more", delay=0.01))
    async with scene.running_reaper(server.url), scene.running_worker(server.url, handler) as worker:
        enqueued = await scene.enqueue(client, 3)
        await wait_until(lambda: worker.counts.acked == 3, "all are done")
        await scene.nothing_left(client)
    assert scene.times(handler.inner.starts) == dict.fromkeys(enqueued, 10)
    nacks = await scene.events(client, "nacked")
    assert sum(event.data["verb"] == "retry" for event in nacks) == 24
    assert max(event.data["delivery"] for event in nacks) == 1
    await faultless(client, enqueued, handler.inner)


# ---- notices


async def test_something_earlier_wakes_a_holder_that_sleeps_for_something_later(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    handler, through = scene.Handler(), await proxy(server)
    async with (
        scene.running_reaper(through.url, **SELDOM) as reaper,
        scene.running_worker(server.url, handler),
    ):
        await scene.holds(reaper)
        await wait_until(lambda: through.commands["SUBSCRIBE"] > 0, "it listens")
        await enqueue_later(client, 1, delay=3_000)
        await enqueue_later(client, 3)
        await handler.has_started(3)
    assert len((await read_state(client, scene.KEYS)).scheduled) == 1


async def test_a_holder_that_missed_notices_looks_when_it_is_connected_again(
    server: RedisServer, client: Redis, proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.runtime.notices.RECONNECT_S", 0.01)
    handler, through = scene.Handler(), await proxy(server)
    async with (
        scene.running_reaper(through.url, **SELDOM) as reaper,
        scene.running_worker(server.url, handler),
    ):
        token = await scene.holds(reaper)
        await wait_until(lambda: through.commands["SUBSCRIBE"] > 0, "it listens")
        held = through.hold_request(command("SUBSCRIBE"))
        await through.disconnect()
        await held.wait()
        await enqueue_later(client, 3)  # the notice is lost
        held.release()
        await handler.has_started(3)
        assert await scene.holds(reaper) == token


async def test_an_idle_holder_looks_when_something_is_due_and_not_before(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    handler, through = scene.Handler(), await proxy(server)
    looks: list[Request] = []

    def note_look(request: Request) -> bool:
        if runs(MOVE_DUE)(request):
            looks.append(request)
        return False

    through.hold_request(note_look)
    async with scene.running_reaper(through.url) as reaper, scene.running_worker(server.url, handler):
        await scene.holds(reaper)
        await wait_until(lambda: through.commands["SUBSCRIBE"] > 0, "it listens")
        for number in range(1, 6):
            await enqueue_later(client, 1)
            await handler.has_started(number)
    # One when the term begins, one for each channel, and for each job one for the notice and one when it is due. A
    # sleep may end a moment early, and an unknown EVALSHA is followed by an EVAL.
    assert len(looks) <= 3 + 5 * 4


# ---- holders come and go


async def test_a_change_of_holders_while_jobs_fall_due_runs_none_twice(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    handler, through = Scripted(Retry("later", delay=SOON)), await proxy(server)
    async with scene.running_worker(server.url, handler) as worker, scene.running_reaper(through.url) as first:
        await scene.holds(first)
        async with scene.running_reaper(server.url, after=first.replica_id) as second:
            enqueued = await enqueue_later(client, 100) | await scene.enqueue(client, 100)
            await wait_until(lambda: worker.counts.acked > 50, "the first one has moved some")
            held = through.hold_requests(runs(MOVE_DUE))
            enqueued |= await enqueue_later(client, 100) | await scene.enqueue(client, 100)
            await held.wait()  # the first one is about to move something
            await through.cut()
            await scene.end_lease(client)
            await scene.holds(second)
            held.release()  # the first one may hold the lease again before all are done
            await through.mend()
            await wait_until(lambda: worker.counts.acked == 400, "all are done")
            await scene.nothing_left(client)
    assert scene.times(handler.inner.starts) == dict.fromkeys(enqueued, 2)
    await faultless(client, enqueued, handler.inner)
