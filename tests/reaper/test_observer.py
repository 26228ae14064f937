"""The counts of an observer, which changes no key."""

import logging
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.recovery.observing import LOOKS, SOONEST_MS, Observer
from reaper.replicas import GroupReport
from reaper.settings import ReaperSettings, WatchedGroup
from tests.scripts.scene import Scene
from workers.protocol.calls.group_moves import Outcome
from workers.protocol.messages import Redelivery
from workers.runtime.clock import monotonic_ms

pytestmark = pytest.mark.anyio

VISIBILITY_MS = 30_000


class Observed:
    """A group with an observer, and deliveries of any age."""

    def __init__(self, scene: Scene, redelivery: Redelivery = Redelivery.STREAM) -> None:
        self.scene = scene
        self.report = GroupReport(
            group="orders/billing", visibility_ms=VISIBILITY_MS, max_deliveries=3, redelivery=redelivery
        )
        group = WatchedGroup(
            stream="orders",
            group="billing",
            visibility_timeout=timedelta(milliseconds=VISIBILITY_MS),
            max_deliveries=3,
            redelivery=redelivery,
        )
        context: Any = SimpleNamespace(
            client=scene.client, reads=scene.client, recoveries=scene.client, settings=ReaperSettings()
        )
        self.observer = Observer(context, group, self.report)

    async def age(self, entry: str, idle_ms: int, consumer: str = "w1") -> None:
        """Let ``consumer`` have the delivery for so long."""
        await self.scene.client.execute_command("XCLAIM", "orders", "billing", consumer, 0, entry, "IDLE", idle_ms)

    async def look(self, *entries: str) -> list[tuple[Outcome, int]]:
        """Look at deliveries. Return what the observer says of each."""
        rows = await self.observer.recover("orders", [entry.encode() for entry in entries])
        return [(row.outcome, int(row.detail or 0)) for row in rows]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Recoveries, false alarms, and the highest age of one in seconds."""
        return self.report.recovered, self.report.false_alarms, self.report.slowest_ms // 1000


@pytest.fixture
async def observed(client: Redis) -> Observed:
    scene = Scene(client)
    await scene.prepare()
    return Observed(scene)


async def test_it_sees_what_is_still_pending_and_leaves_everything_as_it_is(observed: Observed) -> None:
    scene = observed.scene
    overdue, settled, fresh = [await scene.stalled() for _ in range(3)]
    await scene.client.xack("orders", "billing", settled)
    await observed.age(fresh, 10_000)
    before = await scene.state()
    (first, soon), gone, (last, later) = await observed.look(overdue, settled, fresh)
    assert (first, gone, last) == (Outcome.NOT_DUE, (Outcome.GONE, 0), Outcome.NOT_DUE)
    assert soon == pytest.approx(60_000 // LOOKS, abs=1_000)
    assert later == pytest.approx(20_000, abs=1_000)
    assert observed.counts == (1, 0, 0)
    assert await scene.state() == before


async def test_a_delivery_counts_once_however_often_it_is_looked_at(observed: Observed) -> None:
    entry = await observed.scene.stalled()
    for _ in range(3):
        await observed.look(entry)
    assert observed.counts == (1, 0, 0)


async def test_a_delivery_that_goes_with_its_owner_was_a_false_alarm_and_its_age_would_have_been_the_timeout(
    observed: Observed,
) -> None:
    entries = [await observed.scene.stalled() for _ in range(2)]
    await observed.age(entries[0], 90_000)
    await observed.look(*entries)
    observed.observer.gone([entry.encode() for entry in entries] + [b"3-0"])
    assert observed.counts == (2, 2, 90)


async def test_a_delivery_that_another_consumer_has_was_recovered_and_may_fall_overdue_again(
    observed: Observed,
) -> None:
    entry = await observed.scene.stalled()
    await observed.look(entry)
    await observed.age(entry, 10, "other")
    await observed.look(entry)
    for consumer in ("other", "third"):
        await observed.age(entry, 90_000, consumer)
        await observed.look(entry)
    observed.observer.gone([entry.encode()])
    assert observed.counts == (3, 1, 90)


async def test_a_delivery_that_its_own_consumer_reads_again_is_no_false_alarm(observed: Observed) -> None:
    entry = await observed.scene.stalled()
    await observed.look(entry)
    await observed.age(entry, 10)
    await observed.look(entry)
    observed.observer.gone([entry.encode()])
    assert observed.counts == (1, 0, 0)


async def test_an_entry_that_is_ready_in_place_is_not_overdue(observed: Observed) -> None:
    in_place = Observed(observed.scene, Redelivery.IN_PLACE)
    entry = await observed.scene.stalled()
    await observed.age(entry, 2 * 10**9)
    assert await in_place.look(entry) == [(Outcome.NOT_DUE, VISIBILITY_MS)]
    assert in_place.counts == (0, 0, 0)


async def test_it_logs_its_counts_once_a_minute_if_there_is_news_and_at_the_end(
    observed: Observed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    entry, now = await observed.scene.stalled(), monotonic_ms()
    said = "observed: group=orders/billing minutes={} would_recover=1 false_alarms=0 slowest_s=0.0 pending=1"
    for minutes in (0, 1, 3):
        monkeypatch.setattr("reaper.recovery.observing.monotonic_ms", lambda at=minutes: now + at * 60_000)
        await observed.look(entry)
    assert caplog.messages == [said.format(1)]
    observed.observer.log(at_the_end=True)
    assert caplog.messages == [said.format(1), said.format(3)]
    assert SOONEST_MS < 60_000 // LOOKS
