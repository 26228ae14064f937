"""Writes `delivered` and `started` at journal level ``full``, without ever holding up a job.

Events go out on a connection of their own, one behind the other, without waiting for replies: what has been noted
is with the operating system before the handler runs, so that it arrives even if the handler kills the process.
While Redis is out of reach, events are dropped and counted.
"""

import logging

import anyio
from redis.asyncio import Connection, Redis
from redis.exceptions import RedisError, ResponseError

from workers.backoff import pause_s
from workers.events import DeliveryFacts
from workers.job import Job
from workers.protocol.events import EventName
from workers.settings import WorkerSettings

logger = logging.getLogger(__name__)

BACKLOG = 10_000
"""Events that may wait to be sent, or for their reply; beyond it the newest are dropped."""


class JournalWriter:
    """Sends events as they come. `run` must be running."""

    def __init__(self, client: Redis, settings: WorkerSettings, consumer: str) -> None:
        self._client = client
        self._journal = settings.keys.journal
        self._maxlen = settings.journal_maxlen
        self._facts = DeliveryFacts(settings.group, consumer, settings.recovery)
        self._noted: list[tuple[EventName, bytes, str]] = []
        self._unanswered = 0
        self._arrived = anyio.Event()
        self._sent = anyio.Event()
        self._refused = False
        self.dropped = 0

    def note(self, event: EventName, job: Job) -> None:
        """Queue an event about a delivery; returns at once. It is sent when the event loop gets its next turn."""
        if len(self._noted) + self._unanswered >= BACKLOG:
            self.dropped += 1
            return
        self._noted.append((event, job.raw_id, self._facts.of_delivery(job) + "}"))
        self._arrived.set()

    async def run(self) -> None:
        """Send until cancelled, reconnecting where needed."""
        failures = 0
        while True:
            try:
                await self._send_on_one_connection()
            except* (RedisError, OSError):
                failures += 1
                self.dropped += self._unanswered
                self._unanswered = 0
                await anyio.sleep(pause_s(failures))

    async def wait_until_answered(self) -> None:
        """Wait until everything that was noted has been answered."""
        while self._noted or self._unanswered:
            self._sent = anyio.Event()
            await self._sent.wait()

    async def _send_on_one_connection(self) -> None:
        pool = self._client.connection_pool
        connection = await pool.get_connection()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_replies, connection)
                while True:
                    await self._send_what_is_noted(connection)
        finally:
            with anyio.CancelScope(shield=True):
                await connection.disconnect(nowait=True)
                await pool.release(connection)

    async def _send_what_is_noted(self, connection: Connection) -> None:
        if not self._noted:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        noted, self._noted = self._noted, []
        self._unanswered += len(noted)
        commands = [
            ("XADD", self._journal, "MAXLEN", "~", self._maxlen, "*", "event", event, "job", job_id, "data", data)
            for event, job_id, data in noted
        ]
        self._sent.set()
        await connection.send_packed_command(connection.pack_commands(commands))

    async def _read_replies(self, connection: Connection) -> None:
        while True:
            if not self._unanswered:
                self._sent = anyio.Event()
                await self._sent.wait()
                continue
            try:
                await connection.read_response()
            except ResponseError as error:
                self._tell_refused(error)
            self._unanswered -= 1
            self._sent.set()

    def _tell_refused(self, error: ResponseError) -> None:
        self.dropped += 1
        if not self._refused:
            self._refused = True
            logger.error("the journal %s refuses events: %s. Jobs go on without it", self._journal, error)
