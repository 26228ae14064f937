"""Worker programs of the benchmarks, as a user would write them.

Run by ``python -m workers run tests.benchmarks.programs:NAME``.
"""

import atexit
import json
import os
import random
import time

import anyio

from tests.benchmarks.bare import FIELD_SENT
from workers import Job, Worker

LEDGER = "BENCHMARK_LEDGER"
"""Environment variable: the file where `finisher` writes a line for each job that it has finished: ID, time of day."""
SHORTEST_S, LONGEST_S = 0.2, 0.6

worker = Worker()
batched = Worker()
holder = Worker()
timed = Worker()
finisher = Worker()


@worker.handler
async def do_nothing(_job: Job) -> None:
    """A job without work, so that only the loop around it costs time."""


@batched.batch_handler(size=100, wait=0.01)
async def do_nothing_together(_jobs: list[Job]) -> None:
    """The same for jobs that come in batches."""


@holder.handler
async def never_end(_job: Job) -> None:
    """A job that is in flight until its worker is killed."""
    await anyio.sleep_forever()


_late_ms: list[float] = []


@timed.handler
async def note_start(job: Job) -> None:
    """Note how long ago the job was sent; the last line of output is the list, in ms."""
    started = time.time()
    if not _late_ms:
        atexit.register(lambda: print(json.dumps(_late_ms)))
    _late_ms.append((started - float(job.fields[FIELD_SENT])) * 1000)


@finisher.handler
async def finish(job: Job) -> None:
    """Work for some tenths of a second, and write down that it is done."""
    await anyio.sleep(random.uniform(SHORTEST_S, LONGEST_S))
    file = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{job.id} {time.time()}\n".encode())
    os.close(file)
