"""Policy `in-place` on a server that knows no CLAIM: rejected with a sentence, and nothing is changed by it."""

import pytest
from redis.asyncio import Redis

from tests.faults.reapers import Case, nothing_left, quick_settings, running
from tests.faults.scene import KEYS, Handler, running_worker
from tests.support.beats import let_beat
from tests.support.dump import dump
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.errors import UnsupportedServerError

pytestmark = [pytest.mark.anyio, pytest.mark.only_on("6.2.", "7.0.", "8.2.", "valkey-")]


async def test_a_replica_stops_before_there_are_group_settings_and_leaves_those_that_there_are(
    server: RedisServer, client: Redis
) -> None:
    case = await Case.prepared(server, client)
    async with running(quick_settings(server)):
        await wait_until(lambda: client.hget(case.keys.settings, "policy"), "there are group settings")
    jobs = await case.stalled(3)
    before = await dump(client)
    async with running(quick_settings(server, redelivery="in-place")) as replica:
        await case.wait_for_report(lambda report: report.disabled == "no_claim", "recovery is disabled")
        await wait_until(lambda: replica.errors, "that is reported")
        after = await dump(client)
    [error] = replica.errors
    assert "redelivery 'in-place' needs XREADGROUP … CLAIM (Redis 8.4)" in error
    assert {key: value for key, value in after.items() if key.startswith(("orders", "{orders}"))} == {
        key: value for key, value in before.items() if key.startswith(("orders", "{orders}"))
    }
    async with running(quick_settings(server)):
        assert sorted(await case.work_off(nothing_left)) == sorted(jobs)
    assert await case.violations(finished=True) == []


async def test_a_worker_that_gives_back_in_place_stops_before_there_are_group_settings(
    server: RedisServer, client: Redis
) -> None:
    await let_beat(client, KEYS)
    before = await dump(client)
    with pytest.RaisesGroup(UnsupportedServerError, flatten_subgroups=True) as stopped:
        async with running_worker(server.url, Handler(), recovery="embedded", redelivery="in-place"):
            pytest.fail("it works")
    assert str(stopped.value.exceptions[0]) == (
        "cannot join group orders/billing: redelivery 'in-place' needs XREADGROUP … CLAIM (Redis 8.4) and the "
        "permission for it. Use redelivery 'stream' or 'retry-stream', or apply the rules that `reaper acl` prints."
    )
    assert await dump(client) == before
