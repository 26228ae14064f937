"""A plain redis-py worker that recovers by itself: it reads with CLAIM (Redis 8.4), and a script makes dead letters."""

import itertools
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

import redis

VISIBILITY_MS = int(os.environ.get("VISIBILITY_MS", "30000"))  # longer than the longest job
MAX_DELIVERIES = 3

stream, group, consumer = sys.argv[1:]
client: Any = redis.Redis.from_url(os.environ["REDIS_URL"])
settle = client.register_script(Path(os.environ["SETTLE_LUA"]).read_text())
tag = f"{{{stream}}}"
settings = f"{tag}:group:{group}"
keys = [
    stream, stream, f"{tag}:retry:{group}", f"{tag}:dead:{group}", settings, f"{tag}:scheduled:{group}",
    f"{tag}:quarantine:{group}", f"{tag}:journal",
]  # fmt: skip
caller, numbers = secrets.token_hex(8), itertools.count(1)

for name, value in {"policy": "in-place", "recovery": "embedded", "max_deliveries": MAX_DELIVERIES}.items():
    client.hsetnx(settings, name, value)
client.hsetnx(settings, "visibility_ms", VISIBILITY_MS)

while True:
    read = client.xreadgroup(group, consumer, {stream: ">"}, count=1, block=1000, claim_min_idle_time=VISIBILITY_MS)
    for _, entries in read:
        for entry_id, job, _idle_ms, before in entries:
            if before >= MAX_DELIVERIES:  # the reply lacks this delivery, so `before` + 1 have begun
                verdict = ["reject", entry_id, before + 1, 0, "max_deliveries", "not settled in time", "", 0]
                settle(keys=keys, args=[group, 10_000, consumer, caller, next(numbers), *verdict])
                continue
            print("start", job[b"n"].decode(), flush=True)
            if b"poison" in job:  # a bug that kills every process that runs this job
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(int(job.get(b"duration_ms", b"0")) / 1000)
            client.xack(stream, group, entry_id)
            print("done", job[b"n"].decode(), flush=True)
