"""Two processes of one name, or one that was taken for dead. No wrong settlement passes.

A later process of a name makes overdue what the earlier one holds. The holder or an embedded worker then recovers them.
The first completion wins. A verdict that makes a job run again passes from its owner alone.

Processes are real. They are killed, paused and resumed.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_state
from reaper.drill.promises import History, Pairs, check
from tests.faults import scene
from tests.faults.program import LEDGER, gate_of
from tests.support.knobs import REFRESHING
from tests.support.modes import EMBEDDED_IN_PLACE, mode_flags
from tests.support.notes import read_notes
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.tiers import by_claim
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

JOBS = 3
LONG_S = "3600"
MOST_DEATHS = 8


def start_worker(processes: Processes, server: RedisServer, *flags: str, name: str = "") -> Running:
    """Start a worker process. With ``name``, it has that name."""
    return processes.worker(
        "tests.faults.program:worker",
        "--redis-url", server.url, "--stream", scene.STREAM, "--group", scene.GROUP,
        *(("--name", name) if name else ()), *flags,
        env=REFRESHING, name=name or "worker",
    )  # fmt: skip


async def starts(client: Redis, number: int) -> None:
    """Wait until handlers have noted so many starts."""

    async def noted() -> bool:
        return len((await read_notes(client, LEDGER))[0]) >= number

    await wait_until(noted, f"{number} jobs have started")


async def open_gate(client: Redis, worker: Running) -> None:
    """Let the jobs of ``worker`` go on that hold."""
    await client.set(gate_of(worker.pid), "open")


async def owners(client: Redis) -> set[str]:
    """Return the consumers that hold something."""
    rows: Sequence[Sequence[bytes]] = await client.execute_command("XPENDING", scene.STREAM, scene.GROUP, "-", "+", 100)
    return {row[1].decode() for row in rows}


async def rejections(client: Redis, number: int) -> None:
    """Wait until so many rejected settlements were journalled."""

    async def journalled() -> bool:
        return len(await scene.events(client, "rejected")) >= number

    await wait_until(journalled, f"{number} settlements are rejected")


@asynccontextmanager
async def recovering(server: RedisServer, recovery: str) -> AsyncIterator[None]:
    """Run a reaper, where the workers do not recover by themselves."""
    async with AsyncExitStack() as running:
        if recovery == "reaper":
            await scene.holds(await running.enter_async_context(scene.running_reaper(server.url)))
        yield


async def violations(client: Redis, enqueued: dict[str, Pairs], **facts: object) -> list[str]:
    """Return what is wrong with the history, by the notes that the processes made."""
    started, completed = await read_notes(client, LEDGER)
    return check(
        History(
            enqueued=enqueued,
            state=await read_state(client, scene.KEYS),
            events=await scene.all_events(client),
            starts=started,
            completions=completed,
            **facts,  # type: ignore[arg-type]
        )
    )


async def pause_and_succeed(processes: Processes, server: RedisServer, client: Redis, recovery: str) -> list[Running]:
    """Let a process hold jobs, pause it, and let a second one of its name have them. Return both."""
    flags = ("--visibility-timeout", LONG_S, *mode_flags(recovery))
    # No slot is free, because a blocking read of a paused process would swallow the next ready jobs.
    first = start_worker(processes, server, *flags, "--concurrency", str(JOBS), name="w1")
    await starts(client, JOBS)
    first.pause()
    second = start_worker(processes, server, *flags, name="w1")
    await starts(client, 2 * JOBS)
    return [first, second]


@pytest.mark.parametrize("recovery", ["embedded", by_claim(EMBEDDED_IN_PLACE)])
async def test_of_a_paused_process_and_its_successor_that_took_its_jobs_where_they_are_the_first_to_end_settles_them(
    server: RedisServer, client: Redis, processes: Processes, recovery: str
) -> None:
    await scene.create_group(client)
    enqueued = await scene.enqueue(client, JOBS, hold="")
    first, second = await pause_and_succeed(processes, server, client, recovery)
    (second_consumer,) = await owners(client)
    await open_gate(client, first)
    first.resume()
    await scene.nothing_left(client)
    acked = await scene.events(client, "acked")
    assert scene.times(acked) == dict.fromkeys(enqueued, 1)
    assert second_consumer not in {event.data["consumer"] for event in acked}
    await open_gate(client, second)
    await rejections(client, JOBS)
    rejected = await scene.events(client, "rejected")
    assert sorted((event.job, event.data["consumer"]) for event in rejected) == [
        (job, second_consumer) for job in enqueued
    ]
    assert scene.times(await scene.events(client, "acked")) == dict.fromkeys(enqueued, 1)
    assert scene.times(await scene.events(client, "recovered")) == dict.fromkeys(enqueued, 1)
    assert await violations(client, enqueued, finished=True) == []


async def test_a_paused_process_whose_jobs_were_recovered_cannot_settle_them(
    server: RedisServer, client: Redis, processes: Processes
) -> None:
    await scene.create_group(client)
    enqueued = await scene.enqueue(client, JOBS, hold="")
    # No slot is free, because a blocking read of a paused process would swallow the next ready jobs. No delivery is
    # extended before the handlers end, because a rejected extension takes the job from its handler, and it is not
    # settled.
    worker = start_worker(processes, server, "--visibility-timeout", LONG_S, "--concurrency", str(JOBS))
    await starts(client, JOBS)
    worker.pause()
    await scene.make_overdue(client)
    handler = scene.Handler()
    async with scene.running_reaper(server.url), scene.running_worker(server.url, handler):
        await handler.has_started(JOBS)
        await open_gate(client, worker)
        worker.resume()
        await rejections(client, JOBS)
        assert await scene.events(client, "acked") == [], "the jobs are still under way"
        handler.open_gate()
        await scene.nothing_left(client)
    acked = await scene.events(client, "acked")
    assert sorted((event.job, event.data["delivery"]) for event in acked) == sorted((job, 2) for job in enqueued)
    assert worker.running


@pytest.mark.parametrize("recovery", ["reaper", "embedded", by_claim(EMBEDDED_IN_PLACE)])
async def test_a_process_that_was_paused_between_reading_and_running_runs_nothing_twice_under_one_settlement(
    server: RedisServer, client: Redis, processes: Processes, recovery: str
) -> None:
    """More jobs than slots. Unread jobs go to the successor once, and only once."""
    flags = ("--visibility-timeout", LONG_S, *mode_flags(recovery))
    await scene.create_group(client)
    enqueued = await scene.enqueue(client, 10, hold="")
    async with recovering(server, recovery):
        first = start_worker(processes, server, *flags, "--concurrency", "4", name="w1")
        await starts(client, 4)
        first.pause()
        second = start_worker(processes, server, *flags, name="w1")
        await open_gate(client, second)
        await scene.nothing_left(client)
        await open_gate(client, first)
        first.resume()
        await rejections(client, 4)
    counts = await scene.count_events(client)
    assert (counts["acked"], counts["rejected"], counts["recovered"]) == (10, 4, 4)
    assert await violations(client, enqueued, finished=True) == []


# --- crash loops --------------------------------------------------------------------------------------------


async def run_crash_loop(processes: Processes, server: RedisServer, client: Redis, recovery: str) -> int:
    """Start a worker of one name again whenever it dies, as a supervisor does. Return how often it died."""
    for deaths in range(MOST_DEATHS + 1):
        worker = start_worker(processes, server, "--visibility-timeout", LONG_S, "--recovery", recovery, name="w1")

        async def over(worker: Running = worker) -> str:
            state = await read_state(client, scene.KEYS)
            if not worker.running:
                await scene.make_overdue(client)  # a reaper may be faster than the next worker, or not
                return "died"
            return "" if state.ready or state.pending or state.scheduled else "done"

        if await wait_until(over, "the worker dies or is done") == "done":
            return deaths
    raise AssertionError(f"the worker died {MOST_DEATHS} times and is not done")


async def test_a_poison_job_in_a_crash_loop_is_dead_lettered_long_before_its_visibility_timeout(
    server: RedisServer, client: Redis, processes: Processes
) -> None:
    await scene.create_group(client)
    bystanders = await scene.enqueue(client, 4)
    poison = await scene.enqueue(client, 1, kill="")
    bystanders |= await scene.enqueue(client, 4)
    assert await run_crash_loop(processes, server, client, "embedded") == 3
    await scene.nothing_left(client)
    (letter,) = (await read_state(client, scene.KEYS)).dead
    assert (letter.job, letter.deliveries, letter.reason) == (*poison, 3, "max_deliveries")
    started, _ = await read_notes(client, LEDGER)
    assert scene.times(started)[letter.job] == 3
    assert {event.job for event in await scene.events(client, "acked")} == set(bystanders)
    assert await violations(client, bystanders | poison, finished=True, poison=frozenset(poison)) == []
