"""A worker whose handlers take their time, for `worker run tests.faults.blocking_program:worker` (or ``:in_thread``).

It prints ``start``, ``completion`` and ``cancelled`` with the job's ID, before anything else can run in the process.
Fields: ``wait`` waits at the gate of this path; ``block`` does so too and blocks the event loop, in the first delivery
only; ``sleep`` takes so many seconds.

It may be asked to `tests.support.knobs.hurry`.
"""

import asyncio
import os
import time

from tests.support.gate import passed, wait_at
from tests.support.knobs import hurry_if_asked
from workers import Job, Worker

hurry_if_asked()

worker = Worker("orders", "billing")
in_thread = Worker("orders", "billing")


@worker.handler
async def handle(job: Job) -> None:
    """Do what the job's fields say."""
    say("start", job)
    if b"block" in job.fields and job.deliveries == 1:
        wait_at(job.fields[b"block"].decode())
    try:
        if b"wait" in job.fields:
            await passed(job.fields[b"wait"].decode())
        await asyncio.sleep(float(job.fields.get(b"sleep", b"0")))
    except asyncio.CancelledError:
        say("cancelled", job)
        raise
    say("completion", job)


@in_thread.handler
def handle_in_thread(job: Job) -> None:
    """Do what the job's fields say, in a thread."""
    say("start", job)
    if b"wait" in job.fields:
        wait_at(job.fields[b"wait"].decode())
    time.sleep(float(job.fields.get(b"sleep", b"0")))
    say("completion", job)


def say(what: str, job: Job) -> None:
    """Print one line at once: threads do it side by side."""
    os.write(1, f"{what} {job.id}\n".encode())
