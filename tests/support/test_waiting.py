"""Waiting ends with the awaited state, or with an error that names it."""

from collections.abc import Iterator

import anyio
import pytest

from tests.support.patience import beats
from tests.support.waiting import happens, wait_until, wait_until_here

pytestmark = pytest.mark.anyio

A_SECOND = 1.0
"""Of which one turn uses up no more than half, however long the machine takes for it."""


async def test_waiting_ends_with_the_first_true_value() -> None:
    answers = iter([0, "", "yes"])
    assert await wait_until(lambda: next(answers), "an answer is true") == "yes"


async def test_an_answer_may_take_its_time() -> None:
    answers = iter([0, 7])

    async def ask() -> int:
        await anyio.lowlevel.checkpoint()
        return next(answers)

    assert await wait_until(ask, "an answer is true") == 7


async def test_waiting_in_vain_says_for_what() -> None:
    with pytest.raises(AssertionError, match=r"until pigs fly \(last value: 0\): for .* s, .* s of them in a row idle"):
        await wait_until(lambda: 0, "pigs fly", 0.01)


async def test_it_waits_for_as_long_as_values_change() -> None:
    falsy: Iterator[object] = iter([0, "", None, (), 0.0, b"", False, *[{}, []] * 3])
    values = []

    def ask() -> object:
        values.append(next(falsy, "at last"))
        return values[-1]

    assert await wait_until(ask, "it is true", A_SECOND) == "at last"
    assert len(values) == 14


async def test_it_waits_for_as_long_as_there_is_progress() -> None:
    steps = iter(range(15))
    last = 0

    def step() -> int:
        nonlocal last
        last = next(steps, last)
        return last

    assert await wait_until(lambda: last == 14, "all steps are done", A_SECOND, progress=step)


def test_without_a_loop_it_is_the_same() -> None:
    answers = iter([0, "", "yes"])
    assert wait_until_here(lambda: next(answers), "an answer is true") == "yes"
    with pytest.raises(AssertionError, match=r"until pigs fly \(last value: ''\)"):
        wait_until_here(lambda: "", "pigs fly", 0.01)


async def test_an_event_ends_the_wait_for_it() -> None:
    event = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(happens, event.wait, "it is set")
        event.set()


async def test_an_event_that_does_not_come_is_named() -> None:
    with pytest.raises(AssertionError, match="until it is set: for"):
        await happens(anyio.Event().wait, "it is set", 0.01)


async def test_what_a_test_got_is_a_sign_of_life_for_its_watchdog() -> None:
    counts = [beats()]
    await wait_until(lambda: True, "it is true")
    counts.append(beats())
    wait_until_here(lambda: True, "it is true")
    counts.append(beats())
    event = anyio.Event()
    event.set()
    await happens(event.wait, "it is set")
    counts.append(beats())
    with pytest.raises(AssertionError):
        await wait_until(lambda: 0, "pigs fly", 0.01)
    assert counts == [counts[0] + n for n in range(4)]
    assert beats() == counts[-1], "waiting in vain is no sign of life"
