"""The worker of the picture: some jobs take longer, some are rejected for good."""

import random

import anyio

from workers import Job, Reject, Worker

worker = Worker("orders", "billing", concurrency=4, visibility_timeout=3, max_deliveries=3)


@worker.handler
async def bill(job: Job) -> None:
    """Take a while; a card may be declined."""
    await anyio.sleep(random.uniform(0.2, 0.8))
    if job.fields.get(b"card") == b"expired":
        raise Reject("card expired")
    if job.fields.get(b"card") == b"unknown":
        raise RuntimeError("payment provider: no such account")
