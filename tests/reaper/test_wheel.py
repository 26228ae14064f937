"""When alarms ring: under a virtual clock."""

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from reaper.tasks import Chores, Tasks
from reaper.wheel import Alarm, Wheel
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", VIRTUAL_TIME


class Bells:
    """A wheel, and when its alarms have rung."""

    def __init__(self) -> None:
        self.wheel = Wheel()
        self.rung: list[tuple[str, float]] = []

    def alarm(self, name: str) -> Alarm:
        """Return an alarm of that name."""
        return Alarm(lambda: self.rung.append((name, round(anyio.current_time(), 3))))


@asynccontextmanager
async def running() -> AsyncIterator[Bells]:
    bells = Bells()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bells.wheel.run)
        await anyio.lowlevel.checkpoint()
        yield bells
        tasks.cancel_scope.cancel()


async def test_alarms_ring_in_the_order_of_their_times() -> None:
    async with running() as bells:
        for name, pause_s in (("late", 3), ("early", 1), ("now", 0)):
            bells.wheel.put(bells.alarm(name), pause_s)
        await anyio.sleep(10)
        assert bells.rung == [("now", 0), ("early", 1), ("late", 3)]


@pytest.mark.parametrize("pause_s", [1, 5], ids=["earlier", "later"])
async def test_an_alarm_that_is_moved_rings_once(pause_s: float) -> None:
    async with running() as bells:
        alarm = bells.alarm("moved")
        bells.wheel.put(alarm, 3)
        bells.wheel.put(alarm, pause_s)
        await anyio.sleep(10)
        assert bells.rung == [("moved", pause_s)]


async def test_a_cancelled_alarm_does_not_ring_and_may_be_put_again() -> None:
    async with running() as bells:
        alarm = bells.alarm("again")
        bells.wheel.put(alarm, 1)
        alarm.cancel()
        await anyio.sleep(2)
        bells.wheel.put(alarm, 1)
        await anyio.sleep(2)
        assert bells.rung == [("again", 3)]


async def test_alarms_of_a_slot_ring_together() -> None:
    async with running() as bells:
        for pause_s in (0.51, 0.53, 0.59, 1.1):
            bells.wheel.put(bells.alarm("tick"), pause_s, slot_s=0.25)
        await anyio.sleep(2)
        assert bells.rung == [("tick", 0.75)] * 3 + [("tick", 1.25)]


# ---- chores


class Term:
    """The chores of one term."""

    def __init__(self) -> None:
        self.wheel, self.tasks = Wheel(), Tasks()
        self.failures = 0
        self.made: list[float] = []
        self.chores = Chores(self.wheel, self.tasks, "orders/billing", self._fail)

    def _fail(self) -> None:
        self.failures += 1

    def note(self) -> None:
        """Note that a step is made."""
        self.made.append(round(anyio.current_time(), 3))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Chores]:
        """Run until the block ends."""
        async with anyio.create_task_group() as self.tasks.group:
            self.tasks.start(self.wheel.run)
            yield self.chores
            self.tasks.group.cancel_scope.cancel()


async def test_a_step_is_repeated_after_the_pause_that_it_returns() -> None:
    term, pauses = Term(), iter([2.0, 0.0, None])

    async def step() -> float | None:
        term.note()
        await anyio.lowlevel.checkpoint()
        return next(pauses)

    async with term.running() as chores:
        chores.wake(step, 1)
        chores.wake(step, 5)  # later than planned
        await anyio.sleep(10)
        assert term.made == [1, 3, 3]
        assert not chores.is_started(step)


async def test_a_step_that_is_woken_while_it_is_under_way_is_made_once_more() -> None:
    term = Term()

    async def step() -> None:
        term.note()
        await anyio.sleep(2)

    async with term.running() as chores:
        chores.wake(step)
        await anyio.sleep(1)
        chores.wake(step)
        chores.wake(step)
        await anyio.sleep(10)
        assert term.made == [0, 2]


async def test_the_end_waits_for_a_step_that_may_finish_and_cancels_the_others() -> None:
    term, ended = Term(), list[float]()

    async def writes() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(3)
        term.note()

    async def waits() -> None:
        await anyio.sleep(100)
        term.note()

    async with term.running() as chores:
        chores.wake(writes)
        chores.wake(waits)
        await anyio.sleep(1)
        chores.stop(lambda: ended.append(round(anyio.current_time(), 3)))
        chores.wake(waits)
        await anyio.sleep(200)
        assert (term.made, ended) == ([3], [3])


async def test_a_term_that_has_ended_does_not_stay_in_memory_until_its_timers_are_due() -> None:
    """A million timers are 250 MB, and a visibility timeout may last for hours."""

    class Source:
        async def fire(self) -> float:
            await anyio.lowlevel.checkpoint()
            return 3600.0

    term, source = Term(), Source()
    async with term.running() as chores:
        chores.wake(source.fire)
        await anyio.sleep(1)
        chores.stop(lambda: None)
        kept = weakref.ref(source)
        del source, chores
        term.chores = Chores(term.wheel, term.tasks, "orders/billing", term._fail)
        gc.collect()
        assert kept() is None


async def test_an_exception_that_nobody_expected_is_reported_and_ends_only_its_step() -> None:
    term = Term()

    def fail() -> None:
        raise ZeroDivisionError

    async def step() -> None:
        fail()

    async with term.running() as chores:
        chores.wake(step)
        await anyio.sleep(1)
        chores.safely(fail)
        assert term.failures == 2
