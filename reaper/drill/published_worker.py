"""The worker of a "self-healing pool" as it is usually published: every loop auto-claims what looks stalled.

    published_worker.py STREAM GROUP NAME LOOPS MIN_IDLE_MS LIMIT

Plain redis-py; it has never heard of stream-reaper. Nothing is mended here: the cursor is not kept, a batch of ten is
read and run one by one, nothing is extended, nobody checks whose the job still is, and a job over the limit is
acknowledged and logged. Published with 30 s of idle time and reads that block for 2 s; both are scaled alike.
LOOPS loops run in threads, each a consumer of its own, so that a process runs as many jobs at a time as one of ours.
"""

import hashlib
import os
import signal
import sys
import threading
import time
from typing import Any

import redis

COUNT = 10
stream, group, name = sys.argv[1:4]
loops, min_idle_ms, limit = map(int, sys.argv[4:])
block_ms = max(1, min_idle_ms * 2_000 // 30_000)
stopping = threading.Event()


def note(step: str, entry_id: bytes, job: dict[bytes, bytes], *more: str) -> None:
    """Write one line of the drill's ledger, in one write: other threads write too."""
    words = [step, job[b"n"].decode(), entry_id.decode(), str(os.getpid()), str(time.time()), *more]
    os.write(sys.stdout.fileno(), f"{' '.join(words)}\n".encode())


def process(entry_id: bytes, job: dict[bytes, bytes]) -> None:
    """Run one job."""
    note("start", entry_id, job, hashlib.sha256(job[b"payload"]).hexdigest())
    if b"poison" in job:  # a bug that kills every process that runs this job
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(int(job[b"duration_ms"]) / 1000)
    note("done", entry_id, job)


def loop(client: Any, consumer: str) -> None:
    """Claim, check, run; read, run; again and again."""
    while not stopping.is_set():
        _, claimed, *_ = client.xautoclaim(stream, group, consumer, min_idle_ms, "0-0", count=COUNT)
        for entry_id, job in claimed:
            note("claim", entry_id, job)
        for entry_id, job in claimed:
            pending = client.xpending_range(stream, group, entry_id, entry_id, 1)
            if pending and pending[0]["times_delivered"] > limit:
                note("dropped", entry_id, job)
            else:
                process(entry_id, job)
            client.xack(stream, group, entry_id)
        for _, entries in client.xreadgroup(group, consumer, {stream: ">"}, count=COUNT, block=block_ms):
            for entry_id, job in entries:
                note("read", entry_id, job)
            for entry_id, job in entries:
                process(entry_id, job)
                client.xack(stream, group, entry_id)


def end_process(failure: threading.ExceptHookArgs) -> None:
    """A loop that fails ends the process; its supervisor starts another."""
    threading.__excepthook__(failure)
    os._exit(1)


def main() -> None:
    """Run until SIGTERM, and the jobs at hand to their end."""
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    threading.excepthook = end_process
    client = redis.Redis.from_url(os.environ["REDIS_URL"], max_connections=loops + 1)
    threads = [threading.Thread(target=loop, args=(client, f"{name}.{n}"), daemon=True) for n in range(1, loops + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


main()
