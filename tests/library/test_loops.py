"""Which event loops a worker, a reaper and a producer run under: asyncio's and uvloop's; under trio, in a thread."""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
import trio
from redis.asyncio import Redis

from reaper import GroupSettings, Reaper, ReaperSettings
from tests.support.beats import let_beat
from tests.support.loops import loop_environment
from tests.support.processes import Processes
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import KEYS, dead_letters, field_of, make_worker, number_of, pending_of, running
from workers import ConfigurationError, Job, Producer, Reject, Retry, Worker
from workers.loop.slots import SLICE_S
from workers.protocol.connection import commands_client
from workers.runtime.clock import monotonic
from workers.runtime.event_loop import run_in_loop

URL = "redis://127.0.0.1:1/0"
"""Nobody listens there: what is refused is refused before anybody connects."""


def settings_of(server: RedisServer) -> ReaperSettings:
    pair = GroupSettings(stream=KEYS.stream, group=KEYS.group)
    return ReaperSettings(redis_url=server.url, groups=(pair,))


BOTH = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


def run_under_uvloop(program: Callable[[Redis], Awaitable[None]], server: RedisServer) -> None:
    """Run ``program`` with a client for ``server``."""
    run_under("uvloop", program, server)


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


def test_uvloop_is_used_where_it_is_installed() -> None:
    assert run_in_loop(kind_of_loop) == "uvloop"


def test_asyncio_is_used_where_uvloop_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    assert run_in_loop(kind_of_loop) == "asyncio"


@pytest.mark.anyio
@pytest.mark.processes
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_workers_and_reapers_run_under_both_loops(
    loop: str, server: RedisServer, processes: Processes, tmp_path: Path
) -> None:
    flags, env = ("--redis-url", server.url, "--log-level", "debug"), loop_environment(loop, tmp_path)
    worker = processes.worker("tests.workers.program", *flags, env=env)
    reaper = processes.reaper("--groups", KEYS.pair, *flags, env=env)

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
        await let_beat(client, KEYS)
        async with Reaper(settings_of(server)), Producer(KEYS.stream, server.url) as producer, running(worker):
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
    await Producer("orders", URL).enqueue({"order": 17})


async def produce_in_a_block() -> None:
    async with Producer("orders", URL):
        pass


PROGRAMS = [work, watch, watch_in_a_task, produce, produce_in_a_block]


@pytest.mark.parametrize("program", PROGRAMS)
def test_trio_is_refused_in_a_sentence(program: Callable[[], Awaitable[None]]) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"^(a (worker|reaper|producer)) needs an asyncio or uvloop event loop.*start_blocking_portal",
    ):
        trio.run(program)
