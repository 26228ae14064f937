"""Redis is away while the workers live: nothing of theirs is recovered, and recovery goes on once they had a chance.

After an outage that was longer than the visibility timeout everything pending looks overdue. Times are scaled: a
visibility timeout of 1.6 s, a trust window of 0.7 s; the pure test at the end says the same for a minute.
"""

from collections.abc import Awaitable, Callable

import anyio
import pytest
from redis.asyncio import Redis

from tests.conftest import StartProxy, StartServer
from tests.faults import scene
from tests.support.history import read_state
from tests.support.proxy import runs
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.connection import commands_client
from workers.protocol.events import LifecycleEvent
from workers.protocol.scripts import load_script
from workers.runtime.grace import Grace

pytestmark = pytest.mark.anyio

VISIBILITY_S = 1.6
OUTAGE_S = 1.8
SLOW_JOBS = 12
STRANDED = 3
TIMES = {"visibility_timeout": VISIBILITY_S, "lease_ttl": 1, "trust_window": 0.7, "full_scan_interval": 1}


RECOVER = load_script("reaper", "recover_entries")
ACQUIRE = load_script("reaper", "acquire_lease")

Step = Callable[[], Awaitable[object]]


async def _outlasts(url: str, direct_url: str, begin: Step, end: Step) -> None:
    """Let an outage pass over live workers and dead ones, and say what has to hold."""
    handler = scene.Handler()
    async with commands_client(direct_url) as client:
        await scene.create_group(client)
        stranded = await scene.enqueue(client, STRANDED)
        await scene.strand(client, STRANDED)
        enqueued = stranded | await scene.enqueue(client, SLOW_JOBS, hold="")
        async with scene.running_reaper(url, **TIMES) as reaper, scene.running_worker(url, handler):
            token = await scene.leads(reaper)
            await handler.has_started(SLOW_JOBS)
            await begin()
            over_at = anyio.current_time() + OUTAGE_S
            await wait_until(lambda: anyio.current_time() >= over_at, "the outage has lasted long enough")
            await end()
            # Everything is overdue now, and a leader has seen it; only then the live workers get to settle.
            await scene.scanned_by_term_after(client, token)
            handler.open_gate()
            await scene.nothing_left(client)
        assert await scene.count_events(client) == {"acked": SLOW_JOBS + STRANDED, "recovered": STRANDED}
        assert {event.job for event in await scene.events(client, "recovered")} == set(stranded)
        assert await scene.violations(client, enqueued, [handler]) == []


async def test_a_frozen_server(start_server: StartServer) -> None:
    server = start_server()

    async def freeze() -> None:
        server.pause()

    async def thaw() -> None:
        server.resume()

    await _outlasts(server.url, server.url, freeze, thaw)


async def test_a_server_that_is_killed_and_started_again_with_its_log(start_server: StartServer) -> None:
    server = start_server(appendonly="yes", appendfsync="always")

    async def kill() -> None:
        server.kill()

    async def start() -> None:
        server.start()

    await _outlasts(server.url, server.url, kill, start)


async def test_a_network_that_swallows_everything(start_server: StartServer, proxy: StartProxy) -> None:
    server = start_server()
    through = await proxy(server)

    async def blackhole() -> None:
        through.blackhole()

    await _outlasts(through.url, server.url, blackhole, through.mend)


async def test_a_network_that_refuses_everything(start_server: StartServer, proxy: StartProxy) -> None:
    server = start_server()
    through = await proxy(server)
    await _outlasts(through.url, server.url, through.cut, through.mend)


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
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    through = await proxy(server)
    await scene.create_group(client)
    async with scene.running_reaper(through.url) as first:
        token = await scene.leads(first)
        async with scene.running_reaper(server.url) as second:
            through.blackhole()
            enqueued = await scene.enqueue(client, 10)
            await scene.strand(client, 10)
            assert await scene.leads(second) == token + 1
            report = await scene.scanned_by_term_after(client, token)
            assert report.grace_ms_left == 0
            await wait_until(lambda: _ready(client, 10), "the successor recovers")
            await through.mend()
            await wait_until(lambda: not first.is_leader, "the first one knows")
        await scene.leads(first)  # it comes back as a follower, and takes its turn
    assert {event.data["token"] for event in await scene.events(client, "recovered")} == {token + 1}
    assert await scene.violations(client, enqueued, visibility_ms=round(scene.VISIBILITY_S * 1000)) == []


async def test_a_write_that_the_network_held_back_until_another_leads_is_refused(
    server: RedisServer, client: Redis, proxy: StartProxy
) -> None:
    through = await proxy(server)
    await scene.create_group(client)
    await client.script_load(RECOVER.source)
    # The lease is long enough for a busy machine: the term that writes is the term that is ended here.
    async with scene.running_reaper(through.url, lease_ttl=10) as first:
        token = await scene.leads(first)
        held = through.hold_request(runs(RECOVER))
        enqueued = await scene.enqueue(client, 10)
        await scene.strand(client, 10, overdue=True)
        await held.wait()
        again = through.hold_request(runs(ACQUIRE))
        await client.delete(scene.NAMESPACE.lease)
        async with scene.running_reaper(server.url, lease_ttl=10) as other:
            await scene.leads(other)
            again.release()
            await wait_until(lambda: _ready(client, 10), "the other one recovers")
            held.release()
            await wait_until(lambda: _refused(client, "recover"), "the late write is refused")
    refused = await _refused(client, "recover")  # what it sent again before it learnt of its end is, too
    assert {(event.data["token"], event.data["entries"]) for event in refused} == {(token, 10)}
    assert scene.times(await scene.events(client, "recovered")) == dict.fromkeys(enqueued, 1)
    assert await scene.violations(client, enqueued, visibility_ms=round(scene.VISIBILITY_S * 1000)) == []


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
    grace.paused(MINUTE_MS)
    grace.failed(MINUTE_MS + 200)
    grace.contact(MINUTE_MS + 300, SERVER_MS + MINUTE_MS + 300)
    assert grace.until(LONGEST_MS) == 0
