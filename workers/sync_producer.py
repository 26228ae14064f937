"""Enqueues jobs from programs without asyncio, for example Flask, Django, Celery and cron.

::

    orders = SyncProducer("orders", "redis://127.0.0.1:6379/0")
    job_id = orders.enqueue({"order": 17})
"""

from collections.abc import Iterable
from time import sleep
from typing import Self

from redis import Redis

from workers.new_jobs import Fields, NewJob
from workers.outbox import BaseProducer, EnqueueCall, JobId
from workers.protocol.calls.enqueueing import ENQUEUE
from workers.protocol.connection import blocking_client
from workers.protocol.meaning import takes_no_more_clients
from workers.runtime.settings import Duration
from workers.telemetry.sending import sending

MAX_CONNECTIONS = 16
"""Threads that send at the same time. Further ones wait for them."""


class SyncProducer(BaseProducer[Redis]):
    """Enqueues jobs of one stream, and blocks meanwhile.

    Create one for the whole program. All threads may use it. After a fork, each process opens its own connections. It
    connects when you enqueue the first job.

    Its arguments and errors are those of `Producer`.
    """

    def _connect(self) -> Redis:
        return blocking_client(self._address, key=self.stream, max_connections=MAX_CONNECTIONS)

    def close(self) -> None:
        """Close the connections. Do not call it while a thread enqueues."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def enqueue(
        self,
        fields: Fields,
        *,
        job_id: str | bytes | None = None,
        delay: Duration | None = None,
        visibility_timeout: Duration | None = None,
        timeout: Duration | None = None,
    ) -> JobId:
        """Enqueue one job, and return its ID. Arguments and errors are those of `Producer.enqueue`.

        It blocks the thread until Redis answers. During an outage it gives up after about 15 seconds.
        """
        return self.enqueue_many([NewJob(fields, job_id, delay, visibility_timeout, timeout)])[0]

    def enqueue_many(self, jobs: Iterable[NewJob | Fields]) -> list[JobId]:
        """Enqueue jobs in their order, and return their IDs, as `Producer.enqueue_many` does."""
        packed = self._pack(jobs)
        with sending(self.stream, packed):
            return [job_id for call in self._calls(packed) for job_id in self._send(call)]

    def _send(self, call: EnqueueCall) -> list[JobId]:
        while True:
            try:
                return call.ids(ENQUEUE.run_blocking(self._client, *call.request.words()))
            except Exception as error:  # noqa: BLE001 - raised again, unless it is an outage
                pause = call.pause_after(error)
                if not takes_no_more_clients(error):  # else the connected ones work, and could not connect again
                    self._client.connection_pool.disconnect(inuse_connections=False)
                sleep(pause)
