"""A FastStream worker beside a reaper: one job at a time, one process, what fails is left to be recovered.

REDIS_URL=… python faststream_worker.py produce 10 | work <consumer>
"""

import asyncio
import os
import sys

from faststream import AckPolicy, FastStream
from faststream.redis import RedisBroker, StreamSub
from faststream.redis.annotations import RedisStreamMessage

mode, name = sys.argv[1:]
broker = RedisBroker(os.environ["REDIS_URL"])
# max_records is COUNT: without it, a read takes everything that waits. Exceptions are not acknowledged.
jobs = StreamSub("orders", group="billing", consumer=name, max_records=1)


@broker.subscriber(stream=jobs, ack_policy=AckPolicy.NACK_ON_ERROR)
async def work(number: int, message: RedisStreamMessage) -> None:
    print("start", number, message.message_id, flush=True)
    if number == int(os.environ.get("HOLD", "-1")):
        await asyncio.Event().wait()
    print("done", number, flush=True)


async def produce() -> None:
    async with broker:
        for number in range(int(name)):
            await broker.publish(number, stream="orders")


asyncio.run(produce() if mode == "produce" else FastStream(broker).run())
