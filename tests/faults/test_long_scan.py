"""A million pending entries: a scan takes seconds, and the holder extends its lease all the while."""

import pytest
from redis.asyncio import Redis

from tests.faults.reapers import Case, start_replica
from tests.support.processes import Processes
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.connection import commands_client

pytestmark = [pytest.mark.anyio, pytest.mark.matrix]

PENDING = 1_000_000
PER_CALL = 20_000
SCAN_PAGE = 200
"""Small, so that the scan takes seconds on a fast machine too."""
RENEWALS = 3
"""So often at least the lease is extended while the scan is under way: a lease of three intervals would have lasted."""

_FILL = """
for i = 1, ARGV[2] do
  redis.call('XADD', KEYS[1], '*', 'n', i)
end
redis.call('XREADGROUP', 'GROUP', ARGV[1], 'w1', 'COUNT', ARGV[2], 'STREAMS', KEYS[1], '>')
"""


async def fill(case: Case) -> None:
    """Let one worker hold `PENDING` deliveries."""
    async with commands_client(case.server.url, timeout_s=60) as client:
        for _ in range(PENDING // PER_CALL):
            await client.eval(_FILL, 1, case.keys.stream, case.keys.group, PER_CALL)
    assert await case.pending_count() == PENDING


async def test_one_holder_scans_a_million_deliveries_and_arms_every_timer(
    server: RedisServer, client: Redis, processes: Processes
) -> None:
    case = await Case.prepared(server, client)
    await fill(case)
    start_replica(processes, server, full_scan_interval=3_600, tick_interval=0.1)
    seen: set[str] = set()
    renewed: list[int] = []

    async def scanned() -> bool:
        renewals = server.command("INFO", "commandstats").get("cmdstat_pexpire", {}).get("calls", 0)
        report = await case.report()
        if report and report.last_full_scan_ms:
            return True
        renewed.append(renewals)  # before the scan was over
        seen.add(await case.holder())
        return False

    await case.holds_it()
    await wait_until(scanned, "everything is scanned")
    assert renewed[-1] - renewed[0] >= RENEWALS
    (taken,) = await case.lease_history()
    assert (taken.event, taken.data["token"]) == ("lease_taken", 1)
    assert seen == {taken.data["holder"]}
    (replica,) = await case.replicas()
    report = replica.groups[case.keys.pair]
    assert (report.timers, report.scan_entries, replica.terms) == (PENDING, PENDING, 1)
    assert await case.pending_count() == PENDING
