import anyio
import pytest
from redis.asyncio import Redis

from tests.conftest import StartProxy, StartServer
from tests.support.proxy import served_read
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import (
    KEYS,
    Holding,
    Runs,
    accept,
    blocked,
    enqueue,
    event_names,
    key_of,
    make_worker,
    pending_of,
    process_of,
    reports_of,
    running,
    wait_for_settled,
)
from workers import Job
from workers.loop.in_flight import Source
from workers.loop.reading import LARGEST_REPLY, Planner
from workers.protocol.connection import commands_client

pytestmark = pytest.mark.anyio


async def test_a_lost_batch_is_run_and_not_counted(server: RedisServer, client: Redis, proxy: StartProxy) -> None:
    through = await proxy(server)
    seen = Runs()
    await enqueue(client, *range(5))
    lost = through.drop_reply(served_read(server))
    # It does not wait until the worker joins again, which takes stock as well.
    async with running(make_worker(through.url, seen, refresh_s=3_600)) as worker:
        await lost.wait()
        await wait_for_settled(worker, 5)

    assert sorted(seen) == [(number, 1) for number in range(5)]
    assert (worker.counts.read, worker.counts.acked) == (5, 5)
    assert await event_names(client) == ["acked"] * 5


@pytest.mark.parametrize("recovery", ["reaper", "embedded"])
async def test_a_server_without_large_replies_is_asked_for_small_ones(start_server: StartServer, recovery: str) -> None:
    """It hangs up on whoever asked, and what it handed out is ours: asked for again as it was, it never arrived."""
    limited = start_server()
    limited.command("CONFIG", "SET", "client-output-buffer-limit", "normal 307200 0 0")
    async with commands_client(limited.url) as client:
        for number in range(60):
            await client.xadd(KEYS.stream, {"n": number, "payload": bytes(20_000)})
        async with running(make_worker(limited.url, accept, recovery=recovery, concurrency=60)) as worker:
            await wait_for_settled(worker, 60)
        assert (worker.counts.acked, await pending_of(client)) == (60, [])


async def test_an_outage_is_told_once_when_it_begins_and_once_when_it_ends(
    server: RedisServer, client: Redis, proxy: StartProxy, caplog: pytest.LogCaptureFixture
) -> None:
    through = await proxy(server)
    worker = make_worker(through.url, accept)
    reports = reports_of(worker, "error")
    async with running(worker):
        await through.cut()
        await wait_until(lambda: reports, "the outage is reported")
        await enqueue(client, 1, 2)
        await through.mend()
        await wait_for_settled(worker, 2)

    assert len(reports) == 1  # of the part that sees it first
    assert caplog.text.count("cannot reach Redis") == 1
    assert caplog.text.count("Redis answers again") == 1


async def test_a_worker_that_was_cut_off_connects_all_its_parts_at_once(server: RedisServer, client: Redis) -> None:
    """Later, the server may take nobody any more (seed 17761)."""
    async with running(make_worker(server.url, accept, refresh_s=3_600, visibility_timeout=600)) as worker:
        process = process_of(worker)
        joins = process._context.membership.joins
        await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await wait_until(lambda: process._context.membership.joins > joins, "it has joined again")
        await enqueue(client, 1)
        await wait_for_settled(worker, 1)


async def test_a_restarted_server_is_found_again(start_server: StartServer) -> None:
    server = start_server(appendonly="yes", appendfsync="always")
    handler = Holding()
    async with commands_client(server.url) as client:
        await enqueue(client, 1)
        async with running(make_worker(server.url, handler)) as worker:
            await handler.has_started()
            await anyio.to_thread.run_sync(server.restart)
            handler.gate.set()
            await enqueue(client, 2)
            await wait_for_settled(worker, 2)

        assert (worker.counts.acked, await pending_of(client)) == (2, [])


async def test_a_stream_that_is_deleted_while_we_wait_is_made_again(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(make_worker(server.url, accept)) as worker:
        await wait_until(lambda: blocked(client), "the worker waits for jobs")
        await client.delete(KEYS.stream)
        await wait_until(lambda: "is created again" in caplog.text, "the worker has joined again")
        await enqueue(client, 1)
        await wait_for_settled(worker, 1)

    assert worker.counts.acked == 1


async def test_one_slot_serves_the_stream_and_its_retries(server: RedisServer, client: Redis) -> None:
    at_once, most, served = 0, 0, []

    async def handle(job: Job) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await anyio.lowlevel.checkpoint()
        served.append(key_of(job) == KEYS.retry)
        at_once -= 1

    await enqueue(client, *range(10))
    await enqueue(client, *range(10), stream=KEYS.retry)

    async with running(make_worker(server.url, handle, concurrency=1)) as worker:
        await wait_for_settled(worker, 20)

    assert most == 1
    assert served[:6] in ([True, False] * 3, [False, True] * 3)


# ---- a read of several sources, as it is planned

MAIN = Source(KEYS.stream, KEYS.stream)
RETRIES = Source(KEYS.retry, KEYS.stream)
BOTH = (MAIN, RETRIES)


def read(planner: Planner, free: int, *, main: int = 0, retries: int = 0) -> tuple[tuple[Source, ...], int]:
    """Plan a read of both that finds as many as there are, at most."""
    sources, (_, count, *whole) = planner.plan(BOTH, free)
    there = {MAIN.key: main, RETRIES.key: retries}
    assert isinstance(count, int)
    found = sum(min(count, there[source.key]) for source in sources)
    planner.learn(min(found, count) if whole else found)
    return sources, count


def of_an_older_server() -> Planner:
    """Return the planner of a worker whose server has rejected a limit on the whole reply."""
    planner = Planner()
    planner.limits_reply = False
    return planner


def test_a_limited_reply_is_asked_for_all_free_slots_and_the_streams_take_turns() -> None:
    planner = Planner()

    plans = [read(planner, free, main=1_000, retries=1_000) for free in (64, 1, 2)]

    assert plans == [((RETRIES, MAIN), 64), ((MAIN, RETRIES), 1), ((RETRIES, MAIN), 2)]
    assert planner.plan((MAIN,), 7) == ((MAIN,), ("COUNT", 7, "MAXCOUNT", 7, "MAXSIZE", LARGEST_REPLY))


def test_a_stream_without_retries_is_read_for_all_free_slots() -> None:
    planner = of_an_older_server()

    assert [planner.plan((MAIN,), free) for free in (64, 1)] == [((MAIN,), ("COUNT", 64)), ((MAIN,), ("COUNT", 1))]


@pytest.mark.parametrize("free", [2, 3, 63, 64])
def test_both_streams_together_are_never_asked_for_more_than_the_free_slots(free: int) -> None:
    sources, count = read(of_an_older_server(), free)
    assert sources == BOTH
    assert free - 1 <= count * len(sources) <= free


def test_one_free_slot_asks_in_turn_and_waits_for_both_only_where_both_are_empty() -> None:
    planner = of_an_older_server()

    plans = [read(planner, 1) for _ in range(4)]

    ask_retries, ask_main = ((RETRIES,), 1), ((MAIN,), 1)
    assert plans == [ask_retries, ask_main, (BOTH, 1), (BOTH, 1)]
    assert [read(planner, 1, main=1) for _ in range(3)] == [(BOTH, 1), ask_main, ask_retries]


def test_one_free_slot_starves_neither_stream() -> None:
    planner = of_an_older_server()

    plans = [read(planner, 1, main=1_000, retries=1_000) for _ in range(4)]

    assert [sources for sources, _ in plans] == [(RETRIES,), (MAIN,), (RETRIES,), (MAIN,)]


def test_one_free_slot_is_not_filled_twice_where_reads_of_both_found_jobs_before() -> None:
    planner = of_an_older_server()

    read(planner, 64, main=1_000)

    assert read(planner, 1, main=1_000, retries=1_000) == ((MAIN,), 1)
