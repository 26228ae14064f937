"""A program of our own worker, for the tests of poison jobs: one with a field ``poison`` kills the process.

Executions are noted in the stream that ``LEDGER`` names. It may be asked to `tests.support.knobs.hurry`.
"""

import os
import signal
from functools import cache

import anyio
from redis.asyncio import Redis

from tests.support.knobs import hurry_if_asked
from tests.support.notes import note
from workers import Job, Worker
from workers.protocol.connection import commands_client

WORK_S = 0.02
"""So long that what was read together with a poison job is not settled when it kills."""

hurry_if_asked()
worker = Worker()
_ledger = os.environ["LEDGER"]


@cache
def _client() -> Redis:
    return commands_client(worker.settings.redis_url)


@worker.handler
async def handle(job: Job) -> None:
    number = job.fields[b"n"].decode()
    await note(_client(), _ledger, "start", number)
    if b"poison" in job.fields:
        os.kill(os.getpid(), signal.SIGKILL)
    await anyio.sleep(WORK_S)
    await note(_client(), _ledger, "completion", number)
