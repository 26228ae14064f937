"""Which event loops a worker, a reaper and a producer run under: asyncio's and uvloop's; under trio, in a thread."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from redis.asyncio import Redis

from reaper import Reaper, ReaperSettings
from tests.support.loops import loop_environment
from tests.support.processes import Processes
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import KEYS, make_worker, number_of, running
from workers import ConfigurationError, Job, Producer, Worker
from workers.loop.slots import SLICE_S
from workers.protocol.connection import commands_client
from workers.runtime.clock import monotonic
from workers.runtime.event_loop import run_in_loop

URL = "redis://127.0.0.1:1/0"
"""Nobody listens there: what is rejected is rejected before anybody connects."""


BOTH = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


def run_under(loop: str, program: Callable[[Redis], Awaitable[None]], server: RedisServer) -> None:
    """Run ``program`` with a client for ``server``, in an event loop of that kind."""

    async def main() -> None:
        assert await kind_of_loop() == loop
        async with commands_client(server.url) as client:
            await program(client)

    with pytest.MonkeyPatch.context() as patch:
        if loop == "asyncio":
            patch.setitem(sys.modules, "uvloop", None)
        run_in_loop(main)


async def kind_of_loop() -> str:
    """Return the package that the running event loop is of."""
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


@pytest.mark.anyio
@pytest.mark.processes
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_processes_run_on_both_loops(
    loop: str, server: RedisServer, processes: Processes, tmp_path: Path
) -> None:
    flags, env = ("--redis-url", server.url, "--log-level", "debug"), loop_environment(loop, tmp_path)
    worker = processes.worker("tests.workers.program", *flags, env=env)
    reaper = processes.reaper("--groups", KEYS.name, *flags, env=env)

    for process, is_at_work in ((worker, "worker started"), (reaper, "lease taken")):
        await process.prints(f"event loop chosen: module={loop}")
        await process.prints(is_at_work)


@BOTH
def test_handlers_that_never_await_starve_nobody(loop: str, server: RedisServer) -> None:
    """Neither reading, nor settling, nor a neighbour that awaits, nor the program's own tasks, nor extensions.

    Each computes for longer than a runner's slice, and asks the server by itself: what the loop has sent before is
    answered by then. The last job of the first read sees the same jobs waiting in their slots.
    """
    slots, more = 64, 16
    seen: dict[str, int] = {}
    turns = extended = ran = 0

    async def compute(job: Job) -> None:
        nonlocal extended, ran
        if number_of(job) == 0:
            while "turns" not in seen:
                assert await job.extend()
                extended += 1
            return
        ends = monotonic() + 2 * SLICE_S
        while monotonic() < ends:
            pass
        server.command("PING")
        ran += 1
        if ran == slots - 1:
            seen.update(turns=turns, extended=extended, acked=worker.counts.acked, read=worker.counts.read)

    worker = make_worker(server.url, compute, concurrency=slots)

    async def program(client: Redis) -> None:
        nonlocal turns
        for number in range(slots + more):
            await client.xadd(KEYS.stream, {"n": number})
        async with running(worker):
            while worker.counts.acked < slots + more:
                turns += 1
                await asyncio.sleep(0)

    run_under(loop, program, server)
    assert seen["turns"] >= slots - 1
    assert seen["extended"] >= 2
    assert seen["acked"] > 0
    assert seen["read"] > slots


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
    await Producer("orders", URL).enqueue({"order": 17})


async def produce_in_a_block() -> None:
    async with Producer("orders", URL):
        pass


PROGRAMS = [work, watch, watch_in_a_task, produce, produce_in_a_block]


@pytest.mark.parametrize("program", PROGRAMS)
def test_trio_is_rejected_in_a_sentence(program: Callable[[], Awaitable[None]]) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"^(a (worker|reaper|producer)) needs an asyncio or uvloop event loop.*start_blocking_portal",
    ):
        trio.run(program)
