"""Listens for notices on Pub/Sub channels. A process sends a notice when it schedules an earlier job than before.

All channels share one connection, which is used only while `run` runs. A notice is a hint and can be lost with the
connection. So all waiters wake up after each connection, and they also check the schedule from time to time.
"""

import logging
from collections.abc import Callable, Iterable

import anyio
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from workers.protocol.connection import COMMAND_TIMEOUT_S, own_connection, reader_client
from workers.protocol.log_fields import fields
from workers.protocol.meaning import in_words, is_contact_error
from workers.protocol.messages import text

logger = logging.getLogger(__name__)

PING_S = 10.0
"""How often the server is pinged, because a silent connection looks like a dead one."""
RECONNECT_S = 1.0

Wake = Callable[[], None]


def notices_client(url: str, key: str = "") -> Redis:
    """Return a client for `Notices`, with one connection. In a cluster it connects to the node of ``key``."""
    return reader_client(url, key=key, block_ms=round(PING_S * 1000), timeout_s=COMMAND_TIMEOUT_S)


class Notices:
    """Wakes the waiters of each channel. The caller closes the client."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._wakes: dict[str, list[Wake]] = {}
        self._changed = anyio.Event()
        self._is_logged = False

    def add(self, wake: Wake, channels: Iterable[str]) -> None:
        """Call ``wake`` at every notice on ``channels``, and after every connection."""
        for name in channels:
            self._wakes.setdefault(name, []).append(wake)
        self._changed.set()

    def remove(self, wake: Wake, channels: Iterable[str]) -> None:
        """Call ``wake`` no more for ``channels``."""
        for name in channels:
            self._wakes[name].remove(wake)
            if not self._wakes[name]:
                del self._wakes[name]
        self._changed.set()

    async def run(self) -> None:
        """Listen until cancelled. Connect again after errors of Redis."""
        while True:
            try:
                await self._listen()
            except* (RedisError, OSError) as errors:
                self._log_once(errors.exceptions[0])
            await anyio.sleep(RECONNECT_S)

    def _log_once(self, error: Exception) -> None:
        """Log once that the user lacks the permission. Other parts of the process log outages."""
        if not (is_contact_error(error) or self._is_logged):
            self._is_logged = True
            logger.warning(
                "scheduled jobs can start some seconds late, notices are not available: %s",
                fields(cause=in_words(error)),
            )

    async def _listen(self) -> None:
        async with own_connection(self._client) as connection, anyio.create_task_group() as tasks:
            tasks.start_soon(self._subscribe, connection)
            await self._read(connection)

    async def _subscribe(self, connection: AbstractConnection) -> None:
        """Subscribe to the channels that have waiters, unsubscribe from the others, and ping meanwhile."""
        subscribed = set[str]()
        while True:
            self._changed = anyio.Event()  # before the calls, because a channel can be added during them
            wanted = set(self._wakes)
            if new := wanted - subscribed:
                await connection.send_command("SUBSCRIBE", *sorted(new))
            if old := subscribed - wanted:
                await connection.send_command("UNSUBSCRIBE", *sorted(old))
            if wanted == subscribed:
                await connection.send_command("PING")
            subscribed = wanted
            with anyio.move_on_after(PING_S):
                await self._changed.wait()

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            reply = await connection.read_response()
            # A subscription wakes the waiters, too, because notices before it were missed.
            if isinstance(reply, list) and reply[0] in (b"subscribe", b"message"):
                for wake in tuple(self._wakes.get(text(reply[1]), ())):
                    wake()
