"""Slots run deliveries, as many at once as there are slots, whatever their handlers do to the task they run in."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.support.waiting import wait_until
from tests.workers.scene import make_job
from workers.loop.in_flight import ENDED, Delivery
from workers.loop.slots import Perform, Slots
from workers.runtime.clock import monotonic

pytestmark = pytest.mark.anyio


def jobs(count: int) -> list[Delivery]:
    return [make_job(entry_id=b"1700000000000-%d" % number) for number in range(count)]


@asynccontextmanager
async def opened(concurrency: int, perform: Perform) -> AsyncIterator[Slots]:
    """Open slots, and close them with the block."""
    async with anyio.create_task_group() as tasks:
        slots = Slots(concurrency, perform)
        tasks.start_soon(slots.guard)
        yield slots
        slots.close()


async def work_off(batch: list[Delivery], concurrency: int, perform: Perform) -> Slots:
    """Run all of ``batch``. Return the closed slots."""
    async with opened(concurrency, perform) as slots:
        slots.put(batch)
        await slots.wait_until_idle()
    return slots


class Gated:
    """Runs jobs that wait for one gate, and counts them."""

    def __init__(self) -> None:
        self.at_once = self.most = 0
        self.go = anyio.Event()

    async def __call__(self, _job: Delivery, _runner: object, _now: float) -> float:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.go.wait()
        self.at_once -= 1
        return monotonic()


class Computing:
    """Runs jobs that never wait, and lists them."""

    def __init__(self) -> None:
        self.ran: list[Delivery] = []

    async def __call__(self, job: Delivery, _runner: object, _now: float) -> float:
        self.ran.append(job)
        return monotonic()


async def test_jobs_that_never_wait_run_once_and_in_order_and_closed_slots_are_not_free() -> None:
    batch, perform = jobs(50), Computing()
    async with opened(8, perform) as slots:
        slots.put(batch)
        await slots.wait_until_idle()
        assert (slots.taken, slots.free) == (0, 8)
    assert (perform.ran, slots.free) == (batch, 0)


async def test_jobs_that_wait_fill_all_slots_and_queued_jobs_are_no_free_slots() -> None:
    perform = Gated()
    async with opened(8, perform) as slots:
        slots.put(jobs(20))
        await wait_until(lambda: perform.at_once == 8, "all slots are busy")
        assert (slots.taken, slots.free, len(slots._runners)) == (20, 0, 8)
        perform.go.set()
        await wait_until(lambda: not slots._runners, "runners without work have ended")
    assert (perform.most, slots.taken) == (8, 0)


async def test_jobs_that_never_wait_cost_one_task_for_each_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def perform(_job: Delivery, _runner: object, _now: float) -> float:
        return 0.0

    monkeypatch.setattr("workers.loop.slots.monotonic", lambda: 0.0)  # they never wait, however busy the machine is
    async with opened(8, perform) as slots:
        started: list[None] = []
        start = slots._start_runner
        monkeypatch.setattr(slots, "_start_runner", lambda: started.append(start()))
        for _ in range(3):
            slots.put(jobs(50))
            await slots.wait_until_idle()
    assert len(started) == 3


async def test_jobs_that_never_wait_and_take_long_run_one_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one more runner for each turn, the last turns would be as many jobs long as there are slots."""
    monkeypatch.setattr("workers.loop.slots.SLICE_S", 0)
    perform, in_turns = Computing(), []
    async with opened(8, perform) as slots:
        slots.put(jobs(20))
        for turn in range(100):
            before = len(perform.ran)
            if turn == 10:
                slots.put(jobs(20))
            await checkpoint()
            in_turns.append(len(perform.ran) - before)
    assert (len(perform.ran), max(in_turns)) == (40, 1)


async def test_a_job_that_comes_while_another_one_waits_runs_beside_it() -> None:
    perform = Gated()
    async with opened(2, perform) as slots:
        for number, job in enumerate(jobs(2), start=1):
            slots.put([job])
            await wait_until(lambda: perform.at_once == number, "it runs")  # noqa: B023 - at once
        perform.go.set()


def cancel_this() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.parametrize("awaits", [False, True])
async def test_a_runner_that_a_handler_cancelled_is_replaced_after_its_delivery(awaits: bool) -> None:
    ran: list[tuple[Delivery, object]] = []

    async def perform(job: Delivery, runner: object, _now: float) -> float:
        if len(ran) % 2 == 0:
            cancel_this()
        ran.append((job, runner))
        job.stage = ENDED
        if awaits:
            await checkpoint()
        return monotonic()

    batch = jobs(6)
    slots = await work_off(batch, 2, perform)
    assert [job for job, _ in ran] == batch
    assert len({runner for _, runner in ran}) > 2
    assert slots.taken == 0


async def test_a_delivery_that_has_not_begun_is_left_to_another_runner() -> None:
    ran: list[Delivery] = []
    cancelled = False

    async def perform(job: Delivery, _runner: object, _now: float) -> float:
        nonlocal cancelled
        if not cancelled:
            cancelled = True
            cancel_this()
            await checkpoint()
        ran.append(job)
        return monotonic()

    batch = jobs(3)
    async with opened(1, perform) as slots:
        slots.put(batch)
        for _ in range(100):
            await checkpoint()
        assert (ran, slots.taken) == (batch, 0)


async def test_runners_end_with_their_group_and_start_no_other_job() -> None:
    ended: list[Delivery] = []

    async def perform(job: Delivery, _runner: object, _now: float) -> float:
        try:
            await anyio.sleep_forever()
        finally:
            assert slots.is_ending()
            with anyio.CancelScope(shield=True):
                await checkpoint()
            ended.append(job)
        return monotonic()

    batch = jobs(5)
    async with anyio.create_task_group() as tasks:
        slots = Slots(2, perform)
        tasks.start_soon(slots.guard)
        slots.put(batch)
        await wait_until(lambda: len(slots._runners) == 2, "two run")
        await checkpoint()
        assert not slots.is_ending()
        tasks.cancel_scope.cancel()
    assert set(ended) == set(batch[:2])
    assert not slots._runners


async def test_an_error_of_a_runner_is_raised_in_the_group() -> None:
    async def perform(_job: Delivery, _runner: object, _now: float) -> float:
        raise ValueError("a mistake of ours")

    with pytest.raises(ExceptionGroup) as caught:
        await work_off(jobs(1), 2, perform)
    assert caught.group_contains(ValueError, match="a mistake of ours")
