"""Enqueues jobs with delays, job IDs and safe repetition. A bare ``XADD`` from any language works as well.

::

    async with Producer("orders", "redis://127.0.0.1:6379/0") as orders:
        await orders.enqueue({"order": 17}, job_id="reminder-17", delay=3600)

Programs without asyncio use `workers.sync_producer`.
"""

import asyncio
from collections.abc import Iterable
from typing import Self

import anyio
from redis.asyncio import Redis

from workers.new_jobs import Fields, NewJob
from workers.outbox import BaseProducer, EnqueueCall, JobId
from workers.protocol.calls.enqueueing import ENQUEUE
from workers.protocol.connection import commands_client, drop_idle
from workers.protocol.errors import ConfigurationError
from workers.runtime.event_loop import require_asyncio
from workers.runtime.settings import Duration
from workers.telemetry.sending import sending

MAX_CALLS = 16
"""Calls that are under way at the same time, each on a connection of its own. Further calls wait for their turn."""


class Producer(BaseProducer[Redis]):
    """Enqueues jobs of one stream.

    All tasks of one event loop may share a producer. It can move to another event loop after the first one is closed.

    ``redis`` is the address of Redis. Without it, ``REAPER_REDIS_URL`` or else ``REDIS_URL`` counts. The producer
    remembers a ``job_id`` for ``dedup_window`` after its job became ready, at least for a minute. A job has at most
    ``max_bytes``, all fields together. Raises ConfigurationError if the name, the window or the address is invalid.
    """

    _turns: asyncio.Semaphore
    _loop: asyncio.AbstractEventLoop | None = None

    def _connect(self) -> Redis:
        self._turns = asyncio.Semaphore(MAX_CALLS)
        return commands_client(self._address, key=self.stream, max_connections=MAX_CALLS)

    async def aclose(self) -> None:
        """Close the connections, also during a cancellation."""
        if not (self._loop and self._loop.is_closed()):
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
        """Enqueue one job, and return its ID. The attribute ``is_new`` of the ID shows whether the job is new.

        The fields are a mapping or pairs. A ``job_id`` has 1 to 256 bytes without commas and control characters. The
        same ID within the dedup window is the same job. The job becomes ready after ``delay``. It can have a longer
        ``visibility_timeout`` than its group, and one delivery may run for ``timeout``. All three are in seconds, or
        timedeltas.

        It waits for its turn and for Redis. During an outage it gives up after about 15 seconds.

        Raises InvalidJobError or ConfigurationError if an argument is invalid. The job was not sent then. Raises
        UnreachableError if Redis did not answer. The job may have been enqueued then. Raises redis.ResponseError if
        Redis rejected the job, for example because its memory is full.
        """
        return (await self.enqueue_many([NewJob(fields, job_id, delay, visibility_timeout, timeout)]))[0]

    async def enqueue_many(self, jobs: Iterable[NewJob | Fields]) -> list[JobId]:
        """Enqueue jobs in their order, and return their IDs. All are checked before the first one is sent.

        Many jobs are sent in several calls. Each call enqueues all of its jobs or none. Errors are those of `enqueue`.
        After an error, jobs of earlier calls stay enqueued, and later calls are not made.
        """
        self._enter_loop()
        packed = self._pack(jobs)
        with sending(self.stream, packed):
            return [job_id for call in self._calls(packed) for job_id in await self._send(call)]

    def _enter_loop(self) -> None:
        """Belong to the running event loop. Raises ConfigurationError if the producer has another one."""
        loop = require_asyncio("a producer")
        if self._loop is loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                raise ConfigurationError(
                    f"the producer of {self.stream!r} belongs to another event loop. Make one for each loop, or use "
                    "a SyncProducer."
                )
            self._client = self._connect()  # the former connections belong to the closed loop
        self._loop = loop

    async def _send(self, call: EnqueueCall) -> list[JobId]:
        while True:
            try:
                async with self._turns:
                    return call.ids(await ENQUEUE.run(self._client, *call.request.words()))
            except Exception as error:  # noqa: BLE001 - raised again, unless it is an outage
                pause = call.pause_after(error)
                await drop_idle(self._client, error)
                await anyio.sleep(pause)
