"""A redis-streams worker beside a reaper. It reads its history each time: double `max_deliveries`.

REDIS_URL=… python redis_streams_worker.py produce 10 | work <consumer>
"""

import os
import sys
import time

from redis import Redis
from redis_streams.consumer import Consumer
from redis_streams.producer import Producer

mode, name = sys.argv[1:]
redis = Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)

if mode == "produce":
    producer = Producer(redis_conn=redis, stream="orders")
    for number in range(int(name)):
        producer.add({"number": str(number)})

while mode == "work":
    # One job at a time. Without an ID of yours, the next process of the same number takes this one's jobs for its own.
    consumer = Consumer(
        redis_conn=redis, stream="orders", consumer_group="billing", consumer_id=name, batch_size=1, poll_time_ms=1000
    )
    for job in consumer.get_items():
        number = int(job.content["number"])
        print("start", number, flush=True)
        while number == int(os.environ.get("HOLD", "-1")):
            time.sleep(60)
        print("done", number, flush=True)
        consumer.remove_item_from_consumer_group(job.msgid)  # XACK, after the work; what fails stays, and comes again
