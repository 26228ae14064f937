"""Functions that may be called from each thread, as docs/library.md lists them."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from anyio import from_thread, to_thread
from redis.asyncio import Redis

from reaper import Reaper, ReaperSettings
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import enqueue, field_of, make_worker, number_of, running
from workers import Job, Producer, Report
from workers.protocol.messages import text
from workers.runtime.event_loop import call_in

pytestmark = pytest.mark.anyio


async def in_a_thread(function: object) -> None:
    """Call ``function`` in a thread that knows nothing of the event loop."""
    assert callable(function)
    with ThreadPoolExecutor(1) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, function)


async def test_a_worker_is_stopped_by_its_own_plain_handler(server: RedisServer, client: Redis) -> None:
    def handle(_job: Job) -> None:
        worker.stop()

    worker = make_worker(server.url, handle)
    await enqueue(client, 1)
    await worker.run()
    assert (worker.counts.acked, worker.process and worker.process.forced) == (1, False)


@pytest.mark.parametrize("now", [False, True])
async def test_a_worker_is_stopped_from_any_thread(server: RedisServer, now: bool) -> None:
    worker = make_worker(server.url, print)
    async with running(worker):
        await in_a_thread(lambda: worker.stop(now=now))
        await wait_until(lambda: worker.process is not None and worker.process.finished, "the worker has ended")
    assert worker.process
    assert worker.process.forced is now


@pytest.mark.parametrize("begun", [True, False])
async def test_a_reaper_is_stopped_from_any_thread_and_before_it_runs(server: RedisServer, begun: bool) -> None:
    reaper = Reaper(ReaperSettings(redis_url=server.url))
    if begun:
        async with anyio.create_task_group() as tasks:
            await tasks.start(reaper.run)
            await in_a_thread(reaper.stop)
    else:
        await in_a_thread(reaper.stop)
        await reaper.run()
    assert reaper.is_stopping
    assert not reaper.held
    assert begun or not reaper.has_worked


def test_a_stop_after_the_end_of_the_event_loop_does_nothing(server: RedisServer) -> None:
    worker = make_worker(server.url, print)
    reaper = Reaper(ReaperSettings(redis_url=server.url))

    async def both() -> None:
        async with running(worker), reaper:
            pass

    anyio.run(both)
    worker.stop()
    reaper.stop()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(worker.stop, now=True).result()
        pool.submit(reaper.stop).result()


async def test_a_plain_handler_extends_and_enqueues_through_its_thread(server: RedisServer, client: Redis) -> None:
    said: list[object] = []

    async with Producer("mails", server.url) as mails:

        def handle(job: Job) -> None:
            said.append(from_thread.run(job.extend))
            said.append(from_thread.run(mails.enqueue, {"order": job.fields[b"n"]}))

        worker = make_worker(server.url, handle)
        await enqueue(client, 1)
        async with running(worker):
            await wait_until(lambda: worker.counts.acked, "the job is done")

    rows: Any = await client.xrange("mails")
    ((_, flat),) = rows
    assert said == [True, text(field_of(flat, b"reaper.job"))]
    assert field_of(flat, b"order") == b"1"


async def test_counts_consumer_and_held_groups_are_read_from_any_thread(server: RedisServer, client: Redis) -> None:
    worker = make_worker(server.url, lambda _job: None)
    await enqueue(client, 1, 2)
    async with Reaper(ReaperSettings(redis_url=server.url, groups="orders/billing")) as reaper, running(worker):
        await wait_until(lambda: worker.counts.acked == 2, "both jobs are done")
        await wait_until(lambda: reaper.held, "the reaper holds the group")

        def look() -> tuple[int, bool, int]:
            return worker.counts.acked, bool(worker.consumer), reaper.held

        assert await to_thread.run_sync(look) == (2, True, 1)


async def test_a_callback_that_hangs_holds_up_neither_jobs_nor_the_end(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.process.FAREWELL_S", 0.05)

    def fail(job: Job) -> None:
        if number_of(job) == 1:
            raise ValueError("broken")

    worker = make_worker(server.url, fail, max_deliveries=1)

    @worker.on("dead_lettered")
    async def hang(_report: Report) -> None:
        await anyio.sleep_forever()

    await enqueue(client, 1)
    async with running(worker):
        await wait_until(lambda: worker.counts.dead_lettered, "the callback hangs")
        await enqueue(client, 2, 3)
        await wait_until(lambda: worker.counts.acked == 2, "jobs are done meanwhile")
    assert worker.counts.abandoned == 0


async def test_what_is_called_in_its_own_loop_is_called_soon() -> None:
    called: list[str] = []
    call_in(asyncio.get_running_loop(), lambda: called.append("here"))
    assert called == []  # the caller may be a signal handler, in the middle of any code
    await wait_until(lambda: called == ["here"], "it is called")


@pytest.mark.parametrize("now", [False, True])
def test_a_worker_is_stopped_by_a_signal_handler_of_the_program(server: RedisServer, now: bool) -> None:
    worker = make_worker(server.url, print)

    async def program() -> None:
        async with anyio.create_task_group() as tasks:
            await tasks.start(worker.run)
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: worker.stop(now=now))
    try:
        asyncio.run(program())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert worker.process
    assert worker.process.forced is now
