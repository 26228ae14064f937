"""Enqueues jobs from programs without asyncio, for example Flask, Django, Celery and cron.

::

    orders = SyncProducer("orders", "redis://127.0.0.1:6379/0")
    job_id = orders.enqueue({"order": 17})
"""

from collections.abc import Iterable
from time import sleep
from typing import Self

from redis import Redis

from workers.new_jobs import DEFAULT_MAX_BYTES, Fields, NewJob
from workers.outbox import (
    DEFAULT_DEDUP_WINDOW,
    DEFAULT_REPLICAS_TIMEOUT,
    EnqueueCall,
    HasRedis,
    JobId,
    Outbox,
    address_of,
)
from workers.protocol.calls.enqueueing import enqueue_blocking
from workers.protocol.connection import blocking_client, drop_idle_blocking
from workers.protocol.given_clients import checked
from workers.runtime.settings import Duration
from workers.telemetry.sending import sending

MAX_CONNECTIONS = 16
"""Threads that send at the same time; others wait for them."""


class SyncProducer:
    """Enqueues jobs of one stream, and blocks meanwhile.

    Create one for the whole program. All threads may use it. After a fork, each process opens its own connections. It
    connects when you enqueue the first job.

    Args:
        stream: Name of the stream.
        redis: An address, settings, or a client of redis-py, which stays yours. Default: ``REAPER_REDIS_URL``, or else
            ``REDIS_URL``.
        dedup_window: How long a ``job_id`` is remembered after its job became ready. At least a minute.
        max_bytes: The largest job, all fields together.
        min_replicas_acked: As in `Producer`.
        replicas_timeout: As in `Producer`.

    Raises:
        ConfigurationError: The stream name, the window or the client is invalid.
    """

    def __init__(
        self,
        stream: str,
        redis: "str | Redis | HasRedis | None" = None,
        *,
        dedup_window: Duration = DEFAULT_DEDUP_WINDOW,
        max_bytes: int = DEFAULT_MAX_BYTES,
        min_replicas_acked: int = 0,
        replicas_timeout: Duration = DEFAULT_REPLICAS_TIMEOUT,
    ) -> None:
        self._owns_client = not isinstance(redis, Redis)
        address = ""
        if not isinstance(redis, Redis):
            address = address_of(redis, "a client of redis-py that blocks (a Producer takes those of redis.asyncio)")
        self._outbox = Outbox(stream, dedup_window, max_bytes, min_replicas_acked, replicas_timeout)
        if isinstance(redis, Redis):
            self._client = checked(redis)
        else:
            timeout_s = self._outbox.timeout_s
            self._client = blocking_client(address, key=stream, max_connections=MAX_CONNECTIONS, timeout_s=timeout_s)

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._outbox.stream

    def close(self) -> None:
        """Close the connections. A client that you gave stays open. Do not call it while a thread enqueues."""
        if self._owns_client:
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
        packed = self._outbox.pack(jobs)
        with sending(self.stream, packed):
            return [job_id for call in self._outbox.calls(packed) for job_id in self._send(call)]

    def _send(self, call: EnqueueCall) -> list[JobId]:
        while True:
            try:
                added = enqueue_blocking(self._client, call.request)
            except Exception as error:
                pause = call.pause_after(error)
                if pause is None:
                    raise
                drop_idle_blocking(self._client, error)
                sleep(pause)
            else:
                return call.ids(added)
