"""An example of a worker's program."""

import logging

from workers import Job, Reject, Worker

logger = logging.getLogger("shop")
worker = Worker("orders", "billing", concurrency=16)


@worker.handler
async def bill(job: Job) -> None:
    """Bill an order; the same one may come twice (docs/idempotency.md)."""
    if b"amount" not in job.fields:
        raise Reject("an order without an amount")
    logger.info("billed %s, delivery %d", job.id, job.deliveries)
