"""The virtual clock: it jumps, it never runs ahead of work, it notices a program that is stuck."""

import time

import anyio
import anyio.to_thread
import pytest

from tests.support import virtual_time
from tests.support.patience import PATIENCE_S, scaled
from tests.support.virtual_time import VIRTUAL_TIME, VirtualTimeLoop

A_YEAR_S = 365 * 24 * 3600.0


def test_sleeping_takes_virtual_time_and_no_real_time() -> None:
    async def main() -> float:
        await anyio.sleep(A_YEAR_S)
        return anyio.current_time()

    began = time.monotonic()
    assert anyio.run(main, backend_options=VIRTUAL_TIME) == pytest.approx(A_YEAR_S)
    assert time.monotonic() - began < scaled(PATIENCE_S)


def test_tasks_wake_at_their_own_instants_in_the_same_order_each_time() -> None:
    async def main() -> list[tuple[str, float]]:
        woken: list[tuple[str, float]] = []

        async def sleeper(name: str, pause_s: float, times: int) -> None:
            for _ in range(times):
                await anyio.sleep(pause_s)
                woken.append((name, round(anyio.current_time(), 6)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sleeper, "quick", 0.4, 3)
            tasks.start_soon(sleeper, "slow", 1.0, 1)
        return woken

    runs = [anyio.run(main, backend_options=VIRTUAL_TIME) for _ in range(2)]
    assert runs == [[("quick", 0.4), ("quick", 0.8), ("slow", 1.0), ("quick", 1.2)]] * 2


def test_a_deadline_ends_a_scope_at_its_instant() -> None:
    async def main() -> float:
        with anyio.move_on_after(7.5):
            await anyio.sleep_forever()
        return anyio.current_time()

    assert anyio.run(main, backend_options=VIRTUAL_TIME) == pytest.approx(7.5)


def test_work_that_is_ready_is_done_before_time_passes() -> None:
    worked_until: list[float] = []

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep, 60)
            for _ in range(1_000):
                await anyio.lowlevel.checkpoint()
            worked_until.append(anyio.current_time())

    anyio.run(main, backend_options=VIRTUAL_TIME)
    assert worked_until == [0.0]


def test_a_thread_may_wake_a_loop_without_timers() -> None:
    async def main() -> str:
        return await anyio.to_thread.run_sync(lambda: "done")

    assert anyio.run(main, backend_options=VIRTUAL_TIME) == "done"


def test_a_program_that_waits_for_ever_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "STUCK_AFTER_S", 0.01)
    loop = VirtualTimeLoop()
    try:
        with pytest.raises(RuntimeError, match="waits for ever"):
            loop.run_until_complete(loop.create_future())
    finally:
        loop.close()


def test_a_program_that_never_waits_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "MOST_TURNS", 100)

    async def ask_again_and_again() -> None:
        while True:  # noqa: ASYNC110
            await anyio.sleep_until(anyio.current_time())

    with pytest.raises(RuntimeError, match="time never passes"):
        anyio.run(ask_again_and_again, backend_options=VIRTUAL_TIME)


def test_turns_are_counted_for_each_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "MOST_TURNS", 100)

    async def main() -> float:
        for _ in range(1_000):
            await anyio.sleep(1)
        return anyio.current_time()

    assert anyio.run(main, backend_options=VIRTUAL_TIME) == pytest.approx(1_000)
