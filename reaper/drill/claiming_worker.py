"""The worker of a "self-healing pool" as it is usually published: loops that also claim what looks stalled.

    claiming_worker.py STREAM GROUP NAME LOOPS MIN_IDLE_MS LIMIT

Plain redis-py. Nothing is mended here: a loop does not keep the cursor, runs claimed jobs one by one, extends nothing,
does not check who owns a job by now, and acknowledges and logs a job over the limit. Published with an idle time of
30 s and reads that block for 2 s; both are scaled alike.
"""

import hashlib
import os
import signal
import sys
import threading
import time
from typing import Any

import redis

stream, group, name, *numbers = sys.argv[1:]
loops, min_idle_ms, limit = map(int, numbers)
block_ms = max(1, min_idle_ms * 2_000 // 30_000)
stopping = threading.Event()


def note(step: str, entry_id: bytes, job: dict[bytes, bytes], *more: str) -> None:
    """Write one line of the drill's ledger, in one write: other threads write too."""
    words = [step, job[b"n"].decode(), entry_id.decode(), str(os.getpid()), str(time.time()), *more]
    os.write(sys.stdout.fileno(), f"{' '.join(words)}\n".encode())


def run(client: Any, entry_id: bytes, job: dict[bytes, bytes]) -> None:
    """Run one job, and acknowledge it."""
    note("start", entry_id, job, hashlib.sha256(job[b"payload"]).hexdigest())
    if b"poison" in job:  # a bug that kills every process that runs this job
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(int(job[b"duration_ms"]) / 1000)
    note("done", entry_id, job)
    client.xack(stream, group, entry_id)


def loop(client: Any, consumer: str) -> None:
    """Claim and run, read and run, until told to stop."""
    while not stopping.is_set():
        _, claimed, *_ = client.xautoclaim(stream, group, consumer, min_idle_ms, "0-0", count=10)
        for entry_id, job in claimed:
            pending = client.xpending_range(stream, group, entry_id, entry_id, 1)
            if pending and pending[0]["times_delivered"] > limit:
                print("gave up", entry_id.decode(), file=sys.stderr)
                client.xack(stream, group, entry_id)
            else:
                run(client, entry_id, job)
        for _, entries in client.xreadgroup(group, consumer, {stream: ">"}, count=1, block=block_ms):
            for entry_id, job in entries:
                run(client, entry_id, job)


def end_process(failure: threading.ExceptHookArgs) -> None:
    """End the process with the loop that failed; its supervisor starts another."""
    threading.__excepthook__(failure)
    os._exit(1)


signal.signal(signal.SIGTERM, lambda *_: stopping.set())
threading.excepthook = end_process
shared = redis.Redis.from_url(os.environ["REDIS_URL"], max_connections=loops + 1)
threads = [threading.Thread(target=loop, args=(shared, f"{name}.{n}"), daemon=True) for n in range(1, loops + 1)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
