"""Redis is away while the workers live: nothing of theirs is recovered, and recovery goes on once they had a chance.

After an outage that was longer than the visibility timeout everything pending looks overdue. Here, all of it is made
overdue while nobody but the test reaches Redis, and the grace lasts until the test has seen the living extend; the pure
test at the end says the same for a minute.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_state
from tests.conftest import StartProxy, StartServer
from tests.faults import scene
from tests.support.graces import is_away, was_away
from tests.support.proxy import Proxy, runs
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.connection import commands_client
from workers.protocol.events import LifecycleEvent
from workers.protocol.scripts import load_script
from workers.runtime.clock import monotonic_ms
from workers.runtime.grace import Grace

pytestmark = pytest.mark.anyio

SLOW_JOBS = 12
STRANDED = 3
TIMES = {"lease_ttl": 1, "trust_window": 0.7, "grace": 3_600, "full_scan_interval": 0.2}


RECOVER = load_script("reaper", "recover_entries")
ACQUIRE = load_script("reaper", "acquire_lease")

Step = Callable[[], Awaitable[object]]


class EndedByTest(Grace):
    """A grace that lasts for an hour, or until the test has seen enough."""

    latest: "EndedByTest"

    def __init__(self, *limits: int) -> None:
        super().__init__(*limits)
        self.over = False
        EndedByTest.latest = self

    def until(self, visibility_ms: int) -> int:
        return 0 if self.over else super().until(visibility_ms)

    @property
    def saw_outage(self) -> bool:
        """Tell whether an outage is over that counted."""
        return was_away(self)

    def sees_outage(self) -> bool:
        """Tell whether Redis has been away for so long that it counts, though a pause of ours may be taken off it."""
        return is_away(self, monotonic_ms() - 1_000)


@pytest.fixture
def grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test say when a grace is over."""
    monkeypatch.setattr("reaper.service.Grace", EndedByTest)


async def _outlasts(through: Proxy, begin: Step, end: Step) -> None:
    """Let an outage pass over live workers and dead ones, and say what has to hold."""
    handler = scene.Handler()
    async with commands_client(through.server.url) as client:
        await scene.create_group(client)
        stranded = await scene.enqueue(client, STRANDED)
        await scene.strand(client, STRANDED)
        enqueued = stranded | await scene.enqueue(client, SLOW_JOBS, hold="")
        async with scene.running_reaper(through.url, **TIMES) as reaper, scene.running_worker(through.url, handler):
            await scene.leads(reaper)
            await handler.has_started(SLOW_JOBS)
            through.blackhole()  # so that nobody sees what is overdue, and no worker extends it
            await scene.make_overdue(client)
            terms_before = int(await client.get(scene.NAMESPACE.token) or 0)
            await begin()
            grace = EndedByTest.latest
            await wait_until(grace.sees_outage, "the outage has lasted long enough")
            await end()
            # Everything is overdue, and a leader has seen it; only then the living extend, and the grace ends.
            report = await scene.scanned_by_term_after(client, terms_before)
            assert (grace.saw_outage, report.grace_ms_left > 0) == (True, True)
            await wait_until(lambda: _are_young(client, SLOW_JOBS), "the living extend what they hold")
            grace.over = True
            await wait_until(lambda: scene.events(client, "recovered"), "recovery goes on")
            handler.open_gate()
            await scene.nothing_left(client)
        assert await scene.count_events(client) == {"acked": SLOW_JOBS + STRANDED, "recovered": STRANDED}
        assert {event.job for event in await scene.events(client, "recovered")} == set(stranded)
        assert await scene.violations(client, enqueued, [handler]) == []


async def _are_young(client: Redis, number: int) -> bool:
    rows: Any = await client.xpending_range(scene.STREAM, scene.GROUP, "-", "+", 100)
    return bool(sum(row[2] < scene.VISIBILITY_S * 1_000 for row in rows) == number)


@pytest.mark.usefixtures("grace", "hurried")
async def test_a_frozen_server(start_server: StartServer, proxy: StartProxy) -> None:
    server = start_server()
    through = await proxy(server)

    async def freeze() -> None:
        server.pause()
        await through.mend()

    async def thaw() -> None:
        server.resume()

    await _outlasts(through, freeze, thaw)


@pytest.mark.usefixtures("grace", "hurried")
async def test_a_server_that_is_killed_and_started_again_with_its_log(
    start_server: StartServer, proxy: StartProxy
) -> None:
    server = start_server(appendonly="yes", appendfsync="always")
    through = await proxy(server)

    async def kill() -> None:
        server.kill()
        await through.mend()

    async def start() -> None:
        server.start()

    await _outlasts(through, kill, start)


@pytest.mark.usefixtures("grace", "hurried")
async def test_a_network_that_swallows_everything(start_server: StartServer, proxy: StartProxy) -> None:
    through = await proxy(start_server())

    async def go_on() -> None:
        """It swallows everything already."""

    await _outlasts(through, go_on, through.mend)


@pytest.mark.usefixtures("grace", "hurried")
async def test_a_network_that_refuses_everything(start_server: StartServer, proxy: StartProxy) -> None:
    through = await proxy(start_server())
    await _outlasts(through, through.cut, through.mend)


async def test_what_ends_during_an_outage_is_settled_once_when_it_is_over(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    through, handler = await proxy(server), scene.Handler()
    enqueued = await scene.enqueue(client, 20, hold="") | await scene.enqueue(client, 10, hold="", fail="")
    async with scene.running_worker(through.url, handler, concurrency=30) as worker:
        await handler.has_started(30)
        await through.cut()
        handler.open_gate()
        await wait_until(lambda: len(handler.completions) == 20, "the jobs are done")
        await through.mend()
        await scene.nothing_left(client)
    assert await scene.count_events(client) == {"acked": 20, "nacked": 20, "dead_lettered": 10}
    assert worker.counts.refused == 0
    assert await scene.violations(client, enqueued, [handler], finished=True) == []


async def test_a_leader_that_alone_lost_contact_is_replaced_and_its_successor_waits_for_nothing(
    server: RedisServer, client: Redis, proxy: StartProxy, caplog: pytest.LogCaptureFixture
) -> None:
    through = await proxy(server)
    await scene.create_group(client)
    async with scene.running_reaper(through.url) as first:
        token = await scene.leads(first)
        async with scene.running_reaper(server.url) as second:
            through.blackhole()
            enqueued = await scene.enqueue(client, 10)
            await scene.strand(client, 10, overdue=True)
            await scene.end_lease(client)
            assert await scene.leads(second) == token + 1
            await wait_until(lambda: _ready(client, 10), "the successor recovers")
            assert "recovery waits" not in caplog.text
            await through.mend()
            await wait_until(lambda: not first.is_leader, "the first one knows")
        await scene.leads(first)  # it comes back as a follower, and takes its turn
    assert {event.data["token"] for event in await scene.events(client, "recovered")} == {token + 1}
    assert await scene.violations(client, enqueued) == []


async def test_a_write_that_the_network_held_back_until_another_leads_is_refused(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    through = await proxy(server)
    await scene.create_group(client)
    await client.script_load(RECOVER.source)
    async with scene.running_reaper(through.url) as first:
        token = await scene.leads(first)
        held = through.hold_requests(runs(RECOVER))
        enqueued = await scene.enqueue(client, 10)
        await scene.strand(client, 10, overdue=True)
        await held.wait()
        again = through.hold_requests(runs(ACQUIRE))
        await client.delete(scene.NAMESPACE.lease)
        async with scene.running_reaper(server.url) as other:
            await scene.leads(other)
            again.release()
            await wait_until(lambda: _ready(client, 10), "the other one recovers")
            held.release()
            await wait_until(lambda: _refused(client, "recover"), "the late write is refused")
    refused = await _refused(client, "recover")  # what it sent again before it learnt of its end is, too
    assert {(event.data["token"], event.data["entries"]) for event in refused} == {(token, 10)}
    assert scene.times(await scene.events(client, "recovered")) == dict.fromkeys(enqueued, 1)
    assert await scene.violations(client, enqueued) == []


async def _refused(client: Redis, verb: str) -> list[LifecycleEvent]:
    return [event for event in await scene.events(client, "refused") if event.data["verb"] == verb]


async def _ready(client: Redis, number: int) -> bool:
    return len((await read_state(client, scene.KEYS)).ready) == number


# --- a minute, without waiting for it -----------------------------------------------------------------------

TRUST_MS = 7_000
LONGEST_MS = 30_000
MINUTE_MS = 60_000
SERVER_MS = 1_700_000_000_000


def after_a_minute(*, attempt_every_ms: int) -> Grace:
    """Return the grace of a replica that had contact at 0 and again at a minute, and attempts in vain between."""
    grace = Grace(LONGEST_MS, TRUST_MS)
    grace.contact(0, SERVER_MS)
    for now_ms in range(attempt_every_ms, MINUTE_MS, attempt_every_ms):
        grace.failed(now_ms)
    grace.contact(MINUTE_MS, SERVER_MS + MINUTE_MS)
    return grace


@pytest.mark.parametrize("attempt_every_ms", [100, 500, 5_500])
@pytest.mark.parametrize(("visibility_ms", "waits_ms"), [(10_000, 10_000), (30_000, 30_000), (600_000, 30_000)])
def test_after_a_minute_out_of_reach_recovery_waits_once_for_the_visibility_timeout(
    attempt_every_ms: int, visibility_ms: int, waits_ms: int
) -> None:
    grace = after_a_minute(attempt_every_ms=attempt_every_ms)
    ends_ms = MINUTE_MS + waits_ms
    assert grace.until(visibility_ms) == ends_ms
    for now_ms in range(MINUTE_MS + 3_000, 3 * MINUTE_MS, 3_000):
        grace.contact(now_ms, SERVER_MS + now_ms)
    assert grace.until(visibility_ms) == ends_ms, "contact that lasts does not prolong the wait"


def test_a_server_that_was_down_for_a_minute_is_waited_for_from_its_start() -> None:
    grace = after_a_minute(attempt_every_ms=500)
    grace.server_uptime(MINUTE_MS, 4_000)
    assert grace.until(LONGEST_MS) == MINUTE_MS + LONGEST_MS


def test_a_follower_that_was_paused_for_the_minute_waits_for_nothing() -> None:
    grace = Grace(LONGEST_MS, TRUST_MS)
    grace.contact(0, SERVER_MS)
    grace.failed(200)  # an attempt was under way when the pause began
    grace.paused(MINUTE_MS + 200, MINUTE_MS)
    grace.failed(MINUTE_MS + 200)
    grace.contact(MINUTE_MS + 300, SERVER_MS + MINUTE_MS + 300)
    assert grace.until(LONGEST_MS) == 0
