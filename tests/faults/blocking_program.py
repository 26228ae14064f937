"""A worker whose handlers take their time, for `worker run tests.faults.blocking_program:worker` (or ``:in_thread``).

It prints ``start``, ``completion`` and ``cancelled`` with the job's ID, before anything else can run in the process.
Fields: ``block`` blocks the event loop for so many seconds, in the first delivery only; ``sleep`` waits without
blocking it.
"""

import asyncio
import os
import time

from workers import Job, Worker

worker = Worker("orders", "billing")
in_thread = Worker("orders", "billing")


@worker.handler
async def handle(job: Job) -> None:
    """Do what the job's fields say."""
    say("start", job)
    if b"block" in job.fields and job.deliveries == 1:
        time.sleep(float(job.fields[b"block"]))  # noqa: ASYNC251 - the point of it
    try:
        await asyncio.sleep(float(job.fields.get(b"sleep", b"0")))
    except asyncio.CancelledError:
        say("cancelled", job)
        raise
    say("completion", job)


@in_thread.handler
def handle_in_thread(job: Job) -> None:
    """Do what the job's fields say, in a thread."""
    say("start", job)
    time.sleep(float(job.fields.get(b"sleep", b"0")))
    say("completion", job)


def say(what: str, job: Job) -> None:
    """Print one line at once: threads do it side by side."""
    os.write(1, f"{what} {job.id}\n".encode())
