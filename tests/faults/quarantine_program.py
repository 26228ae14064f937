"""A program of our own worker, for the tests of poison jobs. Executions are noted in the stream `LEDGER`.

A job with a field ``poison`` waits until the key ``kill`` is set, and then ends the process; one with ``down`` answers
so many times that a service is down, which counts for nothing.
"""

import os
import signal
from functools import cache

import anyio
from redis.asyncio import Redis

from tests.support.knobs import hurry_if_asked
from tests.support.notes import note
from tests.support.waiting import wait_until
from workers import Job, Retry, Worker
from workers.protocol.connection import commands_client

WORK_S = 0.02
"""So long that what was read together with a poison job is not settled when it kills."""
LEDGER, KILL = "ledger", "kill"

hurry_if_asked()
worker = Worker()


@cache
def _client() -> Redis:
    return commands_client(worker.settings.redis_url)


@worker.handler
async def handle(job: Job) -> None:
    number = job.fields[b"n"].decode()
    await note(_client(), LEDGER, "start", number)
    if b"poison" in job.fields:
        await wait_until(lambda: _client().exists(KILL), "it is time to kill", 60)
        await note(_client(), LEDGER, "ending", number)
        os.kill(os.getpid(), signal.SIGKILL)
    await anyio.sleep(WORK_S)
    if await _client().incr(f"runs:{number}") <= int(job.fields.get(b"down", 0)):
        raise Retry("down", counts=False, delay=0)
    await note(_client(), LEDGER, "completion", number)
