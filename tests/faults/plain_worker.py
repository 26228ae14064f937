"""A bare redis-py worker, as a program that has never heard of us: reads a batch, runs it, acknowledges it as a whole.

A job with a field ``hold`` is held for ever, one with ``poison`` kills the process. Started with the address of Redis,
stream, group, its consumer's name, how much it reads at a time, and a stream to note executions in (or none).
"""

import os
import signal
import sys
from typing import Any

import redis

url, stream, group, consumer, count, *ledger = sys.argv[1:]
client: Any = redis.Redis.from_url(url)
held = 0


def note(what: str, job: dict[bytes, bytes]) -> None:
    for key in ledger:
        client.xadd(key, {"what": what, "job": job[b"n"], "generation": 0})


while True:
    for _, entries in client.xreadgroup(group, consumer, {stream: ">"}, count=int(count), block=1000):
        done = []
        for entry_id, job in entries:
            note("start", job)
            if b"poison" in job:
                note("ending", job)
                os.kill(os.getpid(), signal.SIGKILL)
            if b"hold" in job:
                held += 1
                continue
            note("completion", job)
            done.append(entry_id)
        if done:
            client.xack(stream, group, *done)
        print(f"read {len(entries)}, holds {held}.", flush=True)  # noqa: T201 - the tests read it
