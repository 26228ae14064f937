import asyncio

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.support.waiting import wait_until
from tests.workers.scene import make_held
from workers.loop.in_flight import ENDED, Delivery
from workers.loop.slots import Perform, Slots
from workers.runtime.clock import monotonic

pytestmark = pytest.mark.anyio


def jobs(count: int) -> list[Delivery]:
    return [make_held(entry_id=b"1700000000000-%d" % number) for number in range(count)]


async def work_off(batch: list[Delivery], concurrency: int, perform: Perform) -> Slots:
    """Run all of ``batch``, and end; return what it ran in."""
    async with anyio.create_task_group() as tasks:
        slots = Slots(concurrency, perform)
        tasks.start_soon(slots.guard)
        slots.put(batch)
        await slots.wait_until_idle()
        slots.close()
    return slots


def runners_of(slots: Slots) -> int:
    """Return how many have not ended."""
    return len(slots._runners)


async def test_everything_that_is_put_runs_once_and_in_order_when_handlers_do_not_wait() -> None:
    ran: list[Delivery] = []

    async def perform(job: Delivery, _runner: object, _now: float) -> float:
        ran.append(job)
        return monotonic()

    batch = jobs(50)
    async with anyio.create_task_group() as tasks:
        slots = Slots(8, perform)
        tasks.start_soon(slots.guard)
        slots.put(batch)
        await slots.wait_until_idle()
        assert (slots.taken, slots.free) == (0, 8)
        slots.close()

    assert ran == batch
    assert slots.free == 0, "nothing is read for what starts nothing"


async def test_waiting_handlers_fan_out_to_all_slots_and_no_further() -> None:
    at_once = most = 0
    go = anyio.Event()

    async def perform(_job: Delivery, _runner: object, _now: float) -> float:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await go.wait()
        at_once -= 1
        return monotonic()

    async with anyio.create_task_group() as tasks:
        slots = Slots(8, perform)
        tasks.start_soon(slots.guard)
        slots.put(jobs(20))
        await wait_until(lambda: at_once == 8, "all slots are busy")
        go.set()
        await slots.wait_until_idle()
        slots.close()

    assert most == 8


async def test_free_slots_count_what_is_queued_and_what_runs() -> None:
    go = anyio.Event()

    async def perform(_job: Delivery, _runner: object, _now: float) -> float:
        await go.wait()
        return monotonic()

    async with anyio.create_task_group() as tasks:
        slots = Slots(2, perform)
        tasks.start_soon(slots.guard)
        slots.put(jobs(5))
        await checkpoint()

        assert (slots.taken, slots.free) == (5, 0)
        go.set()
        await slots.wait_until_idle()
        slots.close()


async def test_a_handler_that_never_waits_still_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.loop.slots.SLICE_S", 0)
    turns = ran = 0

    async def perform(_job: Delivery, _runner: object, _now: float) -> float:
        nonlocal ran
        ran += 1
        return monotonic()

    async with anyio.create_task_group() as tasks:
        slots = Slots(1, perform)
        tasks.start_soon(slots.guard)
        slots.put(jobs(10))
        while ran < 10:
            turns += 1
            await checkpoint()
        slots.close()

    assert turns >= 10


async def test_handlers_that_never_wait_cost_one_task_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def perform(_job: Delivery, _runner: object, _now: float) -> float:
        return 0.0

    monkeypatch.setattr("workers.loop.slots.monotonic", lambda: 0.0)  # they never wait, however busy the machine is
    async with anyio.create_task_group() as tasks:
        slots = Slots(8, perform)
        tasks.start_soon(slots.guard)
        started: list[None] = []
        start = slots._start_runner
        monkeypatch.setattr(slots, "_start_runner", lambda: started.append(start()))
        for _ in range(3):
            slots.put(jobs(50))
            await slots.wait_until_idle()
        slots.close()

    assert len(started) == 3


async def test_handlers_that_never_wait_and_take_long_run_one_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a runner more for each turn, the last ones would be as many handlers long as there are slots."""
    monkeypatch.setattr("workers.loop.slots.SLICE_S", 0)
    ran = 0

    async def perform(_job: Delivery, _runner: object, _now: float) -> float:
        nonlocal ran
        ran += 1
        return monotonic()

    async with anyio.create_task_group() as tasks:
        slots = Slots(8, perform)
        tasks.start_soon(slots.guard)
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


async def test_runners_that_have_nothing_to_do_end() -> None:
    go = anyio.Event()

    async def perform(_job: Delivery, _runner: object, _now: float) -> float:
        await go.wait()
        return monotonic()

    async with anyio.create_task_group() as tasks:
        slots = Slots(8, perform)
        tasks.start_soon(slots.guard)
        slots.put(jobs(8))
        await wait_until(lambda: runners_of(slots) == 8, "each has a runner")
        go.set()
        await wait_until(lambda: runners_of(slots) == 0, "all have ended")
        slots.close()


async def test_a_job_put_while_all_wait_is_run_by_a_new_runner() -> None:
    ran: list[Delivery] = []
    go = anyio.Event()

    async def perform(job: Delivery, _runner: object, _now: float) -> float:
        if not ran:
            ran.append(job)
            await go.wait()
        else:
            ran.append(job)
        return monotonic()

    first, second = jobs(2)
    async with anyio.create_task_group() as tasks:
        slots = Slots(2, perform)
        tasks.start_soon(slots.guard)
        slots.put([first])
        await wait_until(lambda: len(ran) == 1, "the first runs")
        slots.put([second])
        await wait_until(lambda: len(ran) == 2, "the second runs beside it")
        go.set()
        slots.close()


def cancel_this() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.parametrize("awaits", [False, True])
async def test_a_runner_that_is_cancelled_by_others_is_replaced_after_its_delivery(awaits: bool) -> None:
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
    await work_off(batch, 1, perform)

    assert ran == batch


async def test_a_scope_that_is_left_open_does_no_harm() -> None:
    ran: list[Delivery] = []

    async def perform(job: Delivery, _runner: object, _now: float) -> float:
        ran.append(job)
        scope = anyio.CancelScope()
        scope.__enter__()
        scope.cancel()
        job.stage = ENDED
        await checkpoint()
        return monotonic()

    batch = jobs(3)
    await work_off(batch, 1, perform)

    assert ran == batch


async def test_runners_end_with_their_group_and_start_nothing_any_more() -> None:
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
        await wait_until(lambda: runners_of(slots) == 2, "two run")
        await checkpoint()
        assert not slots.is_ending()
        tasks.cancel_scope.cancel()

    assert set(ended) == set(batch[:2])
    assert runners_of(slots) == 0


async def test_what_a_runner_fails_with_is_raised_in_the_group() -> None:
    async def perform(_job: Delivery, _runner: object, _now: float) -> float:
        raise ValueError("a mistake of ours")

    with pytest.raises(ExceptionGroup) as caught:
        await work_off(jobs(1), 2, perform)
    assert caught.group_contains(ValueError, match="a mistake of ours", depth=1)
