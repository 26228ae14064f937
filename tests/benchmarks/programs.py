"""Worker programs of the benchmarks, as a user would write them.

Run by ``python -m workers run tests.benchmarks.programs:NAME``.
"""

import anyio

from workers import Job, Worker

worker = Worker()
holder = Worker()


@worker.handler
async def do_nothing(_job: Job) -> None:
    """A job that costs nothing: what is left is the loop around it."""


@holder.handler
async def never_end(_job: Job) -> None:
    """A job that is in flight until its worker is killed."""
    await anyio.sleep_forever()
