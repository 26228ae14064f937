"""A walrus worker beside a reaper. It may make the stream: an empty one is served.

REDIS_URL=… python walrus_worker.py produce 10 | work <consumer>
"""

import os
import sys
import time

from walrus import Database

mode, name = sys.argv[1:]
db = Database.from_url(os.environ["REDIS_URL"])
group = db.consumer_group("billing", {"orders": "0"}, consumer=name)
group.create()

if mode == "produce":
    for number in range(int(name)):
        group.orders.add({"number": number})

while mode == "work":
    for entry_id, job in group.orders.read(count=1, block=1000) or ():
        number = int(job[b"number"])
        print("start", number, flush=True)
        while number == int(os.environ.get("HOLD", "-1")):
            time.sleep(60)
        print("done", number, flush=True)
        group.orders.ack(entry_id)  # after the work; what fails is not acknowledged
