"""A user's program, run as a process by the tests: ``worker run tests.workers.program``."""

import os
import signal

from tests.support.gate import passed, wait_at
from tests.support.knobs import stop_soon
from workers import Job, Worker

stop_soon()
worker = Worker("orders", "billing")
in_thread = Worker("orders", "billing")


@worker.handler
async def handle(job: Job) -> None:
    """Do what the job's fields say."""
    print(f"started {job.id}", flush=True)  # noqa: T201
    if b"kill" in job.fields:
        os.kill(os.getpid(), signal.SIGKILL)
    if b"wait" in job.fields:
        await passed(job.fields[b"wait"].decode())


@in_thread.handler
def handle_in_thread(job: Job) -> None:
    """Wait at the gate that the job names, where nobody can stop it."""
    print(f"started {job.id}", flush=True)  # noqa: T201
    wait_at(job.fields[b"wait"].decode())
