"""Enqueues jobs: each once, now or later. A bare ``XADD`` from any language does as well; this adds what it cannot.

::

    async with Producer("orders", "redis://127.0.0.1:6379/0") as orders:
        job_id = await orders.enqueue({"order": 17})
        await orders.enqueue({"order": 17}, job_id="reminder-17", delay=3600)

For programs without asyncio there is `workers.sync_producer`.
"""

import asyncio
from collections.abc import Iterable
from typing import Self

import anyio
from redis.asyncio import Redis

from workers.new_jobs import DEFAULT_MAX_BYTES, Fields, NewJob
from workers.outbox import DEFAULT_DEDUP_WINDOW, DEFAULT_REPLICAS_TIMEOUT, Call, HasRedis, JobId, Outbox, address_of
from workers.protocol.calls.enqueueing import enqueue
from workers.protocol.connection import commands_client, drop_idle
from workers.protocol.errors import ConfigurationError
from workers.protocol.given_clients import another_loop, check_loop, checked
from workers.protocol.meaning import is_contact_error
from workers.runtime.event_loop import require_asyncio
from workers.runtime.settings import Duration
from workers.telemetry.sending import sending

MAX_CALLS = 16
"""Calls that are under way at the same time, each on a connection of its own; the others wait for their turn."""


class Producer:
    """Enqueues jobs of one stream. Give it Redis's address, settings, or an async client, which stays yours.

    Without any of these, the environment names the address: ``REAPER_REDIS_URL``, or else ``REDIS_URL``. Any number of
    tasks of one event loop may use it. It may go on in another event loop once that one is closed, unless it was given
    a client: redis-py's connections belong to one event loop.

    ``dedup_window``: how long a ``job_id`` is remembered after its job became ready (at least a minute). ``max_bytes``:
    the largest job, all fields together. ``min_replicas_acked``: how many replicas of Redis must say that they have a
    job (``WAIT``) before `enqueue` returns, within ``replicas_timeout``; a client of yours needs a longer timeout.

    Raises ConfigurationError for a stream name, a window or a client that cannot work.
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
        self._address = ""
        if not isinstance(redis, Redis):
            self._address = address_of(redis, "a client of redis.asyncio (a SyncProducer takes others)")
        self._outbox = Outbox(stream, dedup_window, max_bytes, min_replicas_acked, replicas_timeout)
        self._client = checked(redis) if isinstance(redis, Redis) else self._connect()
        self._turns = asyncio.Semaphore(MAX_CALLS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lost: Exception | None = None
        """Why the latest call has got no answer; None = it has."""

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._outbox.stream

    def _connect(self) -> Redis:
        timeout_s = self._outbox.timeout_s
        return commands_client(self._address, key=self.stream, timeout_s=timeout_s, max_connections=MAX_CALLS)

    async def aclose(self) -> None:
        """Close the connections, unless the client was given to us; also where we are being cancelled."""
        if self._owns_client and not (self._loop and self._loop.is_closed()):
            with anyio.CancelScope(shield=True):
                await self._client.aclose()

    async def __aenter__(self) -> Self:
        self._enter_loop()
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
    ) -> JobId:
        """Enqueue one job; return its ID, which says whether the job is new. Durations are seconds or timedeltas.

        ``job_id``: 1 to 256 bytes; given twice within the dedup window it is one job, the first. ``delay``: the job is
        ready only then. ``visibility_timeout`` lengthens the group's for this job; ``timeout``: how long it may run.

        Raises InvalidJobError or ConfigurationError before anything is sent, UnreachableError if it is unknown whether
        the job was enqueued, NotReplicatedError if it was, and fewer than `min_replicas_acked` replicas confirmed it in
        time, and redis-py's ResponseError if Redis rejected it (no memory left, for example): then it was not.
        """
        return (await self.enqueue_many([NewJob(fields, job_id, delay, visibility_timeout, timeout)]))[0]

    async def enqueue_many(self, jobs: Iterable[NewJob | Fields]) -> list[JobId]:
        """Enqueue jobs in their order; return their IDs. Each is checked before the first is sent.

        Large numbers of jobs are sent in several calls. Each call enqueues all of its jobs or none. Raises as
        `enqueue`: then later calls are not made, and the jobs of earlier calls stay enqueued.
        """
        self._enter_loop()
        packed = self._outbox.pack(jobs)
        with sending(self.stream, packed):
            return [job_id for call in self._outbox.calls(packed) for job_id in await self._send(call)]

    def _enter_loop(self) -> None:
        """Belong to the running event loop. Raises ConfigurationError if the producer or its client has another one."""
        loop = require_asyncio("a producer")
        if self._loop is loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                raise ConfigurationError(
                    f"the producer of {self.stream} is used in another event loop already: make one for each, or use a "
                    "SyncProducer."
                )
            if not self._owns_client:
                raise another_loop()
            self._client, self._turns = self._connect(), asyncio.Semaphore(MAX_CALLS)  # what was there has gone with it
        if not self._owns_client:
            check_loop(self._client, loop)
        self._loop = loop

    async def _send(self, call: Call) -> list[JobId]:
        while True:
            try:
                async with self._turns:
                    if self._lost is not None:
                        call.give_up_in_time(self._lost)  # where others have found out, nobody waits for his own turns
                    added = await enqueue(self._client, call.request)
            except Exception as error:
                if is_contact_error(error):
                    self._lost = error
                pause = call.pause_after(error)
                if pause is None:
                    raise
                await drop_idle(self._client, error)
                await anyio.sleep(pause)
            else:
                self._lost = None
                return call.ids(added)
