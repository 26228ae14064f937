"""A user's program, run as a process by the tests: ``worker run tests.workers.program``."""

import os
import signal
import time

import anyio

from workers import Job, Worker

worker = Worker("orders", "billing")
in_thread = Worker("orders", "billing")


@worker.handler
async def handle(job: Job) -> None:
    """Do what the job's fields say."""
    print(f"started {job.id}", flush=True)  # noqa: T201
    if b"kill" in job.fields:
        os.kill(os.getpid(), signal.SIGKILL)
    if b"sleep" in job.fields:
        await anyio.sleep(float(job.fields[b"sleep"]))


@in_thread.handler
def handle_in_thread(job: Job) -> None:
    """Sleep as long as the job says, where nobody can stop it."""
    print(f"started {job.id}", flush=True)  # noqa: T201
    time.sleep(float(job.fields[b"sleep"]))
