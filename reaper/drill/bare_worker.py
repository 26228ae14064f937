"""A plain redis-py loop without stream-reaper, as many users have it."""

import hashlib
import os
import signal
import sys
import time
from typing import Any

import redis

stream, group, consumer = sys.argv[1:]
client: Any = redis.Redis.from_url(os.environ["REDIS_URL"])
stopping: list[int] = []
claim = {"claim_min_idle_time": int(os.environ["CLAIM_MS"])} if "CLAIM_MS" in os.environ else {}  # 10**9: in place
signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))

while not stopping:
    for _, entries in client.xreadgroup(group, consumer, {stream: ">"}, count=1, block=1000, **claim):
        for entry_id, job, *told in entries:  # with CLAIM, also how long it was idle, and its deliveries
            if told and told[0] < 0:  # the server's clock was set back, and another worker runs it
                client.xclaim(stream, group, "returned-by-reaper", 0, [entry_id], retrycount=told[1], justid=True)
                continue
            who = f"{job[b'n'].decode()} {entry_id.decode()} {os.getpid()}"
            print("start", who, time.time(), hashlib.sha256(job[b"payload"]).hexdigest(), flush=True)
            if b"poison" in job:  # a bug that kills every process that runs this job
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(int(job[b"duration_ms"]) / 1000)
            print("done", who, time.time(), flush=True)
            client.xack(stream, group, entry_id)
