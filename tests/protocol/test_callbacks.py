"""Callbacks hear what they asked for, in order, and never stand in the way."""

import logging

import anyio
import pytest

from tests.support.waiting import wait_until
from workers.runtime import callbacks as module
from workers.runtime.callbacks import Callbacks, Report

pytestmark = pytest.mark.anyio


@pytest.fixture
def callbacks() -> Callbacks[str]:
    """A registry of two events."""
    return Callbacks(frozenset({"stalled", "recovered"}))


@pytest.fixture
def heard(callbacks: Callbacks[str]) -> list[Report]:
    """The reports that a callback for ``stalled`` gets."""
    reports: list[Report] = []

    @callbacks.on("stalled")
    async def hear(report: Report) -> None:
        await anyio.lowlevel.checkpoint()
        reports.append(report)

    return reports


async def test_reports_arrive_in_order_with_their_facts(callbacks: Callbacks[str], heard: list[Report]) -> None:
    for number in range(3):
        callbacks.report("stalled", job=str(number))
    async with anyio.create_task_group() as tasks:
        await tasks.start(callbacks.run)
        callbacks.report("stalled", job="3")
        await wait_until(lambda: len(heard) == 4, "all reports have arrived")
        tasks.cancel_scope.cancel()
    assert heard == [Report("stalled", {"job": str(number)}) for number in range(4)]


async def test_a_callback_that_fails_is_logged_and_stops_nothing(
    callbacks: Callbacks[str], caplog: pytest.LogCaptureFixture
) -> None:
    @callbacks.on("stalled")
    async def fail(_report: Report) -> None:
        raise RuntimeError("a bug of the program")

    heard = []

    @callbacks.on("stalled")
    async def hear(report: Report) -> None:
        heard.append(report.facts["n"])

    for n in range(2):
        callbacks.report("stalled", n=n)
    with caplog.at_level(logging.ERROR):
        await callbacks.drain()
    assert (heard, [record.message for record in caplog.records]) == ([0, 1], ["callback failed: event=stalled"] * 2)


async def test_what_is_queued_at_the_end_is_still_called(callbacks: Callbacks[str], heard: list[Report]) -> None:
    callbacks.report("stalled", n=1)
    await callbacks.drain()
    assert heard == [Report("stalled", {"n": 1})]


async def test_nothing_is_gathered_for_nobody(callbacks: Callbacks[str], heard: list[Report]) -> None:
    assert (callbacks.wants("stalled"), callbacks.wants("recovered")) == (True, False)
    callbacks.report("recovered")
    await callbacks.drain()
    assert heard == []


async def test_a_slow_callback_does_not_fill_the_memory(
    callbacks: Callbacks[str], heard: list[Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACKLOG", 5)
    for n in range(8):
        callbacks.report("stalled", n=n)
    await callbacks.drain()
    assert ([report.facts["n"] for report in heard], callbacks.dropped) == ([0, 1, 2, 3, 4], 3)


def test_a_name_that_is_never_reported_is_refused(callbacks: Callbacks[str]) -> None:
    with pytest.raises(ValueError, match=r"event 'stall' is unknown\. Choose one of recovered, stalled"):
        callbacks.on("stall")
