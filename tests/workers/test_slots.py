from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.support.waiting import wait_until
from tests.workers.scene import make_held
from workers.loop.held import Held
from workers.loop.slots import Slots
from workers.runtime.clock import monotonic

pytestmark = pytest.mark.anyio


def jobs(count: int) -> list[Held]:
    return [make_held(entry_id=b"1700000000000-%d" % number) for number in range(count)]


def started_here(tasks: Any) -> set[object]:
    """Return the tasks of a group that have not ended."""
    return set(tasks._tasks)


async def test_everything_that_is_put_runs_once_and_in_order_when_handlers_do_not_wait() -> None:
    ran: list[Held] = []

    async def perform(job: Held, _runner: object, _now: float) -> float:
        ran.append(job)
        return monotonic()

    batch = jobs(50)
    async with anyio.create_task_group() as tasks:
        slots = Slots(tasks, 8, perform)
        slots.put(batch)
        await slots.wait_until_idle()
        slots.close()

    assert ran == batch
    assert (slots.taken, slots.free) == (0, 8)


async def test_waiting_handlers_fan_out_to_all_slots_and_no_further() -> None:
    at_once = most = 0
    go = anyio.Event()

    async def perform(_job: Held, _runner: object, _now: float) -> float:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await go.wait()
        at_once -= 1
        return monotonic()

    async with anyio.create_task_group() as tasks:
        slots = Slots(tasks, 8, perform)
        slots.put(jobs(20))
        await wait_until(lambda: at_once == 8, "all slots are busy")
        go.set()
        await slots.wait_until_idle()
        slots.close()

    assert most == 8


async def test_free_slots_count_what_is_queued_and_what_runs() -> None:
    go = anyio.Event()

    async def perform(_job: Held, _runner: object, _now: float) -> float:
        await go.wait()
        return monotonic()

    async with anyio.create_task_group() as tasks:
        slots = Slots(tasks, 2, perform)
        slots.put(jobs(5))
        await checkpoint()

        assert (slots.taken, slots.free) == (5, 0)
        go.set()
        await slots.wait_until_idle()
        slots.close()


async def test_a_handler_that_never_waits_still_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.loop.slots.SLICE_S", 0)
    turns = ran = 0

    async def perform(_job: Held, _runner: object, _now: float) -> float:
        nonlocal ran
        ran += 1
        return monotonic()

    async with anyio.create_task_group() as tasks:
        slots = Slots(tasks, 1, perform)
        slots.put(jobs(10))
        while ran < 10:
            turns += 1
            await checkpoint()
        slots.close()

    assert turns >= 10


async def test_handlers_that_never_wait_cost_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    async def perform(_job: Held, _runner: object, _now: float) -> float:
        return 0.0

    monkeypatch.setattr("workers.loop.slots.monotonic", lambda: 0.0)  # they never wait, however busy the machine is
    async with anyio.create_task_group() as tasks:
        started: list[object] = []
        start_soon = tasks.start_soon
        monkeypatch.setattr(tasks, "start_soon", lambda run: started.append(start_soon(run)))
        slots = Slots(tasks, 8, perform)
        for _ in range(3):
            slots.put(jobs(50))
            await slots.wait_until_idle()
            await checkpoint()
        slots.close()

    assert len(started) == 1


async def test_handlers_that_never_wait_and_take_long_run_one_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a runner more for each turn, the last ones would be as many handlers long as there are slots."""
    monkeypatch.setattr("workers.loop.slots.SLICE_S", 0)
    ran = 0

    async def perform(_job: Held, _runner: object, _now: float) -> float:
        nonlocal ran
        ran += 1
        return monotonic()

    async with anyio.create_task_group() as tasks:
        slots = Slots(tasks, 8, perform)
        slots.put(jobs(20))
        in_turns = []
        for turn in range(100):
            before = ran
            if turn == 10:
                slots.put(jobs(20))
            await checkpoint()
            in_turns.append(ran - before)
        slots.close()

    assert (ran, max(in_turns)) == (40, 1)


async def test_of_many_runners_that_have_nothing_to_do_one_waits() -> None:
    go = anyio.Event()

    async def perform(_job: Held, _runner: object, _now: float) -> float:
        await go.wait()
        return monotonic()

    async with anyio.create_task_group() as tasks:
        slots = Slots(tasks, 8, perform)
        slots.put(jobs(8))
        await wait_until(lambda: len(started_here(tasks)) == 8, "each has a runner")
        go.set()
        await wait_until(lambda: len(started_here(tasks)) == 1, "all but one have ended")
        slots.close()
        await wait_until(lambda: not started_here(tasks), "it ends, too")


async def test_a_job_put_while_all_wait_is_run_by_a_new_runner() -> None:
    ran: list[Held] = []
    go = anyio.Event()

    async def perform(job: Held, _runner: object, _now: float) -> float:
        if not ran:
            ran.append(job)
            await go.wait()
        else:
            ran.append(job)
        return monotonic()

    first, second = jobs(2)
    async with anyio.create_task_group() as tasks:
        slots = Slots(tasks, 2, perform)
        slots.put([first])
        await wait_until(lambda: len(ran) == 1, "the first runs")
        slots.put([second])
        await wait_until(lambda: len(ran) == 2, "the second runs beside it")
        go.set()
        slots.close()
