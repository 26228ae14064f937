"""Which event loops a worker, a reaper and a producer run under: asyncio's and uvloop's; under trio, in a thread."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta

import anyio
import pytest
import trio
from redis.asyncio import Redis

from reaper import GroupSettings, Reaper, ReaperSettings
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import KEYS, dead_letters, field_of, make_worker, number_of, pending_of, running
from workers import ConfigurationError, Job, Producer, Reject, Retry, Worker
from workers.protocol.connection import commands_client

URL = "redis://127.0.0.1:1/0"
"""Nobody listens there: what is refused is refused before anybody connects."""


def settings_of(server: RedisServer) -> ReaperSettings:
    pair = GroupSettings(stream=KEYS.stream, group=KEYS.group)
    return ReaperSettings(redis_url=server.url, groups=(pair,), grace=timedelta(0))


def run_under_uvloop(program: Callable[[Redis], Awaitable[None]], server: RedisServer) -> None:
    """Run ``program`` with a client for ``server``."""

    async def main() -> None:
        assert type(asyncio.get_running_loop()).__module__.partition(".")[0] == "uvloop"
        async with commands_client(server.url) as client:
            await program(client)

    anyio.run(main, backend_options={"use_uvloop": True})


def test_under_uvloop_jobs_are_done_retried_timed_out_rejected_and_recovered(server: RedisServer) -> None:
    done: list[tuple[int, int]] = []

    async def handle(job: Job) -> None:
        number = number_of(job)
        if number == 1 and job.deliveries == 1:
            raise Retry("once more", delay=0.01)
        if number == 2:
            raise Reject("never")
        if number == 3 and job.deliveries == 1:
            await anyio.sleep_forever()
        if number != 3:
            assert await job.extend()
        done.append((number, job.deliveries))

    worker = make_worker(server.url, handle)

    async def program(client: Redis) -> None:
        await client.xgroup_create(KEYS.stream, KEYS.group, "0", mkstream=True)
        entry_id = await client.xadd(KEYS.stream, {"n": 0})
        await client.xreadgroup(KEYS.group, "killed", {KEYS.stream: ">"})
        await client.xclaim(KEYS.stream, KEYS.group, "killed", 0, [entry_id], idle=60_000, justid=True)
        async with Reaper(settings_of(server)), Producer(client, KEYS.stream) as producer, running(worker):
            for number in range(1, 5):
                await producer.enqueue({"n": number}, timeout=0.2 if number == 3 else None, delay=0.01)
            await wait_until(lambda: len(done) == 4, "all jobs but one are done")
            await wait_until(lambda: worker.counts.dead_lettered, "that one is a dead letter")
            threading.Thread(target=worker.stop).start()
        assert [field_of(flat, b"n") for _, flat in await dead_letters(client)] == [b"2"]
        assert await pending_of(client) == []

    run_under_uvloop(program, server)
    assert sorted(done) == [(0, 2), (1, 2), (3, 2), (4, 1)]
    assert (worker.counts.acked, worker.counts.timed_out) == (4, 1)


def test_under_uvloop_a_handler_that_blocks_the_loop_is_extended_from_a_thread(server: RedisServer) -> None:
    def calls() -> int:
        found: int = server.command("INFO", "commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
        return found

    async def block(_job: Job) -> None:
        before = calls()
        while calls() == before:  # the event loop stands still until the heartbeat's thread has called a script
            pass

    worker = make_worker(server.url, block, visibility_timeout=0.3)

    async def program(client: Redis) -> None:
        await client.xadd(KEYS.stream, {"n": 1})
        async with running(worker):
            await wait_until(lambda: worker.counts.acked, "the job is done")

    run_under_uvloop(program, server)
    assert (worker.counts.acked, worker.counts.refused) == (1, 0)


def test_in_a_program_of_plain_asyncio_jobs_run_side_by_side(server: RedisServer) -> None:
    """`anyio.run` tells anyio under which event loop it is, also in callbacks; `asyncio.run` does not."""
    all_run = asyncio.Barrier(3)

    async def meet(_job: Job) -> None:
        await all_run.wait()

    worker = make_worker(server.url, meet, concurrency=3)

    async def program() -> None:
        async with commands_client(server.url) as client:
            for number in range(3):
                await client.xadd(KEYS.stream, {"n": number})
        work = asyncio.create_task(worker.run())
        await wait_until(lambda: worker.process and worker.counts.acked == 3, "three jobs have met")
        worker.stop()
        await work

    asyncio.run(program())


async def work() -> None:
    worker = Worker("orders", "billing", redis_url=URL)
    worker.handler(print)
    await worker.run()


async def watch() -> None:
    async with Reaper(ReaperSettings(redis_url=URL)):
        pass


async def watch_in_a_task() -> None:
    await Reaper(ReaperSettings(redis_url=URL)).run()


async def produce() -> None:
    await Producer(URL, "orders").enqueue({"order": 17})


async def produce_in_a_block() -> None:
    async with Producer(URL, "orders"):
        pass


@pytest.mark.parametrize("program", [work, watch, watch_in_a_task, produce, produce_in_a_block])
def test_trio_is_refused_in_a_sentence(program: Callable[[], Awaitable[None]]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^a (worker|reaper|producer) runs under asyncio .*start_blocking_portal"
    ):
        trio.run(program)
