"""A user's program whose jobs run until a file is there."""

import math
import os

import anyio

from tests.support.waiting import wait_until
from workers import Job, Worker

worker = Worker("orders", "billing")


@worker.handler
async def run(_job: Job) -> None:
    """Run as long as the test wants."""
    print("started", flush=True)  # noqa: T201
    await wait_until(anyio.Path(os.environ["RELEASED_BY"]).exists, "the test releases it", math.inf)
