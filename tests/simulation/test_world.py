"""The world itself: time, processes, links. The verdicts of the judge about stories are in `test_stories`."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from random import Random
from typing import Any

import pytest

from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import Network, Session
from tests.simulation.places import URL
from tests.simulation.undisturbed import take_down, undisturbed
from workers.protocol.connection import commands_client


class Echo:
    """A server that answers +PONG to all input, and keeps it."""

    def __init__(self) -> None:
        self.arrived: list[tuple[float, bytes]] = []
        self.closed = 0

    def accept(self, loop: SimulatedLoop, send: Callable[[bytes], None]) -> Session:
        echo = self

        class Line:
            def feed(self, data: bytes) -> None:
                echo.arrived.append((loop.now, data))
                send(b"+OK\r\n" * data.count(b"*"))

            def close(self) -> None:
                echo.closed += 1

        return Line()


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    with undisturbed():
        loop = SimulatedLoop()
        yield loop
        take_down(loop)


def play(loop: SimulatedLoop, program: Coroutine[Any, Any, Any]) -> Any:
    return loop.run_until_complete(program)


def network_of(loop: SimulatedLoop, echo: Echo) -> Network:
    network = Network(loop, Random(1), lambda send, _: echo.accept(loop, send), Process(loop, "redis"))
    loop.connect = network.connect
    return network


def test_hours_pass_in_no_time(loop: SimulatedLoop) -> None:
    play(loop, asyncio.sleep(3_600))
    assert loop.now == pytest.approx(3_600, abs=0.01)


def test_what_spins_does_not_stop_the_clock(loop: SimulatedLoop) -> None:
    async def spin() -> None:
        while loop.time() < 1:  # noqa: ASYNC110
            await asyncio.sleep(0)

    play(loop, spin())
    assert loop.now >= 1


def test_who_waits_for_what_never_comes_is_told(loop: SimulatedLoop) -> None:
    async def forever() -> None:
        await loop.create_future()

    task = loop.create_task(forever())
    with pytest.raises(RuntimeError, match="never comes"):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)


def ticking(loop: SimulatedLoop, ticks: list[float]) -> Coroutine[Any, Any, None]:
    async def tick() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                ticks.append(round(loop.now))
        finally:
            ticks.append(-1)  # nothing of a killed process has a say

    return tick()


def test_a_paused_process_does_not_run_and_goes_on_with_what_is_due(loop: SimulatedLoop) -> None:
    ticks: list[float] = []
    process = Process(loop, "one")
    process.start(ticking(loop, ticks))
    loop.call_when(2.5, process.pause, context=Context())
    loop.call_when(10.2, process.resume, context=Context())
    play(loop, asyncio.sleep(12.5))
    assert ticks == [1, 2, 10, 11, 12]


def test_the_clock_of_a_suspended_machine_stood_still(loop: SimulatedLoop) -> None:
    ticks: list[float] = []
    process = Process(loop, "one")
    process.start(ticking(loop, ticks))

    def suspend() -> None:
        process.pause()
        process.suspend_clock(7.4)

    loop.call_when(2.5, suspend, context=Context())
    loop.call_when(9.9, process.resume, context=Context())
    play(loop, asyncio.sleep(12.7))
    assert ticks == [1, 2, 10, 11, 12]  # at 10.4, 11.4 and 12.4
    assert process.context.run(loop.time) == pytest.approx(loop.now - 7.4)


def test_a_suspension_that_ends_early_leaves_no_clock_behind(loop: SimulatedLoop) -> None:
    ticks: list[float] = []
    process = Process(loop, "one")
    process.start(ticking(loop, ticks))

    def suspend() -> None:
        process.pause()
        process.suspend_clock(1_000.0)

    loop.call_when(2.5, suspend, context=Context())
    loop.call_when(9.9, process.resume, context=Context())
    play(loop, asyncio.sleep(12.7))
    assert ticks == [1, 2, 10, 11, 12]
    assert process.context.run(loop.time) == pytest.approx(loop.now - 7.4)


def test_nothing_of_a_killed_process_ever_runs(loop: SimulatedLoop) -> None:
    ticks: list[float] = []
    process = Process(loop, "one")
    process.start(ticking(loop, ticks))
    loop.call_when(2.5, process.kill, context=Context())
    play(loop, asyncio.sleep(10))
    assert ticks == [1, 2]


def test_a_thread_goes_on_while_its_event_loop_is_blocked(loop: SimulatedLoop) -> None:
    ours: list[float] = []
    threads: list[float] = []
    process = Process(loop, "one")
    process.start(ticking(loop, ours))
    process.thread("heartbeat").start(ticking(loop, threads))
    loop.call_when(2.5, process.block, context=Context())
    loop.call_when(5.2, process.unblock, context=Context())
    play(loop, asyncio.sleep(6.5))
    assert (ours, threads) == ([1, 2, 5, 6], [1, 2, 3, 4, 5, 6])


def test_requests_that_were_held_arrive_when_the_contact_is_back(loop: SimulatedLoop) -> None:
    echo = Echo()
    network = network_of(loop, echo)
    process = Process(loop, "one")
    answers: list[tuple[float, Any]] = []

    async def ask() -> None:
        client = commands_client(URL, timeout_s=5)
        await client.execute_command("PING")
        network.weather("one").held_requests = True
        try:
            await client.execute_command("INCR", "late")
        except Exception as error:  # noqa: BLE001
            answers.append((round(loop.now), type(error).__name__))
        await client.aclose()

    process.start(ask())
    loop.call_when(60, network.release, "one", context=Context())
    play(loop, asyncio.sleep(70))
    assert answers == [(5, "TimeoutError")]
    assert [round(at) for at, data in echo.arrived if b"late" in data] == [60]
    assert echo.closed == 1


def test_replies_that_were_held_come_too_late_and_the_request_was_executed(loop: SimulatedLoop) -> None:
    echo = Echo()
    network = network_of(loop, echo)
    process = Process(loop, "one")
    answers: list[str] = []

    async def ask() -> None:
        client = commands_client(URL, timeout_s=5)
        await client.execute_command("PING")
        network.weather("one").held_replies = True
        try:
            await client.execute_command("INCR", "once")
        except Exception as error:  # noqa: BLE001
            answers.append(type(error).__name__)

    process.start(ask())
    play(loop, asyncio.sleep(30))
    assert answers == ["TimeoutError"]
    assert [data for _, data in echo.arrived if b"once" in data] != []


def test_a_reset_ends_both_ends(loop: SimulatedLoop) -> None:
    echo = Echo()
    network = network_of(loop, echo)
    process = Process(loop, "one")
    errors: list[str] = []

    async def ask() -> None:
        client = commands_client(URL, timeout_s=5)
        await client.execute_command("PING")
        network.reset("one")
        try:
            await client.execute_command("PING")
        except Exception as error:  # noqa: BLE001
            errors.append(type(error).__name__)
        await client.execute_command("PING")

    process.start(ask())
    play(loop, asyncio.sleep(30))
    assert errors == ["ConnectionError"]
    assert echo.closed == 1
