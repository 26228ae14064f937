"""Pools of connections, for event loops and for threads, to one server or to the one that a `Directory` names.

redis-py asks Sentinels when it connects, and leaves older connections alone. One to a master that hangs, or is cut off,
waits for its timeout, and one to a demoted master goes on until a write is rejected. So these pools ask twice a second,
and drop connections to other servers. A caller on one of them sees a lost contact, as after the end of a server.
redis-py's own cluster client repeats calls that may have had an effect, and has no connection that can be kept.
"""

import asyncio
import logging
import time
from contextlib import suppress
from queue import Empty, LifoQueue
from typing import Any, cast

import redis
from redis.asyncio import BlockingConnectionPool
from redis.asyncio import sentinel as asyncio_sentinel
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.sentinel import SentinelConnectionPool

from workers.protocol.address import Host
from workers.protocol.directory import LOOK_S, Directory, asked_in_thread
from workers.protocol.log_fields import fields
from workers.protocol.meaning import AllInUseError, is_failover_error

logger = logging.getLogger(__name__)


def _all_in_use(pool: Any) -> AllInUseError:
    return AllInUseError(f"all {pool.max_connections} connections to Redis were in use for {pool.timeout} s")


class Pool(BlockingConnectionPool):
    """Tells an exhausted pool from a server that does not answer, and gives out connected connections first.

    The last returned connection is next. A connection that could not connect would fail again and again while connected
    ones are idle, above all if the server accepts no more clients.
    """

    async def release(self, connection: AbstractConnection) -> None:
        """Take a connection back."""
        await super().release(connection)
        if not connection.is_connected and connection in self._available_connections:
            self._available_connections.remove(connection)
            self._available_connections.insert(0, connection)

    async def get_connection(self, *words: Any, **options: Any) -> AbstractConnection:
        """Return a connected connection. Raises what redis-py raises, or AllInUseError."""
        try:
            connection = await super().get_connection(*words, **options)  # type: ignore[no-untyped-call]
        except RedisConnectionError as error:
            # It has waited for a connection, and not for an answer. An answer would be the system's error, with a
            # number.
            if isinstance(error.__cause__, TimeoutError) and error.__cause__.errno is None:
                raise _all_in_use(self) from error
            raise
        return cast("AbstractConnection", connection)


class ManagedConnection(asyncio_sentinel.SentinelManagedConnection):
    """Leads to the master of the moment in which it was made, and is dropped where that says it is none any more."""

    async def read_response(self, *words: Any, **options: Any) -> Any:
        """Return a reply. A script on an old server reports READONLY inside its text, which redis-py passes on."""
        try:
            return await super().read_response(*words, **options)
        except ResponseError as error:
            if is_failover_error(error):
                await self.disconnect(nowait=True)
            raise


class ManagedTLSConnection(ManagedConnection, asyncio_sentinel.SentinelManagedSSLConnection):
    """The same over TLS."""


class WatchedPool(asyncio_sentinel.SentinelConnectionPool, Pool):
    """Looks after its connections from the first one on, until it is closed."""

    def __init__(self, directory: Directory, *, tls: bool, **options: Any) -> None:
        self._directory = directory
        self._watching: asyncio.Task[None] | None = None
        super().__init__(  # type: ignore[no-untyped-call]
            "", directory, connection_class=ManagedTLSConnection if tls else ManagedConnection, **options
        )

    async def get_master_address(self) -> Host:
        """Return the server's address. Connections to other servers are dropped. Raises NoMasterError."""
        self._directory.close()
        found = await asked_in_thread(self._directory.discover_master)
        await self._leave_others(found)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name=f"watching {self._directory.wanted}")
        return found

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Drop connections. If used ones are meant, too, there is no further check until the next one."""
        watching = self._watching if inuse_connections else None
        if watching is not None:
            self._watching = None
            watching.cancel()
        await super().disconnect(inuse_connections)
        if watching is not None and not watching.done():  # last, because a cancelled caller waits for no more
            await asyncio.wait([watching])

    async def _watch(self) -> None:
        try:
            while self._watching is asyncio.current_task():
                await asyncio.sleep(LOOK_S)
                with suppress(RedisError, OSError):  # a failover may be under way
                    await self._leave_others(await asked_in_thread(self._directory.discover_master))
        finally:
            self._directory.close()

    async def _leave_others(self, master: Host) -> None:
        """Drop connections that lead to another server than ``master``, those in use included."""
        if self.master_address is not None and self.master_address != master:
            host, port = master
            logger.info("primary changed: %s", fields(name=self._directory.wanted, address=f"{host}:{port}"))
        self.master_address = master
        for connection in [*self._available_connections, *self._in_use_connections]:
            if connection.is_connected and _leads_to(connection) != master:
                await connection.disconnect(nowait=True)


def _leads_to(connection: AbstractConnection | redis.Connection) -> tuple[object, object]:
    return getattr(connection, "host", None), getattr(connection, "port", None)


class _ConnectedFirst(LifoQueue[Any]):
    """The idle connections, in the order of `Pool`. None stands for a connection that was not made yet."""

    def _put(self, item: Any) -> None:
        if item is None:
            self.queue.insert(0, item)
        elif item.is_connected:
            self.queue.append(item)
        else:
            self.queue.insert(self.queue.count(None), item)


class BlockingPool(redis.BlockingConnectionPool):
    """As `Pool`, for threads. Idle connections can be dropped while other threads use the rest."""

    def __init__(self, **options: Any) -> None:
        super().__init__(queue_class=_ConnectedFirst, **options)  # type: ignore[no-untyped-call]

    def get_connection(self, *words: Any, **options: Any) -> Any:
        """Return a connected connection. Raises what redis-py raises, or AllInUseError."""
        try:
            return super().get_connection(*words, **options)  # type: ignore[no-untyped-call]
        except RedisConnectionError as error:
            if isinstance(error.__context__, Empty):
                raise _all_in_use(self) from error
            raise

    def drop_idle(self) -> None:
        """Disconnect idle connections. redis-py's own way may meet a connection that was taken a moment ago."""
        self._checkpid()
        idle = []
        with suppress(Empty):
            while True:
                idle.append(self.pool.get_nowait())
        for connection in reversed(idle):
            if connection is not None:
                connection.disconnect()
            self.pool.put_nowait(connection)


class LookingPool(SentinelConnectionPool, BlockingPool):
    """Asks whether a connection still leads to the right server before it is used, twice a second at most."""

    def __init__(self, directory: Directory, *, tls: bool, **options: Any) -> None:
        self._looked: float | None = None
        self._directory = directory
        super().__init__("", directory, **({"ssl": True} if tls else {}), **options)  # type: ignore[no-untyped-call]

    def get_connection(self, *words: Any, **options: Any) -> redis.Connection:
        """Return a connection to the server. Raises what redis-py raises."""
        connection: redis.Connection = super().get_connection(*words, **options)
        try:
            self._leave_others(connection)
        except BaseException:
            self.release(connection)  # type: ignore[no-untyped-call]
            raise
        return connection

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Drop connections, and the one to those that were asked."""
        if inuse_connections:
            self._directory.close()
        super().disconnect(inuse_connections)

    def _leave_others(self, connection: redis.Connection) -> None:
        now = time.monotonic()
        if self._looked is None or now - self._looked > LOOK_S:
            self._looked = now
            with suppress(RedisError, OSError):
                self.get_master_address()  # type: ignore[no-untyped-call]
        if _leads_to(connection) != self.master_address:
            connection.disconnect()
            connection.connect()
