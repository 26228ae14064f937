"""What a leader's scans tell of workers that journal nothing."""

from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.replicas import read_replicas
from tests.faults import scene
from tests.faults.deliveries import read_long_ago
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.events import EventName, LifecycleEvent, decode_entry
from workers.protocol.keys import namespace_keys

pytestmark = pytest.mark.anyio

SCANS = {"scan_interval": 0.02, "full_scan_interval": 0.1}
OLD_MS = 1_200_000
"""Not overdue, and older than anything gets within the test."""


async def _read_scans(client: Redis) -> list[LifecycleEvent]:
    rows: Any = await client.xrange(scene.KEYS.journal)
    events = [event for entry_id, flat in rows for event in decode_entry(entry_id, flat)]
    return [event for event in events if event.event == EventName.SCANNED and event.data["group"] == scene.GROUP]


async def scans(client: Redis, number: int = 1) -> Sequence[LifecycleEvent]:
    """Wait until so many scans were told."""

    async def told() -> Sequence[LifecycleEvent]:
        found = await _read_scans(client)
        return found if len(found) >= number else ()

    return await wait_until(told, f"{number} scans are told") or ()


async def prepared(client: Redis, jobs: int) -> list[bytes]:
    """Have a worker that we know nothing of read so many jobs."""
    await scene.create_group(client)
    await scene.enqueue(client, jobs)
    return await scene.strand(client, jobs, "bare")


async def test_a_scan_tells_what_is_pending_and_the_first_of_a_term_of_nothing_gone(
    server: RedisServer, client: Redis
) -> None:
    await prepared(client, 3)
    async with scene.running_reaper(server.url, **SCANS) as reaper:
        token = await scene.leads(reaper)
        first, second, *_ = await scans(client, 2)
    ages: list[list[int]] = first.data["pending_ages"]
    assert sum(count for _, count in ages) == 3
    assert all(least <= first.data["oldest_idle_ms"] for least, _ in ages)
    varying: dict[str, Any] = {key: first.data[key] for key in ("oldest_idle_ms", "pending_ages")}
    assert (first.job, first.data) == (
        "",
        varying
        | {
            "v": 1,
            "group": scene.GROUP,
            "mode": "reaper",
            "token": token,
            "visibility_ms": scene.VISIBILITY_S * 1_000,
            "pending": 3,
            "gone": 0,
            "gone_ages": [],
            "period_ms": None,
            "scan_interval_ms": 20,
        },
    )
    assert second.data["period_ms"] > 0


async def test_what_a_bare_worker_acknowledges_is_told_once_with_bounds_that_hold(
    server: RedisServer, client: Redis
) -> None:
    first, second, _ = await prepared(client, 3)
    async with scene.running_reaper(server.url, **SCANS):
        await scans(client)
        await client.execute_command("XCLAIM", scene.STREAM, scene.GROUP, "bare", 0, first, "IDLE", OLD_MS, "JUSTID")
        await scans(client, len(await scans(client)) + 2)  # it is seen at that age, and seen again
        await client.xack(scene.STREAM, scene.GROUP, first, second)
        gone = await wait_until(lambda: _gone(client), "what is gone is told")
        told = len(await scans(client))
        await scans(client, told + 2)
        assert await _gone(client) == gone
    assert gone is not None
    (_, below, young), (old_at_least, old_below, old) = gone
    assert (young, old) == (1, 1)
    assert below <= 1 << 20
    assert (old_at_least, old_below) == (1 << 20, 1 << 21)


async def _gone(client: Redis) -> list[list[Any]] | None:
    return [row for event in await _read_scans(client) for row in event.data["gone_ages"]] or None


async def test_a_job_that_was_settled_before_its_timer_fired_is_told_too(server: RedisServer, client: Redis) -> None:
    await scene.create_group(client)
    async with scene.running_reaper(server.url, **SCANS | {"full_scan_interval": 3}):
        while not await settled_before_it_is_due(client):
            pass  # this machine is so busy that the leader came first
        gone = await wait_until(lambda: _gone(client), "what is gone is told")
    assert gone
    ((least, below, count),) = gone
    assert count == 1
    # Where it was overdue already when the leader saw it, as on a busy machine, its age has no upper bound.
    assert below is None or 0 <= least < below


async def settled_before_it_is_due(client: Redis) -> bool:
    """Have a delivery watched that is due in a moment, and acknowledge it; tell whether that was in time."""
    await scene.enqueue(client)
    soon_ms = scene.VISIBILITY_S * 1_000 - 1_500
    (entry,) = await read_long_ago(client, scene.STREAM, scene.GROUP, "bare", 1, soon_ms)
    await wait_until(lambda: _is_looked_after(client, entry), "the leader has seen it")
    return bool(await client.xack(scene.STREAM, scene.GROUP, entry))


async def _is_looked_after(client: Redis, entry: bytes) -> bool:
    """Tell whether a leader watches a delivery, or has recovered it."""
    watched = [replica.groups[scene.KEYS.pair].timers for replica in await read_replicas(client, scene.NAMESPACE)]
    return any(watched) or not await client.xpending_range(scene.STREAM, scene.GROUP, entry, entry, 1)


async def test_what_the_leader_recovered_itself_is_not_told_as_gone(server: RedisServer, client: Redis) -> None:
    await scene.create_group(client)
    await scene.enqueue(client, 5)
    await scene.strand(client, 5, "bare", overdue=True)
    async with scene.running_reaper(server.url, **SCANS):

        async def recovered() -> bool:
            return len(await scene.events(client, "recovered")) == 5

        await wait_until(recovered, "they are recovered")
        await scene.strand(client, 5, "second")
        await scans(client)
    assert await _gone(client) is None


async def test_where_nothing_is_pending_or_gone_nothing_is_told(server: RedisServer, client: Redis) -> None:
    await scene.create_group(client)
    async with scene.running_reaper(server.url, **SCANS) as reaper:
        token = await scene.leads(reaper)
        await scene.scanned_by_term_after(client, token - 1)
    assert await _read_scans(client) == []


@pytest.mark.parametrize(
    ("change", "namespace"),
    [({"journal": "off"}, "reaper"), ({"observe": True}, "reaper-observe")],
    ids=["journal off", "observing"],
)
async def test_who_writes_no_events_tells_nothing(
    server: RedisServer, client: Redis, change: dict[str, Any], namespace: str
) -> None:
    async def scanned() -> bool:
        replicas = await read_replicas(client, namespace_keys(namespace))
        return any(group.last_full_scan_ms for replica in replicas for group in replica.groups.values())

    await prepared(client, 1)
    async with scene.running_reaper(server.url, **SCANS, **change):
        await wait_until(scanned, "it has scanned everything")
    assert await _read_scans(client) == []
