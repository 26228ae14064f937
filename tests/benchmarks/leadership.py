"""The leader and the begin of its term, from the namespace's lease, heartbeats and journal."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.asyncio import Redis

from reaper.election.lease import Lease
from reaper.replicas import GroupReport, Replica
from tests.support.processes import Running
from tests.support.waiting import wait_until
from workers.protocol.events import DEFAULT_JOURNAL_MAXLEN, EventName
from workers.protocol.keys import GroupKeys, namespace_keys
from workers.protocol.messages import entry_ms, pair_up, text

NAMESPACE = namespace_keys("reaper")
TIMEOUT_S = 60.0
HELD_MS = 10_000


@dataclass(frozen=True, slots=True)
class Begun:
    """The begin of a term."""

    at_ms: int
    """Server time."""
    entry_id: bytes
    """Where the namespace's journal tells of it."""


async def terms_begun(client: Redis, after: bytes = b"") -> list[Begun]:
    """Return the terms that began after the journal's entry ``after``."""
    rows = await client.execute_command("XRANGE", NAMESPACE.journal, b"(" + after if after else b"-", b"+")
    return [
        Begun(entry_ms(entry_id), entry_id)
        for entry_id, flat in rows
        if dict(pair_up(flat))[b"event"] == EventName.LEASE_ACQUIRED.encode()
    ]


@asynccontextmanager
async def held_lease(client: Redis) -> AsyncIterator[bytes]:
    """Keep the lease, so that others follow meanwhile. Yield the journal's entry of our own term."""
    lease = Lease(client, NAMESPACE, HELD_MS, DEFAULT_JOURNAL_MAXLEN)
    attempt = await lease.acquire("benchmark")
    yield (await terms_begun(client))[-1].entry_id
    assert await lease.release("benchmark", attempt.token, "released"), "the lease was held for too long"


async def followers(client: Redis, count: int) -> None:
    """Wait until ``count`` replicas are registered and wait for the lease."""

    async def registered() -> bool:
        return len(await replicas(client)) == count and await _waiting(client) >= count

    await wait_until(registered, f"{count} replicas follow", TIMEOUT_S)


async def beating(client: Redis, keys: GroupKeys, visibility_s: float) -> None:
    """Have followers beat in a group for a visibility timeout. Otherwise the leader waits for so long at its start."""
    visibility_ms = round(visibility_s * 1000)
    settings: dict[str, str | int] = {
        "policy": "stream",
        "visibility_ms": visibility_ms,
        "max_deliveries": 3,
        "recovery": "reaper",
    }
    await client.hdel(keys.agreement, "beat", "unbroken")
    for name, value in settings.items():
        await client.hset(keys.agreement, name, value)

    async def unbroken() -> bool:
        beat, since = await client.hmget(keys.agreement, "beat", "unbroken")
        return bool(beat and since and int(beat) - int(since) > visibility_ms)

    await wait_until(unbroken, "followers beat", TIMEOUT_S)


async def _waiting(client: Redis) -> int:
    """Return the number of blocked clients. Followers block on the journal, where a release is written."""
    return int((await client.info("clients"))["blocked_clients"])


async def begun_after(client: Redis, after: bytes) -> Begun:
    """Wait for the next term."""

    async def begun() -> list[Begun]:
        return await terms_begun(client, after)

    return (await wait_until(begun, "a term begins", TIMEOUT_S))[0]


async def replicas(client: Redis) -> list[Replica]:
    """Return the registered replicas."""
    return [Replica.from_json(heartbeat) for heartbeat in (await client.hgetall(NAMESPACE.replicas)).values()]


async def report_of(client: Redis, pair: str) -> GroupReport | None:
    """Return the latest leader's last report on ``pair``. The report of a killed leader stays for a while."""
    leaders = [replica for replica in await replicas(client) if replica.leads]
    return max(leaders, key=lambda leader: leader.token).groups.get(pair) if leaders else None


async def leader_among(client: Redis, reapers: Sequence[Running]) -> Running:
    """Wait for a leader, and return its process."""

    async def found() -> Running | None:
        holder = text(await client.get(NAMESPACE.lease) or b"")
        by_process_id = re.search(r"-(\d+)-\w+\.\w+@\d+$", holder)
        process_id = int(by_process_id[1]) if by_process_id else 0
        return next((reaper for reaper in reapers if reaper.pid == process_id), None)

    leader = await wait_until(found, "one of our reapers leads", TIMEOUT_S)
    assert leader
    return leader
