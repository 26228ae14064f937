"""Our connections and pools. They follow the server that takes writes, and report why a server rejects them."""

import asyncio
from contextlib import nullcontext, suppress
from queue import LifoQueue
from typing import Any, cast

import anyio
import hiredis
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import AbstractConnection, SSLConnection
from redis.connection import AbstractConnection as BlockingConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from workers.protocol.address import Host
from workers.protocol.directory import OPEN_S, Directory
from workers.protocol.meaning import AllInUseError, NotSentError, is_failover_error

REJECTION_TIMEOUT_S = 0.5
"""How long a connection that was rejected listens for the reason."""


class Route:
    """Leads the connections of a pool to the server that takes writes to a slot."""

    def __init__(self, directory: Directory, slot: int) -> None:
        self._directory = directory
        self._slot = slot

    async def lead(self, connection: Any) -> bool:
        """Point ``connection`` to that server. Return whether it was connected to it already."""
        if connection.is_connected:
            with suppress(RedisError, OSError), anyio.move_on_after(OPEN_S):  # no Sentinel or node may answer
                await self._directory.look()
            if self._directory.table.owner(self._slot) in (None, _host_of(connection)):  # also by a late answer
                return True
            await connection.disconnect(nowait=True)
        self._directory.doubt()
        connection.host, connection.port = await self._directory.owner(self._slot)
        return False

    def lead_blocking(self, connection: Any) -> None:
        """Do the same in a thread that may block."""
        with suppress(RedisError, OSError):
            if connection.is_connected and _host_of(connection) != self._directory.owner_blocking(self._slot):
                connection.disconnect()
        if not connection.is_connected:
            self._directory.doubt()
            connection.host, connection.port = self._directory.owner_blocking(self._slot)

    def failed(self, error: Exception) -> None:
        """Ask another server the next time, if ``error`` shows that this one does not take writes now."""
        if is_failover_error(error):
            self._directory.doubt()


def _host_of(connection: Any) -> Host:
    return connection.host, int(connection.port)


def improved(kind: Any, route: Route | None, *, in_threads: bool = False) -> Any:
    """Return ``kind``, a class of connections, with our differences. ``route`` leads to other servers than its own."""
    return type(kind.__name__, (_BlockingImproved if in_threads else _Improved, kind), {"route": route})


class _Improved(AbstractConnection):
    route: Route | None = None

    async def connect(self) -> None:
        """Connect, or return at once if it is connected, and to the right server."""
        if self.route:
            await self.route.lead(self)
        if isinstance(self, SSLConnection) and not self.is_connected:
            _read_certificates(self)
        try:
            await super().connect()  # type: ignore[no-untyped-call]
        except RedisConnectionError as error:
            reason = await _rejection_reason(self) if type(error) is RedisConnectionError else ""
            if reason:
                raise RedisConnectionError(reason) from error
            raise

    def pack_command(self, *args: Any) -> list[bytes]:
        """Pack a command. redis-py does it in Python, which took a quarter of a worker's CPU time."""
        words = args[0].split() if isinstance(args[0], (str, bytes)) else args[:1]
        return [hiredis.pack_command(args if len(words) == 1 else (*words, *args[1:]))]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: ARG002 - off
        """Send as redis-py does, but without `asyncio.wait_for`, which swallows cancellations before Python 3.12."""
        if not self.is_connected:
            await self.connect()
        elif self.route and not await self.route.lead(self):
            raise NotSentError("another server takes the writes now")
        writer = self._writer
        if writer is None:
            raise RedisConnectionError("the connection was closed by its reader")
        try:
            writer.writelines([command] if isinstance(command, bytes) else command)
            # Without a limit of its own, it is the caller's, and a timeout costs as much as all of this.
            async with nullcontext() if self.socket_timeout is None else asyncio.timeout(self.socket_timeout):
                await writer.drain()
        except BaseException as error:
            await self.disconnect(nowait=True)  # the effect of a half-sent command is unknown
            if isinstance(error, TimeoutError):
                raise RedisTimeoutError("Timeout writing to socket") from error
            if isinstance(error, OSError):
                raise RedisConnectionError(f"Error while writing to socket: {error}") from error
            raise

    async def read_response(self, *words: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*words, **options)
        except RedisError as error:
            if self.route:
                self.route.failed(error)
            raise

    async def can_read(self) -> bool:
        """Raise RedisConnectionError if the connection was reset while idle. asyncio raises that too late."""
        if self._reader is not None and self._reader.exception() is not None:
            raise RedisConnectionError("the connection was reset") from self._reader.exception()
        return await super().can_read()

    async def disconnect(self, *arguments: Any, **options: Any) -> None:
        with suppress(RedisTimeoutError):  # the event loop hung during the wait, and the connection is closed
            await super().disconnect(*arguments, **options)


class _BlockingImproved(BlockingConnection):
    route: Route | None = None

    def connect(self) -> None:
        """Connect, or return at once if it is connected, and to the right server."""
        if self.route:
            self.route.lead_blocking(self)
        super().connect()  # type: ignore[no-untyped-call]


class Pool(BlockingConnectionPool):
    """Gives out connected connections first, because the server may accept no more clients."""

    async def get_connection(self, *words: Any, **options: Any) -> AbstractConnection:
        """Return a connected connection. Raises AllInUseError and redis-py's errors."""
        self._available_connections.sort(key=lambda one: one.is_connected)
        try:
            connection = await super().get_connection(*words, **options)  # type: ignore[no-untyped-call]
        except RedisConnectionError as error:
            if str(error) != "No connection available.":
                raise
            raise AllInUseError(
                f"all {self.max_connections} connections to Redis were in use for {self.timeout} s"
            ) from error
        return cast("AbstractConnection", connection)


class ConnectedFirst(LifoQueue[Any]):
    """The idle connections of a pool for threads, in the order of `Pool`."""

    def _put(self, item: Any) -> None:
        self.queue.insert(0 if item is not None and not item.is_connected else len(self.queue), item)


def _read_certificates(connection: SSLConnection) -> None:
    """Read the certificates again, because they are renewed under way. The error names the files."""
    context = connection.ssl_context
    context.context = None
    try:
        context.get()
    except OSError as error:
        files = ", ".join(filter(None, (context.ca_certs, context.certfile, context.keyfile)))
        raise RedisConnectionError(f"a certificate or key cannot be read ({files}): {error}") from error


async def _rejection_reason(connection: AbstractConnection) -> str:
    """Return why the server turns new connections away, or ''.

    The server sends the reason unasked, and closes. A client that writes sees only the reset, so this one only reads.
    """
    if isinstance(connection, SSLConnection):
        return ""
    with suppress(OSError, anyio.EndOfStream, anyio.BrokenResourceError), anyio.move_on_after(REJECTION_TIMEOUT_S):
        path = getattr(connection, "path", None)
        stream = (
            await anyio.connect_unix(path)
            if path
            else await anyio.connect_tcp(getattr(connection, "host", ""), getattr(connection, "port", 0))
        )
        async with stream:
            said = (await stream.receive()).decode("utf-8", "replace")
            return said.removeprefix("-ERR ").removeprefix("-").strip() if said.startswith("-") else ""
    return ""
