"""Listens for notices: whoever schedules something earlier than what is known so far says so on a Pub/Sub channel.

One connection for all channels, used only while `run` runs. A notice is a hint and may be lost with the connection; so
everybody is woken after each (re)connection, and whoever waits for notices looks by himself now and then, too.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import anyio
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from workers.protocol.connection import COMMAND_TIMEOUT_S, connection_of_ones_own, reader_client
from workers.protocol.meaning import in_words, is_contact_error
from workers.protocol.messages import text

logger = logging.getLogger(__name__)

PING_S = 10.0
"""How often we make the server say something, so that a silent connection is told from a dead one."""
RECONNECT_S = 1.0

Wake = Callable[[], None]


def notices_client(url: str, key: str = "") -> Redis:
    """Return a client for `Notices`: one connection, given up after a ping stayed without an answer.

    In a cluster it is one to the node that has ``key``: notices reach all nodes.
    """
    return reader_client(url, key=key, block_ms=round(PING_S * 1000), timeout_s=COMMAND_TIMEOUT_S)


class Notices:
    """Wakes those who wait for the channels they named. The client is its owner's to close."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._wakes: dict[str, list[Wake]] = {}
        self._subscribed: set[str] = set()
        self._changed = anyio.Event()
        self._told = False

    @contextmanager
    def waking(self, wake: Wake, channels: Iterable[str]) -> Iterator[None]:
        """While the block runs, call ``wake`` at every notice on ``channels``, and when one may have been missed."""
        names = list(channels)
        for name in names:
            self._wakes.setdefault(name, []).append(wake)
        self._changed.set()
        try:
            yield
        finally:
            for name in names:
                self._wakes[name].remove(wake)

    async def run(self) -> None:
        """Listen until cancelled. Errors of Redis end nothing: we connect again."""
        while True:
            try:
                await self._listen()
            except* (RedisError, OSError) as errors:
                self._log_once(errors.exceptions[0])
            await anyio.sleep(RECONNECT_S)

    def _log_once(self, error: Exception) -> None:
        """Say once that we may not listen; outages are told by whoever works with Redis."""
        if not (is_contact_error(error) or self._told):
            self._told = True
            logger.warning("no notices of what is scheduled, so it may be some seconds late: %s", in_words(error))

    async def _listen(self) -> None:
        async with connection_of_ones_own(self._client) as connection, anyio.create_task_group() as tasks:
            self._subscribed.clear()
            begun = anyio.Event()
            tasks.start_soon(self._subscribe, connection, begun)
            await begun.wait()
            tasks.start_soon(self._ping, connection)
            await self._read(connection)

    async def _subscribe(self, connection: AbstractConnection, begun: anyio.Event) -> None:
        """Subscribe to what is new. What nobody waits for any more is left alone: a pair is seldom removed."""
        while True:
            new = self._wakes.keys() - self._subscribed
            if new:
                await connection.send_command("SUBSCRIBE", *sorted(new))
                self._subscribed |= new
                begun.set()
            await self._changed.wait()
            self._changed = anyio.Event()

    async def _ping(self, connection: AbstractConnection) -> None:
        while True:
            await anyio.sleep(PING_S)
            await connection.send_command("PING")

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            reply = await connection.read_response()
            # `subscribe` as well as `message`: what came before the subscription was in force may have been missed.
            if isinstance(reply, list) and reply[0] in (b"subscribe", b"message"):
                for wake in self._wakes.get(text(reply[1]), ()):
                    wake()
