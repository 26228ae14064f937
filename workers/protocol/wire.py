"""Our connections: packed by hiredis, and not shared with forked children."""

import asyncio
import os
import socket
from contextlib import nullcontext, suppress
from typing import Any

import anyio
import hiredis
import redis
from redis.asyncio.connection import AbstractConnection, SSLConnection
from redis.asyncio.sentinel import SentinelManagedConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from workers.forks import forks_made, keep_from_children

NEWCOMER_TIMEOUT_S = 0.5
"""How long a connection that was refused listens for the reason."""
MOST_ANEW = 3
"""How often a connection is made again because of a fork. A program that forks all the time must get one, too."""


def improved(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """Return ``kind``, a class of asyncio connections, with our differences."""
    return type(kind.__name__, (_Improved, kind), {})


def unshared(kind: type[redis.Connection]) -> type[redis.Connection]:
    """Return ``kind``, a class of blocking connections, that forked children do not get."""
    return type(kind.__name__, (_Unshared, kind), {})


class _Improved(AbstractConnection):
    async def connect(self) -> None:
        if isinstance(self, SSLConnection) and not self.is_connected:
            _read_certificates(self)
        try:
            await super().connect()  # type: ignore[no-untyped-call]
        except RedisConnectionError as error:
            said = await _said_to_newcomers(self) if type(error) is RedisConnectionError else ""
            if said:
                raise RedisConnectionError(said) from error
            raise

    async def _connect(self) -> None:
        """Connect, and again if the process was forked meanwhile: the child has the socket, too, so it is ended."""
        for anew in range(MOST_ANEW + 1):
            before = forks_made()
            await super()._connect()  # type: ignore[no-untyped-call,safe-super]
            assert self._writer is not None
            transport: Any = self._writer.transport
            keep_from_children(transport)
            if forks_made() == before or anew == MOST_ANEW:
                return
            _end(transport)

    def pack_command(self, *args: Any) -> list[bytes]:
        """Pack a command. redis-py does it in Python, which took a quarter of a worker's CPU time."""
        words = args[0].split() if isinstance(args[0], (str, bytes)) else args[:1]
        return [hiredis.pack_command(args if len(words) == 1 else (*words, *args[1:]))]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """As redis-py's own, which bounds it by `asyncio.wait_for`. Before Python 3.12 that swallows cancellations."""
        if not self.is_connected:
            if isinstance(self, SentinelManagedConnection):  # by now another server may be the master
                raise RedisConnectionError("the connection was closed before a command was sent")
            await self.connect_check_health(check_health=False)
        if check_health:
            await self.check_health()  # type: ignore[no-untyped-call]
        try:
            # Without a limit of its own, it is the caller's, and a timeout costs as much as all of this.
            async with nullcontext() if self.socket_timeout is None else asyncio.timeout(self.socket_timeout):
                await _write(self._writer, [command] if isinstance(command, bytes) else command)
        except TimeoutError as error:
            await self.disconnect(nowait=True)
            raise RedisTimeoutError("Timeout writing to socket") from error
        except OSError as error:
            await self.disconnect(nowait=True)
            raise RedisConnectionError(f"Error while writing to socket: {error}") from error
        except BaseException:
            await self.disconnect(nowait=True)  # the effect of a half-sent command is unknown
            raise

    async def can_read(self) -> bool:
        """Raise RedisConnectionError if the connection was reset while idle, so that it is made again.

        asyncio keeps that error for the next command, which would look like one with a lost reply.
        """
        if self._reader is not None and self._reader.exception() is not None:
            raise RedisConnectionError("the connection was reset") from self._reader.exception()
        return await super().can_read()

    async def disconnect(self, *arguments: Any, **options: Any) -> None:
        with suppress(RedisTimeoutError):  # the event loop hung during the wait for the end; it is closed
            await super().disconnect(*arguments, **options)


class _Unshared(redis.Connection):
    def on_connect_check_health(self, check_health: bool = True) -> None:
        keep_from_children(self._sock)
        super().on_connect_check_health(check_health)


async def _write(writer: asyncio.StreamWriter | None, command: Any) -> None:
    if writer is None:
        raise RedisConnectionError("the connection was closed while a command was being sent")  # by one who was reading
    writer.writelines(command)
    await writer.drain()


def _end(transport: Any) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as shared:
        shared.shutdown(socket.SHUT_RDWR)
    transport.abort()


def _read_certificates(connection: SSLConnection) -> None:
    """Read them anew, because they are renewed under way. The error names the files."""
    context = connection.ssl_context
    context.context = None
    try:
        context.get()
    except OSError as error:
        files = ", ".join(filter(None, (context.ca_certs, context.certfile, context.keyfile)))
        raise RedisConnectionError(f"a certificate or key cannot be read ({files}): {error}") from error


async def _said_to_newcomers(connection: AbstractConnection) -> str:
    """Return why the server turns new connections away, or ''.

    It says so before it is asked, and closes. A client that has written by then mostly sees only the reset, because its
    kernel drops the earlier bytes. So this one reads first, and does not write.
    """
    if isinstance(connection, SSLConnection):
        return ""
    with suppress(OSError, anyio.EndOfStream, anyio.BrokenResourceError), anyio.move_on_after(NEWCOMER_TIMEOUT_S):
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
