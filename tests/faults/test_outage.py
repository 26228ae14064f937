"""Redis is away while the workers live: nothing of theirs is recovered, and recovery goes on once they had their chance.

After an outage that was longer than the visibility timeout everything pending looks overdue. Times are scaled: a
visibility timeout of 2.5 s, a trust window of 0.7 s; the pure test at the end says the same for a minute.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from tests.conftest import StartProxy, StartServer
from tests.faults import scene
from tests.support.servers import binaries_at_hand
from tests.support.waiting import wait_until
from workers.protocol.connection import commands_client

pytestmark = pytest.mark.anyio

VISIBILITY_S = 2.5
OUTAGE_S = 2.8
SLOW_JOBS = 12
STRANDED = 3
TIMES = {"visibility_timeout": VISIBILITY_S, "lease_ttl": 1, "trust_window": 0.7, "full_scan_interval": 1}

newest_server = pytest.mark.parametrize("binary", binaries_at_hand()[-1:], ids=["newest"])
every_server = pytest.mark.parametrize("binary", binaries_at_hand(), ids=lambda binary: str(binary.parent.name))

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


@every_server
async def test_a_frozen_server(binary: Path, start_server: StartServer) -> None:
    server = start_server(binary)

    async def freeze() -> None:
        server.pause()

    async def thaw() -> None:
        server.resume()

    await _outlasts(server.url, server.url, freeze, thaw)


@every_server
async def test_a_server_that_is_killed_and_started_again_with_its_log(binary: Path, start_server: StartServer) -> None:
    server = start_server(binary, appendonly="yes", appendfsync="always")

    async def kill() -> None:
        server.kill()

    async def start() -> None:
        server.start()

    await _outlasts(server.url, server.url, kill, start)


@newest_server
async def test_a_network_that_swallows_everything(binary: Path, start_server: StartServer, proxy: StartProxy) -> None:
    server = start_server(binary)
    through = await proxy(server)

    async def blackhole() -> None:
        through.blackhole()

    await _outlasts(through.url, server.url, blackhole, through.mend)


@newest_server
async def test_a_network_that_refuses_everything(binary: Path, start_server: StartServer, proxy: StartProxy) -> None:
    server = start_server(binary)
    through = await proxy(server)
    await _outlasts(through.url, server.url, through.cut, through.mend)
