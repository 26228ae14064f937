"""Writes `delivered` and `started` at journal level ``full``, without ever holding up a job.

Events go out on a connection of their own, one behind the other, without waiting for replies. A job waits until its
events are with the operating system, so that they arrive even if its handler kills the process; it never waits for
Redis. While Redis is out of reach, events are dropped and counted.
"""

import logging

import anyio
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from workers.backoff import pause_s
from workers.change import Change
from workers.events import DeliveryFacts
from workers.job import Job
from workers.protocol.events import EventName
from workers.settings import WorkerSettings

logger = logging.getLogger(__name__)

BACKLOG = 10_000
"""Events that may wait to be sent, or for their reply; beyond it the newest are dropped."""


LONGEST_WAIT_S = 0.1
"""How long a job waits for a connection that takes no more bytes."""


class JournalWriter:
    """Sends events as they come. `run` must be running."""

    def __init__(self, client: Redis, settings: WorkerSettings, consumer: str) -> None:
        self._client = client
        self._journal = settings.keys.journal
        self._maxlen = settings.journal_maxlen
        self._facts = DeliveryFacts(settings.group, consumer, settings.recovery)
        self._noted: list[tuple[EventName, bytes, str]] = []
        self._sending = 0
        self._unanswered = 0
        self._connected = False
        self._refused = False
        self._arrived = Change()
        self._progress = Change()
        self.dropped = 0

    # ---- for the worker

    def note(self, event: EventName, job: Job) -> None:
        """Queue an event about a delivery; returns at once."""
        if len(self._noted) + self._unanswered >= BACKLOG:
            self.dropped += 1
            return
        self._noted.append((event, job.raw_id, self._facts.of_delivery(job) + "}"))
        self._arrived.notify()

    async def wait_until_sent(self) -> None:
        """Wait until what was noted has left this process; not at all where there is no contact."""
        with anyio.move_on_after(LONGEST_WAIT_S):
            while self._connected and (self._noted or self._sending):
                await self._progress.wait()

    async def wait_until_answered(self) -> None:
        """Wait until everything that was noted has arrived, or was given up."""
        while self._noted or self._unanswered:
            await self._progress.wait()

    # ---- sending

    async def run(self) -> None:
        """Send until cancelled, reconnecting where needed."""
        failures = 0
        while True:
            try:
                await self._send_on_one_connection()
            except* (RedisError, OSError):
                failures += 1
            self._give_up()
            await anyio.sleep(pause_s(failures))

    def _give_up(self) -> None:
        self.dropped += self._unanswered
        self._unanswered = self._sending = 0
        self._connected = False
        self._progress.notify()

    async def _send_on_one_connection(self) -> None:
        pool = self._client.connection_pool
        connection = await pool.get_connection()
        self._connected = True
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_replies, connection)
                while True:
                    await self._send_what_is_noted(connection)
        finally:
            with anyio.CancelScope(shield=True):
                await connection.disconnect(nowait=True)
                await pool.release(connection)

    async def _send_what_is_noted(self, connection: AbstractConnection) -> None:
        while not self._noted:
            await self._arrived.wait()
        noted, self._noted = self._noted, []
        self._sending = len(noted)
        self._unanswered += len(noted)
        commands = [
            ("XADD", self._journal, "MAXLEN", "~", self._maxlen, "*", "event", event, "job", job_id, "data", data)
            for event, job_id, data in noted
        ]
        await connection.send_packed_command(connection.pack_commands(commands))
        self._sending = 0
        self._progress.notify()

    async def _read_replies(self, connection: AbstractConnection) -> None:
        while True:
            while not self._unanswered:
                await self._progress.wait()
            try:
                await connection.read_response()
            except ResponseError as error:
                self._tell_refused(error)
            self._unanswered -= 1
            if not self._unanswered:
                self._progress.notify()

    def _tell_refused(self, error: ResponseError) -> None:
        self.dropped += 1
        if not self._refused:
            self._refused = True
            logger.error("the journal %s refuses events: %s. Jobs go on without it", self._journal, error)
