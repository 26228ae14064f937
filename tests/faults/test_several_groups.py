"""Policy ``stream`` rejects streams with several groups and names the setting, and ``retry-stream`` serves them."""

from typing import Any

import pytest
from redis.asyncio import Redis

from tests.faults.reapers import Case, holding, nothing_left, quick_settings
from tests.support.dump import dump
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

OTHER_GROUP = "audit"
ADVICE = "Set redelivery = 'retry-stream' for this group"


async def read_as_other_group(client: Redis) -> list[str]:
    """Read all that the other group has not read yet; return entry IDs."""
    reply: Any = await client.execute_command("XREADGROUP", "GROUP", OTHER_GROUP, "a1", "STREAMS", "orders", ">")
    return [entry_id.decode() for _, entries in reply or () for entry_id, _ in entries]


async def test_with_a_second_group_policy_stream_tells_of_it_and_touches_nothing(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    case = await Case.prepared(server, client)
    await client.xgroup_create("orders", OTHER_GROUP, "0")
    jobs = await case.stalled(3)
    before = await dump(client)
    async with holding(quick_settings(server)) as replica:
        await case.wait_for_report(lambda report: report.disabled == "several_groups", "recovery is disabled")
        await wait_until(lambda: replica.errors, "that is reported")
    assert ["reason=several_groups" in line and ADVICE in line for line in replica.errors] == [True]
    assert [record.levelname for record in caplog.records if ADVICE in record.message] == ["ERROR"]
    after = await dump(client)
    assert (after["orders"], await case.pending()) == (before["orders"], [(job, "w1", 1) for job in jobs])
    assert await case.events() == []


async def test_with_a_retry_stream_the_other_group_sees_no_copy(server: RedisServer, client: Redis) -> None:
    case = await Case.prepared(server, client)
    await client.xgroup_create("orders", OTHER_GROUP, "0")
    jobs = await case.stalled(50)
    async with holding(quick_settings(server, redelivery="retry-stream")):
        await wait_until(lambda: _all_ready(case, 50), "all jobs are ready again")
        assert await read_as_other_group(client) == jobs
        assert await case.payloads(case.keys.retry) == case.enqueued
        assert sorted(await case.work_off(nothing_left)) == sorted(jobs)
        assert (await case.payloads(), await read_as_other_group(client)) == (case.enqueued, [])
    assert await case.violations() == []


async def _all_ready(case: Case, count: int) -> bool:
    return len((await case.state()).ready) == count


async def test_where_entry_ids_are_explicit_policy_stream_recovers_nothing_and_a_retry_stream_serves(
    server: RedisServer, client: Redis
) -> None:
    case = await Case.prepared(server, client)
    entry_id = "7-0"
    await client.execute_command("XADD", "orders", entry_id, "n", "1")
    case.enqueued[entry_id] = [(b"n", b"1")]
    await case.stall(*await case.read())
    async with holding(quick_settings(server)) as replica:
        await case.wait_for_report(lambda report: report.disabled == "explicit_ids", "recovery is disabled")
        await wait_until(lambda: replica.errors, "that is reported")
    assert "reason=explicit_ids" in replica.errors[0]
    assert ADVICE in replica.errors[0]
    assert (await case.payloads(), await case.pending_count()) == (case.enqueued, 1)
    async with holding(quick_settings(server, redelivery="retry-stream")):
        assert await case.work_off(nothing_left) == [entry_id]
    assert await case.violations() == []
