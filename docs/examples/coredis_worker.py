"""A coredis worker beside a reaper.

REDIS_URL=… python coredis_worker.py produce 10 | work <consumer>
"""

import asyncio
import os
import sys

from coredis import Redis

mode, name = sys.argv[1:]


async def work(client: Redis[bytes]) -> None:
    while True:
        found = await client.xreadgroup("billing", name, {"orders": ">"}, count=1, block=1000)
        for entry in [entry for entries in (found or {}).values() for entry in entries]:
            number = int(entry.field_values[b"number"])
            print("start", number, flush=True)
            if number == int(os.environ.get("HOLD", "-1")):
                await asyncio.Event().wait()
            print("done", number, flush=True)
            await client.xack("orders", "billing", [entry.identifier])  # after the work; what fails is not acknowledged


async def main() -> None:
    async with Redis.from_url(os.environ["REDIS_URL"]) as client:
        if mode == "work":
            await work(client)
        for number in range(int(name)):
            await client.xadd("orders", {"number": number})


asyncio.run(main())
