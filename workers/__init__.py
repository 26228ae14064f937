"""Consume jobs from Redis Streams: read, execute, settle. Usable without the reaper.

::

    from workers import Job, Worker

    worker = Worker("orders", "billing")

    @worker.handler
    async def handle(job: Job) -> None:
        ...

Run it by ``worker run module:worker``, or inside a program by ``await worker.run()``. A handler that returns
acknowledges its job; one that raises makes it ready again after a backoff, and the last of `max_deliveries`
deliveries makes it a dead letter. `Retry` and `Reject` say so on purpose. A `Producer` enqueues jobs.
"""

from workers.execution import Reject, Retry
from workers.job import Job
from workers.producer import NewJob, Producer
from workers.settings import WorkerSettings
from workers.worker import Worker

__all__ = ["Job", "NewJob", "Producer", "Reject", "Retry", "Worker", "WorkerSettings"]
