import asyncio

import anyio
import pytest

from tests.support.waiting import wait_until
from workers.runtime import callbacks as module
from workers.runtime.callbacks import Callbacks, Report

pytestmark = pytest.mark.anyio


def make() -> tuple[Callbacks, list[Report]]:
    callbacks: Callbacks = Callbacks(frozenset({"done", "failed"}))
    reports: list[Report] = []

    @callbacks.on("done")
    async def note(report: Report) -> None:
        reports.append(report)

    return callbacks, reports


async def test_reports_arrive_in_order_while_it_runs() -> None:
    callbacks, reports = make()

    async with anyio.create_task_group() as tasks:
        await tasks.start(callbacks.run)
        callbacks.report("done", number=0)
        await wait_until(lambda: len(reports) == 1, "the first has arrived")
        callbacks.report("done", number=1)
        callbacks.report("done", number=2)
        await wait_until(lambda: len(reports) == 3, "the others have arrived")
        tasks.cancel_scope.cancel()

    assert reports == [Report("done", {"number": number}) for number in range(3)]


async def test_reports_that_nobody_wants_are_not_kept() -> None:
    callbacks, reports = make()

    callbacks.report("failed")
    callbacks.report("done")
    await callbacks.drain()

    assert (reports, callbacks.wants("done"), callbacks.wants("failed")) == ([Report("done")], True, False)


class PanicException(BaseException):
    """As extensions written in Rust raise it."""


@pytest.mark.parametrize("error", [ValueError("broken"), PanicException(), asyncio.CancelledError()])
async def test_a_callback_that_fails_stops_neither_the_others_nor_the_next(error: BaseException) -> None:
    callbacks, reports = make()

    @callbacks.on("failed")
    async def fail(_report: Report) -> None:
        raise error

    callbacks.report("failed")
    callbacks.report("done")
    await callbacks.drain()

    assert reports == [Report("done")]


async def test_reports_that_a_slow_callback_cannot_take_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKLOG", 2)
    callbacks, reports = make()

    for number in range(5):
        callbacks.report("done", number=number)
    await callbacks.drain()

    assert [report.facts["number"] for report in reports] == [0, 1]


def test_an_unknown_event_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"event 'gone' is unknown\. Choose one of done, failed"):
        make()[0].on("gone")
