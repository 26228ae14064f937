"""What recovery calls cost the server.

CPU time in the batches of a replica. Bare: a script that copies, acknowledges and deletes ID by ID.
"""

from statistics import median
from typing import Any

from redis.asyncio import Redis

from reaper.recovery.source_watch import RECOVER_BATCH
from tests.benchmarks import server_load
from tests.benchmarks.figures import Result, Row, at_most
from tests.benchmarks.stage import open_stage, result_of, server_knows_claim
from tests.benchmarks.streams import create_group, server_ms, strand
from workers.protocol.calls.group_moves import Authority, GroupMoves, Recovery
from workers.protocol.events import DEFAULT_JOURNAL_MAXLEN
from workers.protocol.keys import GroupKeys, group_keys
from workers.protocol.messages import Redelivery

KEYS, BARE = group_keys("jobs", "billing"), group_keys("bare", "billing")
LEASE = "alice-1-abc.00@1000"
VISIBILITY_MS = 30_000
JOBS, QUICK_JOBS, TIMES = 10_000, 2_000, 3
IN_PLACE_US = 10.0
"""What an entry that becomes ready where it is may cost among 20,000, because a bad order costs the square of them."""


async def measure(*, quick: bool) -> Result:
    """Recover by each policy that the server knows, and by the bare script."""
    jobs = QUICK_JOBS if quick else JOBS
    bare = median([await _bare(jobs) for _ in range(TIMES)])
    rows = [await _row(policy, jobs, bare) for policy in (Redelivery.STREAM, Redelivery.RETRY_STREAM)]
    if await server_knows_claim():
        rows.append(await _row(Redelivery.IN_PLACE, 2 * jobs, None))
    return Result(tuple(rows))


async def _row(policy: Redelivery, jobs: int, bare: float | None) -> Row:
    ours = median([await _recovered(policy, jobs) for _ in range(TIMES)])
    demand = at_most(IN_PLACE_US) if policy is Redelivery.IN_PLACE else None
    return Row(f"an entry of {jobs:,}, policy `{policy}`", ours, "µs", bare, demand)


async def _recovered(policy: Redelivery, jobs: int) -> float:
    """Return the CPU time of the server for each of so many stalled deliveries, in µs."""
    async with open_stage() as stage:
        client = stage.client
        await create_group(client, KEYS)
        await strand(client, KEYS, jobs)
        rows: Any = await client.xrange(KEYS.stream)
        ids = [row[0] for row in rows]
        await client.xclaim(KEYS.stream, KEYS.group, "gone", 0, ids, idle=2 * VISIBILITY_MS, justid=True)
        await _lead(client, KEYS, policy)
        moves = GroupMoves(KEYS, DEFAULT_JOURNAL_MAXLEN, Authority(LEASE, 7))
        begun = await server_load.cpu_us(client)
        for at in range(0, jobs, RECOVER_BATCH):
            batch = ids[at : at + RECOVER_BATCH]
            done = await moves.recover(client, KEYS.stream, batch)
            assert isinstance(done, Recovery), done
            assert (done.next_page, len(done.rows), done.due_in_ms) == ("", len(batch), []), done
        return (await server_load.cpu_us(client) - begun) / jobs


async def _lead(client: Redis, keys: GroupKeys, policy: Redelivery) -> None:
    now_ms = await server_ms(client)
    settings = {"policy": policy, "visibility_ms": VISIBILITY_MS, "max_deliveries": 5, "recovery": "reaper"}
    beat = {"beat": now_ms, "unbroken": 1}
    await client.set(keys.lease, LEASE)
    await client.hset(keys.settings, mapping={name: str(value) for name, value in (settings | beat).items()})


async def _bare(jobs: int) -> float:
    async with open_stage() as stage:
        await create_group(stage.client, BARE)
        await strand(stage.client, BARE, jobs)
        found = await result_of(stage.bare("recover", BARE.stream, BARE.group, RECOVER_BATCH))
        return float(found["server_us"]) / jobs
