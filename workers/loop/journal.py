"""Writes `delivered` and `started` at journal level ``full``, without ever holding up a job.

Events go out on a connection of their own, one batch behind the other, without waiting for replies. A job waits until
its events are with the operating system, so that they arrive even if its handler kills the process. It never waits for
Redis. While Redis is out of reach, events are dropped and counted.
"""

import logging
from collections import deque

import anyio
from anyio.lowlevel import checkpoint
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, RedisError

from workers.loop.change import Change
from workers.loop.facts import DeliveryFacts
from workers.loop.job import Job
from workers.protocol.calls.settlement import WORDS_PER_EVENT, WRITE_EVENTS, events_command, read_written
from workers.protocol.connection import connection_of_ones_own
from workers.protocol.events import EventName
from workers.protocol.meaning import in_words, is_contact_error
from workers.runtime.pauses import pause_s
from workers.settings import WorkerSettings

logger = logging.getLogger(__name__)

BACKLOG = 10_000
"""Events that may wait to be sent, or for their reply; beyond it the newest are dropped."""
MAX_BATCH = 500
"""Events in one call: it takes the server less than two milliseconds."""
LONGEST_WAIT_S = 0.1
"""How long a job waits for a connection that takes no more bytes."""


class JournalWriter:
    """Sends events as they come. `run` must be running."""

    def __init__(self, client: Redis, settings: WorkerSettings, consumer: str) -> None:
        self._client = client
        self._journal = settings.keys.journal
        self._maxlen = settings.journal_maxlen
        self._facts = DeliveryFacts(settings.group, consumer, settings.recovery, settings.job_type_field)
        self._noted: list[str | bytes] = []
        self._waiting = 0
        """Events that are noted and not answered."""
        self._unanswered: deque[int] = deque()
        """Sizes of the batches that were sent."""
        self._is_sending = False
        self._connected = False
        self._tried = anyio.Event()
        self._refused = False
        self._failures = 0
        self._arrived = Change()
        self._progress = Change()
        self._next_sent, self._sent = Change(), Change()
        """The batch that is being gathered, and the one before, have left this process."""
        self.dropped = 0

    # ---- for the worker

    def note(self, event: EventName, job: Job) -> None:
        """Queue an event about a delivery. Returns at once."""
        if self._waiting >= BACKLOG:
            self.dropped += 1
            return
        self._waiting += 1
        self._noted += (event, job.raw_id, self._facts.of_delivery(job))
        self._arrived.notify()

    async def wait_until_sent(self) -> None:
        """Wait until all events so far have left this process, or return at once without contact.

        Later events are not waited for, so jobs start in their order.
        """
        if self._connected and (self._noted or self._is_sending):
            with anyio.move_on_after(LONGEST_WAIT_S):
                await (self._next_sent if self._noted else self._sent).wait()

    async def wait_until_answered(self) -> None:
        """Wait until everything that was noted has arrived, or was given up."""
        while self._waiting:
            await self._progress.wait()

    async def wait_until_connected(self) -> None:
        """Wait until there is a first connection, or none is possible. A job that starts earlier writes no event."""
        await self._tried.wait()

    # ---- sending

    async def run(self) -> None:
        """Send until cancelled, reconnecting where needed."""
        while True:
            try:
                await self._send_on_one_connection()
            except* (RedisError, OSError) as errors:
                self._failures += 1
                self._learn_from(errors)
            self._give_up_what_was_sent()
            await anyio.sleep(pause_s(self._failures))

    def _learn_from(self, errors: BaseExceptionGroup[Exception]) -> None:
        refusals = [error for error in errors.exceptions if not is_contact_error(error)]
        for error in refusals:
            if not isinstance(error, NoScriptError):  # the next connection loads it
                self._log_refused(str(error))
                self._unanswered.append(len(self._noted) // WORDS_PER_EVENT)
                self._noted.clear()

    def _give_up_what_was_sent(self) -> None:
        lost = sum(self._unanswered)
        self.dropped += lost
        self._waiting -= lost
        self._unanswered.clear()
        self._connected = self._is_sending = False
        self._tried.set()
        for waited_for in (self._sent, self._next_sent, self._progress):
            waited_for.notify()

    async def _send_on_one_connection(self) -> None:
        await self._client.script_load(WRITE_EVENTS.source)
        async with connection_of_ones_own(self._client) as connection, anyio.create_task_group() as tasks:
            self._connected = True
            self._tried.set()
            tasks.start_soon(self._read_replies, connection)
            while True:
                await self._send_what_is_noted(connection)

    async def _send_what_is_noted(self, connection: AbstractConnection) -> None:
        while not self._noted:
            await self._arrived.wait()
        await self._gather()
        words = self._noted[: WORDS_PER_EVENT * MAX_BATCH]
        del self._noted[: WORDS_PER_EVENT * MAX_BATCH]
        if not self._noted:  # otherwise the waiting jobs would wait for the later events, too
            self._sent, self._next_sent = self._next_sent, self._sent
        self._is_sending = True
        self._unanswered.append(len(words) // WORDS_PER_EVENT)
        await connection.send_command(*events_command(self._journal, self._maxlen, words))
        self._is_sending = False
        self._sent.notify()
        self._progress.notify()

    async def _gather(self) -> None:
        """Let the event loop turn while more arrives. Runners start one after the other, each with its event."""
        gathered = 0
        while gathered < len(self._noted) < WORDS_PER_EVENT * MAX_BATCH:
            gathered = len(self._noted)
            await checkpoint()

    async def _read_replies(self, connection: AbstractConnection) -> None:
        while True:
            while not self._unanswered:
                await self._progress.wait()
            refusal = read_written(await connection.read_response())
            self._failures = 0
            answered = self._unanswered.popleft()
            self._waiting -= answered
            if refusal:
                self.dropped += answered
                self._log_refused(refusal)
            self._progress.notify()

    def _log_refused(self, error: str) -> None:
        if not self._refused:
            self._refused = True
            logger.error("the journal %s refuses events: %s. Jobs go on without it", self._journal, in_words(error))
