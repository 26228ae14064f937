"""A taskiq worker on a Redis stream beside a reaper: its own claim loop is off, and it holds no backlog.

REDIS_URL=… python taskiq_worker.py produce 10 | work <consumer>
"""

import asyncio
import os
import sys

from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

mode, name = sys.argv[1:]
broker = RedisStreamBroker(
    os.environ["REDIS_URL"],
    queue_name="orders",
    consumer_group_name="billing",
    consumer_name=name,
    consumer_id="0",
    xread_count=1,  # COUNT: 100 by default, which wait in memory
    idle_timeout=2**31,  # its own XAUTOCLAIM takes what has been idle for 25 days: never, that is the reaper's work
)


@broker.task(task_name="work")
async def work(number: int) -> None:
    print("start", number, flush=True)
    if number == int(os.environ.get("HOLD", "-1")):
        await asyncio.Event().wait()
    print("done", number, flush=True)


async def produce() -> None:
    await broker.startup()
    for number in range(int(name)):
        await work.kiq(number)
    await broker.shutdown()


asyncio.run(produce() if mode == "produce" else run_receiver_task(broker, max_async_tasks=1, run_startup=True))
