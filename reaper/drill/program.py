"""The worker program of a drill, as a user would write it. Each job sleeps for its duration in the trace.

    DRILL_LEDGER=<file> worker run reaper.drill.program:worker

Start and end of each job go into a file with one ``write`` a line, so that they outlive kill -9.
"""

import hashlib
import os
import signal
import time

import anyio

from workers import Job, Worker

worker = Worker()
ledger = os.open(os.environ["DRILL_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(step: str, job: Job, *details: str) -> None:
    """Write one line of the ledger."""
    words = [step, job.fields[b"n"].decode(), job.entry_id, str(os.getpid()), str(time.time()), *details]
    os.write(ledger, f"{' '.join(words)}\n".encode())


@worker.handler
async def handle(job: Job) -> None:
    """Run one job."""
    note("start", job, hashlib.sha256(job.fields[b"payload"]).hexdigest())
    if b"poison" in job.fields:  # a bug that kills every process that runs this job
        os.kill(os.getpid(), signal.SIGKILL)
    await anyio.sleep(int(job.fields[b"duration_ms"]) / 1000)
    note("done", job)
