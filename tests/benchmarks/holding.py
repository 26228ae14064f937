"""The holder of a group's lease and the begin of its term, from the lease, heartbeats and the journal."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.asyncio import Redis

from reaper.replicas import GroupReport, Replica
from tests.benchmarks.streams import server_ms
from tests.support.processes import Running
from tests.support.waiting import wait_until
from workers.protocol.events import EventName
from workers.protocol.keys import GroupKeys, namespace_keys
from workers.protocol.messages import entry_ms, pair_up, text

NAMESPACE = namespace_keys("reaper")
TIMEOUT_S = 60.0
HELD_MS = 60_000
_PROCESS_ID = re.compile(r"-(\d+)-\w+\.\w+@\d+$")


@dataclass(frozen=True, slots=True)
class Begun:
    """The begin of a term."""

    at_ms: int
    """Server time."""
    entry_id: bytes
    """Where the journal tells of it."""


async def open_journal(client: Redis, keys: GroupKeys) -> bytes:
    """Write an event, because a lease is journalled only if there is a journal. Return its entry."""
    return text(await client.xadd(keys.journal, {"event": "benchmark", "group": keys.group})).encode()


@asynccontextmanager
async def held_lease(client: Redis, keys: GroupKeys) -> AsyncIterator[bytes]:
    """Keep the lease, so that replicas wait for it meanwhile. Yield the journal's last entry."""
    assert await client.set(keys.lease, f"benchmark.0@{HELD_MS}", px=HELD_MS, nx=True)
    yield await open_journal(client, keys)
    # The beat is as fresh as after a hand-over. Otherwise recovery would wait for a visibility timeout.
    await client.hset(keys.settings, mapping={"unbroken": 1, "beat": await server_ms(client)})
    assert await client.delete(keys.lease), "the lease was held for too long"
    await client.publish(keys.lease, "")


async def terms_begun(client: Redis, keys: GroupKeys, after: bytes = b"") -> list[Begun]:
    """Return the terms that began after the journal's entry ``after``."""
    rows = await client.execute_command("XRANGE", keys.journal, b"(" + after if after else b"-", b"+")
    return [
        Begun(entry_ms(entry_id), entry_id)
        for entry_id, flat in rows
        if dict(pair_up(flat))[b"event"] == EventName.LEASE_TAKEN.encode()
    ]


async def begun_after(client: Redis, keys: GroupKeys, after: bytes) -> Begun:
    """Wait for the next term."""

    async def begun() -> list[Begun]:
        return await terms_begun(client, keys, after)

    return (await wait_until(begun, "a term begins", TIMEOUT_S))[0]


async def until_held(client: Redis, keys: GroupKeys) -> None:
    """Wait until a replica holds the lease."""

    async def held() -> bool:
        return bool(_PROCESS_ID.search(text(await client.get(keys.lease) or b"")))

    await wait_until(held, "a replica holds the lease", TIMEOUT_S)


async def waiting(client: Redis, keys: GroupKeys, count: int) -> None:
    """Wait until ``count`` replicas are registered and listen for the lease."""

    async def registered() -> bool:
        ((_, listening),) = await client.pubsub_numsub(keys.lease)
        return len(await replicas(client)) == count and listening == count

    await wait_until(registered, f"{count} replicas wait for the lease", TIMEOUT_S)


async def replicas(client: Redis) -> list[Replica]:
    """Return the registered replicas."""
    return [Replica.from_json(heartbeat) for heartbeat in (await client.hgetall(NAMESPACE.replicas)).values()]


async def report_of(client: Redis, group: str) -> GroupReport | None:
    """Return the latest holder's last report on ``group``. The report of a killed replica stays for a while."""
    reports = [one.groups[group] for one in await replicas(client) if group in one.groups and one.held]
    return max(reports, key=lambda report: report.token, default=None)


async def holder_among(client: Redis, keys: GroupKeys, reapers: Sequence[Running]) -> Running:
    """Wait for a holder of the lease, and return its process."""

    async def found() -> Running | None:
        by_process_id = _PROCESS_ID.search(text(await client.get(keys.lease) or b""))
        process_id = int(by_process_id[1]) if by_process_id else 0
        return next((reaper for reaper in reapers if reaper.pid == process_id), None)

    holder = await wait_until(found, "one of our reapers holds the lease", TIMEOUT_S)
    assert holder
    return holder
