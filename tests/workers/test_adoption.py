import logging
from collections import deque
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_events
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import (
    KEYS,
    consumers_of,
    dead_letters,
    enqueue,
    event_names,
    field_of,
    looks_at_pending,
    make_worker,
    number_of,
    pending_of,
    running,
    wait_for_settled,
)
from workers import Job, Retry
from workers.loop.adoption import Adoption, Sweep, is_earlier_process
from workers.loop.handlers import Handler
from workers.loop.held import Source
from workers.protocol.calls.recovery import AdoptionMode
from workers.runtime.callbacks import Report
from workers.worker import Worker

pytestmark = pytest.mark.anyio

DEAD_PROCESS = "w.0123456789ab"


async def accept(_job: Job) -> None:
    """Acknowledge."""


async def hold(
    client: Redis, *numbers: int, consumer: str = DEAD_PROCESS, times: int = 1, stream: str = KEYS.stream
) -> list[str]:
    """Add jobs and make them pending, as a killed process leaves them. Return their IDs."""
    if not await client.exists(stream) or not await client.xinfo_groups(stream):
        await client.xgroup_create(stream, KEYS.group, "0", mkstream=True)
    ids = await enqueue(client, *numbers, stream=stream)
    for entry_id in ids:
        await client.execute_command(
            "XCLAIM", stream, KEYS.group, consumer, 0, entry_id,
            "RETRYCOUNT", times, "FORCE", "JUSTID", "LASTID", entry_id,
        )  # fmt: skip
    return ids


@pytest.mark.parametrize(
    ("consumer", "expected"),
    [
        ("w.0123456789ab", True),
        ("w.0123456789AB", False),
        ("w.0123456789abc", False),
        ("w", False),
        ("w2.0123456789ab", False),
        ("ww.0123456789ab", False),
        ("w.aaaaaaaaaaaa", False),
    ],
)
def test_only_processes_of_exactly_our_name_are_earlier_ones(consumer: str, expected: bool) -> None:
    assert is_earlier_process(consumer, "w", "w.aaaaaaaaaaaa") is expected


def test_a_name_is_no_pattern() -> None:
    assert not is_earlier_process("wxa.0123456789ab", "w.a", "")


async def is_alone(client: Redis, worker: Worker) -> bool:
    return await consumers_of(client) == [worker.consumer]


# ---- a restart under a configured name


async def test_a_restarted_worker_runs_again_what_it_held(server: RedisServer, client: Redis) -> None:
    ran = []

    async def handle(job: Job) -> None:
        ran.append((number_of(job), job.deliveries))

    ids = await hold(client, 1, 2, 3)

    async with running(make_worker(server.url, handle, name="w")) as worker:
        await wait_for_settled(worker, 3)
        await wait_until(lambda: is_alone(client, worker), "the earlier process's consumer is deleted")

    assert sorted(ran) == [(1, 2), (2, 2), (3, 2)]
    assert (worker.counts.adopted, worker.counts.acked, worker.counts.read) == (3, 3, 0)
    assert await pending_of(client) == []
    assert await consumers_of(client) == []
    events = await read_events(client, KEYS)
    assert [(event.event, event.job) for event in events] == [
        *(("recovered", job) for job in ids),
        *(("acked", job) for job in ids),
    ]


async def test_retries_are_adopted_too(server: RedisServer, client: Redis) -> None:
    await hold(client, 1, stream=KEYS.retry)

    async with running(make_worker(server.url, accept, name="w")) as worker:
        await wait_for_settled(worker, 1)

    assert (worker.counts.adopted, await client.xlen(KEYS.retry)) == (1, 0)


async def test_what_others_hold_is_left_alone(server: RedisServer, client: Redis) -> None:
    await hold(client, 1, consumer="v.0123456789ab")
    await hold(client, 2, consumer="w")
    [mine] = await hold(client, 3)

    async with running(make_worker(server.url, accept, name="w")) as worker:
        await wait_for_settled(worker, 1)

    assert worker.counts.adopted == 1
    assert {consumer for _, consumer, _ in await pending_of(client)} == {"v.0123456789ab", "w"}
    assert mine not in {entry for entry, _, _ in await pending_of(client)}


async def test_without_a_configured_name_nothing_is_adopted(server: RedisServer, client: Redis) -> None:
    nameless = make_worker(server.url, accept)
    before = f"{nameless.settings.base_name}.0123456789ab"
    [job] = await hold(client, 1, consumer=before)
    await enqueue(client, 2)

    async with running(nameless) as worker:
        await wait_for_settled(worker, 1)

    assert await pending_of(client) == [(job, before, 1)]


async def test_consumers_of_earlier_processes_that_hold_nothing_are_removed(server: RedisServer, client: Redis) -> None:
    await hold(client, 1, consumer="v.0123456789ab")
    for consumer in ("w.111111111111", "w.222222222222", "other"):
        await client.xgroup_createconsumer(KEYS.stream, KEYS.group, consumer)

    async with running(make_worker(server.url, accept, name="w")):
        names = await consumers_of(client)

    *others, own = names
    assert others == ["other", "v.0123456789ab"]
    assert is_earlier_process(own, "w", ours=""), "the only one of the name that is left is the process's own"
    assert own not in ("w.111111111111", "w.222222222222")


async def test_a_job_that_has_used_up_its_deliveries_is_a_dead_letter_and_is_not_run(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []
    reports: list[Report] = []

    async def handle(job: Job) -> None:
        ran.append(number_of(job))

    [dead] = await hold(client, 1, times=3)
    await hold(client, 2, times=1)
    worker = make_worker(server.url, handle, name="w")

    @worker.on("dead_lettered")
    async def note(report: Report) -> None:
        reports.append(report)

    async with running(worker):
        await wait_for_settled(worker, 2)

    assert ran == [2]
    assert (worker.counts.dead_lettered, await client.xlen(KEYS.dead)) == (1, 1)
    assert [(report.facts["job"], report.facts["delivery"], report.facts["consumer"]) for report in reports] == [
        (dead, 3, DEAD_PROCESS)
    ]
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1


async def test_suspects_run_one_at_a_time_and_after_the_others(server: RedisServer, client: Redis) -> None:
    at_once, most, order = 0, 0, []

    async def handle(job: Job) -> None:
        nonlocal at_once, most
        order.append(number_of(job))
        if job.deliveries == 3:
            at_once += 1
            most = max(most, at_once)
            await anyio.lowlevel.checkpoint()
            at_once -= 1

    await hold(client, 10, 11, 12, 13, times=2)
    await hold(client, 1, 2, times=1)

    async with running(make_worker(server.url, handle, name="w")) as worker:
        await wait_for_settled(worker, 6)

        assert (order, most) == ([1, 2, 10, 11, 12, 13], 1)
        await wait_until(lambda: is_alone(client, worker), "the earlier process's consumer is deleted")


async def test_new_jobs_are_read_while_a_suspect_runs(server: RedisServer, client: Redis) -> None:
    suspect_runs, go, ran = anyio.Event(), anyio.Event(), []

    async def handle(job: Job) -> None:
        if job.deliveries == 3:
            suspect_runs.set()
            await go.wait()
        ran.append(number_of(job))

    await hold(client, 1, 2, times=2)
    async with running(make_worker(server.url, handle, name="w")) as worker:
        await suspect_runs.wait()
        await enqueue(client, 3)
        await wait_until(lambda: ran == [3], "the new job has run beside the suspect")
        assert worker.counts.adopted == 1
        go.set()
        await wait_for_settled(worker, 3)

    assert ran == [3, 1, 2]


async def test_more_than_the_free_slots_is_adopted_bit_by_bit(server: RedisServer, client: Redis) -> None:
    at_once, most, numbers = 0, 0, []

    async def handle(job: Job) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await anyio.lowlevel.checkpoint()
        numbers.append(number_of(job))
        at_once -= 1

    await hold(client, *range(250))

    async with running(make_worker(server.url, handle, name="w", concurrency=7)) as worker:
        await wait_for_settled(worker, 250)

    assert (sorted(numbers), most <= 7) == (list(range(250)), True)
    assert worker.counts.adopted == 250


class Power:
    """The surroundings of a worker.

    If it fails, the worker ends as by kill -9, and its running jobs are not settled.
    """

    def fail(self) -> None:
        """End the worker that runs."""
        self._on.cancel()

    async def fails_before_all_is_done(self, url: str, client: Redis, handler: Handler) -> bool:
        """Run a worker until all jobs are settled or it ends. Return which."""

        async def is_done() -> bool:
            return await pending_of(client) == [] and await client.xlen(KEYS.dead) == 1

        with anyio.CancelScope() as self._on:
            async with running(make_worker(url, handler, name="w")):
                await wait_until(is_done, "every job is settled or dead-lettered")
        return self._on.cancelled_caught


async def test_a_crash_loop_dead_letters_the_poison_job_alone_and_without_a_reaper(
    server: RedisServer, client: Redis
) -> None:
    ran: list[int] = []
    power = Power()

    async def die_of_13(job: Job) -> None:
        ran.append(number_of(job))
        if number_of(job) == 13:
            power.fail()
        if job.deliveries < 3 or number_of(job) == 13:  # still running when the process dies
            await anyio.sleep_forever()

    await enqueue(client, 1, 2, 13, 3)
    crashes = [await power.fails_before_all_is_done(server.url, client, die_of_13) for _ in range(4)]

    assert crashes == [True, True, True, False]
    assert ran.count(13) == 3
    assert ran[-4:] == [1, 2, 13, 3]
    [(_, letter)] = await dead_letters(client)
    assert field_of(letter, b"n") == b"13"
    assert (await event_names(client)).count("acked") == 3
    assert await pending_of(client) == []


# ---- deliveries that arrived unnoticed


async def test_deliveries_of_ours_that_we_know_nothing_of_are_found_and_not_counted(
    server: RedisServer, client: Redis
) -> None:
    seen: list[tuple[int, int]] = []

    async def handle(job: Job) -> None:
        seen.append((number_of(job), job.deliveries))

    async with running(make_worker(server.url, handle, refresh_s=0.05)) as worker:
        await hold(client, 1, consumer=worker.consumer)
        await wait_until(lambda: seen, "the lost delivery has run")

    assert seen == [(1, 1)]
    assert await pending_of(client) == []


async def test_taking_stock_does_not_run_again_what_runs(server: RedisServer, client: Redis) -> None:
    started: list[int] = []
    go = anyio.Event()

    async def handle(job: Job) -> None:
        started.append(number_of(job))
        await go.wait()

    await enqueue(client, 1, 2)
    async with running(make_worker(server.url, handle, refresh_s=0.01)) as worker:
        await wait_until(lambda: looks_at_pending(server) >= 3, "stock was taken three times")
        go.set()
        await wait_for_settled(worker, 2)

    assert (sorted(started), worker.counts.adopted) == ([1, 2], 0)


def test_a_walk_over_what_is_ours_begins_anew_where_stock_is_taken() -> None:
    """A delivery that it has passed by may have become ours since, and never arrived."""
    adoption: Any = object.__new__(Adoption)
    source = Source("orders", "orders")
    theirs = Sweep(source, DEAD_PROCESS, AdoptionMode.RESTART, "7-1")
    adoption._membership, adoption._consumer = SimpleNamespace(sources=[source]), "w"
    adoption._sweeps = deque([theirs, Sweep(source, "w", AdoptionMode.REREAD, "5-1")])
    adoption.take_stock()
    assert [(sweep.owner, sweep.start) for sweep in adoption._sweeps] == [(DEAD_PROCESS, "7-1"), ("w", "-")]
    adoption._sweeps.pop()
    adoption.take_stock()
    assert [(sweep.owner, sweep.start) for sweep in adoption._sweeps] == [("w", "-"), (DEAD_PROCESS, "7-1")]
    assert [sweep.mode for sweep in adoption._sweeps] == [AdoptionMode.REREAD, AdoptionMode.RESTART]
    for claimed in (True, False):  # deliveries of a read with CLAIM are given back until the walk is over
        adoption.take_stock(claimed=claimed)
        assert [sweep.mode for sweep in adoption._sweeps] == [AdoptionMode.CLAIMED, AdoptionMode.RESTART]


async def test_settled_suspects_that_fail_again_become_dead_letters(server: RedisServer, client: Redis) -> None:
    async def handle(_job: Job) -> None:
        raise Retry("no")

    await hold(client, 1, 2, times=2)

    async with running(make_worker(server.url, handle, name="w")) as worker:
        await wait_for_settled(worker, 2)

    assert (worker.counts.dead_lettered, await client.xlen(KEYS.dead)) == (2, 2)
