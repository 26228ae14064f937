"""Enqueues jobs: each once, now or later. A bare ``XADD`` from any language does as well; this adds what it cannot.

::

    async with Producer("redis://127.0.0.1:6379/0", "orders") as orders:
        job_id = await orders.enqueue({"order": 17})
        await orders.enqueue({"order": 17}, job_id="reminder-17", delay=3600)

For programs without asyncio there is `workers.sync_producer`.
"""

from collections.abc import Iterable
from typing import Self

import anyio
from redis.asyncio import Redis

from workers.new_jobs import DEFAULT_MAX_BYTES, Fields, NewJob
from workers.outbox import DEFAULT_DEDUP_WINDOW, DEFAULT_REPLICAS_TIMEOUT, Call, HasRedis, Outbox, address_of
from workers.protocol.calls.enqueueing import enqueue
from workers.protocol.connection import commands_client, drop_idle
from workers.protocol.messages import text
from workers.runtime.event_loop import require_asyncio
from workers.runtime.settings import Duration
from workers.telemetry.sending import sending


class Producer:
    """Enqueues jobs of one stream. Give it Redis's address, an async client (it stays yours), or settings.

    ``dedup_window``: how long a ``job_id`` is remembered after its job became ready (at least a minute). ``max_bytes``:
    the largest job, all fields together. ``min_replicas_acked``: how many replicas of Redis must say that they have a
    job (``WAIT``) before `enqueue` returns, within ``replicas_timeout``; a client of yours needs a longer timeout.

    Raises ConfigurationError for a stream name, a window or a client that cannot work.
    """

    def __init__(
        self,
        redis: "str | Redis | HasRedis",
        stream: str,
        *,
        dedup_window: Duration = DEFAULT_DEDUP_WINDOW,
        max_bytes: int = DEFAULT_MAX_BYTES,
        min_replicas_acked: int = 0,
        replicas_timeout: Duration = DEFAULT_REPLICAS_TIMEOUT,
    ) -> None:
        self._outbox = Outbox(stream, dedup_window, max_bytes, min_replicas_acked, replicas_timeout)
        self._owns_client = not isinstance(redis, Redis)
        if isinstance(redis, Redis):
            self._client = redis
        else:
            address = address_of(redis, "a client of redis.asyncio (a SyncProducer takes others)")
            self._client = commands_client(address, key=stream, timeout_s=self._outbox.timeout_s)

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._outbox.stream

    async def aclose(self) -> None:
        """Close the connections, unless the client was given to us; also where we are being cancelled."""
        if self._owns_client:
            with anyio.CancelScope(shield=True):
                await self._client.aclose()

    async def __aenter__(self) -> Self:
        require_asyncio("a producer")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def enqueue(
        self,
        fields: Fields,
        *,
        job_id: str | bytes | None = None,
        delay: Duration | None = None,
        visibility_timeout: Duration | None = None,
        timeout: Duration | None = None,
    ) -> str:
        """Enqueue one job; return its ID. Durations are seconds or timedeltas.

        ``job_id``: 1 to 256 bytes; given twice within the dedup window it is one job, the first. ``delay``: the job is
        ready only then. ``visibility_timeout`` lengthens the group's for this job; ``timeout``: how long it may run.

        Raises InvalidJobError before anything is sent, UnreachableError where nobody knows whether it was enqueued,
        NotReplicatedError where it was, and fewer than `min_replicas_acked` replicas have said so in time, and what
        redis-py raises where Redis refused it (no memory left, for example): then it was not.
        """
        return (await self.enqueue_many([NewJob(fields, job_id, delay, visibility_timeout, timeout)]))[0]

    async def enqueue_many(self, jobs: Iterable[NewJob | Fields]) -> list[str]:
        """Enqueue jobs in their order; return their IDs. Each is checked before the first is sent.

        Large numbers go out in several calls, each of which is all or nothing. Raises as `enqueue`; what earlier
        calls have enqueued stays, and so does what a NotReplicatedError tells of. Later calls are not made then.
        """
        require_asyncio("a producer")
        packed = self._outbox.pack(jobs)
        with sending(self.stream, packed):
            for call in self._outbox.calls(packed):
                await self._send(call)
        return [text(job.job_id) for job in packed]

    async def _send(self, call: Call) -> None:
        while True:
            try:
                await enqueue(self._client, call.request)
            except Exception as error:
                pause = call.pause_after(error)
                if pause is None:
                    raise
                await drop_idle(self._client, error)
                await anyio.sleep(pause)
            else:
                return
