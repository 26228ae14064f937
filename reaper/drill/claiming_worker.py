"""The worker of a "self-healing pool" as it is usually published: plain redis-py loops that claim what looks stalled.

    claiming_worker.py STREAM GROUP NAME LOOPS MIN_IDLE_MS LIMIT

Nothing is mended here: a loop does not keep the cursor, runs claimed jobs one by one, extends nothing, does not check
who owns a job by now, and acknowledges and logs a job over the limit. Published with an idle time of 30 s and reads
that block for 2 s; both are scaled alike.
"""

import asyncio
import hashlib
import os
import signal
import sys
import time
from typing import Any

import redis.asyncio as redis

stream, group, name, *numbers = sys.argv[1:]
loops, min_idle_ms, limit = map(int, numbers)
block_ms = max(1, min_idle_ms * 2_000 // 30_000)


async def run(client: Any, entry_id: bytes, job: dict[bytes, bytes]) -> None:
    """Run one job, and acknowledge it."""
    who = f"{job[b'n'].decode()} {entry_id.decode()} {os.getpid()}"
    print("start", who, time.time(), hashlib.sha256(job[b"payload"]).hexdigest(), flush=True)
    if b"poison" in job:  # a bug that kills every process that runs this job
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(int(job[b"duration_ms"]) / 1000)
    print("done", who, time.time(), flush=True)
    await client.xack(stream, group, entry_id)


async def loop(client: Any, consumer: str) -> None:
    """Claim and run, read and run, for ever."""
    while True:
        _, claimed, *_ = await client.xautoclaim(stream, group, consumer, min_idle_ms, "0-0", count=10)
        for entry_id, job in claimed:
            pending = await client.xpending_range(stream, group, entry_id, entry_id, 1)
            if pending and pending[0]["times_delivered"] > limit:
                print("gave up", entry_id.decode(), file=sys.stderr)
                await client.xack(stream, group, entry_id)
            else:
                await run(client, entry_id, job)
        for _, entries in await client.xreadgroup(group, consumer, {stream: ">"}, count=1, block=block_ms):
            for entry_id, job in entries:
                await run(client, entry_id, job)


async def main() -> None:
    """Run all loops; end with the first one that fails, so that the process is started again."""
    client = redis.Redis.from_url(os.environ["REDIS_URL"])
    await asyncio.gather(*(loop(client, f"{name}.{number}") for number in range(1, loops + 1)))


asyncio.run(main())
