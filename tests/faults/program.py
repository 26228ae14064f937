"""A worker for `worker run tests.faults.program:worker` with jobs that the test steers.

It notes starts and completions in the stream `LEDGER`. A job with the field ``kill`` ends the process at once, as a bug
would; one with ``hold`` waits until the test opens the gate of this process. `hurry_if_asked` applies.
"""

import math
import os
import signal

from tests.support.knobs import hurry_if_asked
from tests.support.notes import note
from tests.support.waiting import wait_until
from workers import Job, Worker
from workers.protocol.connection import commands_client

LEDGER = "ledger"
hurry_if_asked()

worker = Worker()


def gate_of(pid: int) -> str:
    """Return the key that lets the jobs of process ``pid`` go on."""
    return f"gate:{pid}"


@worker.handler
async def handle(job: Job) -> None:
    """Do what the job's fields say."""
    async with commands_client(worker.settings.redis_url) as client:
        await note(client, LEDGER, "start", job.id, job.generation)
        if b"kill" in job.fields:
            os.kill(os.getpid(), signal.SIGKILL)
        if b"hold" in job.fields:
            await wait_until(lambda: client.exists(gate_of(os.getpid())), "the gate is open", math.inf)
        await note(client, LEDGER, "completion", job.id, job.generation)
