"""A user's program for the tests: one worker, and a producer that is a process of its own."""

import os
import signal
import sys
from collections.abc import Sequence

import anyio

from tests.support.knobs import stop_soon
from workers import Job, Producer, Reject, Worker
from workers.telemetry.setup import exported

stop_soon()
worker, batches = Worker("orders", "billing"), Worker("orders", "billing")


@worker.handler
async def handle(job: Job) -> None:
    """Do what the job's fields say, but for one that was redriven: that is done at once."""
    print(f"started {job.id} delivery {job.deliveries}", flush=True)  # noqa: T201
    if job.generation:
        return
    if b"kills" in job.fields and job.deliveries <= int(job.fields[b"kills"]):
        os.kill(os.getpid(), signal.SIGKILL)
    if b"waits" in job.fields and job.deliveries == 1:
        await anyio.sleep(float(job.fields[b"waits"]))
    if b"fails" in job.fields and job.deliveries <= int(job.fields[b"fails"]):
        raise ValueError("as told")


@batches.batch_handler(size=2, wait=5)
async def handle_batch(jobs: list[Job]) -> list[Reject | None]:
    """Reject the jobs whose field says so."""
    return [Reject("as told") if job.text("rejects") == "1" else None for job in jobs]


async def produce(url: str, pairs: Sequence[str]) -> None:
    """Enqueue one job with these fields."""
    fields = dict(pair.split("=") for pair in pairs)
    async with Producer("orders", url) as orders:
        print(f"enqueued {await orders.enqueue(fields)}", flush=True)  # noqa: T201


if __name__ == "__main__":
    with exported("producer"):
        anyio.run(produce, sys.argv[1], sys.argv[2:])
