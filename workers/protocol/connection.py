"""The three factories for Redis clients. No other module builds one. `KeptConnection` is a short cut for hot paths.

redis-py's own retries are off. They send a command with a lost *reply* twice, which makes a duplicate job of an
``XADD``, and loses a batch that ``XREADGROUP`` has read. `workers.protocol.scripts` repeats idempotent scripts.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import redis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, Connection
from redis.asyncio.connection import parse_url as parse_asyncio_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.driver_info import DriverInfo
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry as BlockingRetry

from workers.protocol.address import SHARED_URL, Address, AddressError, Host, Topology, parse_address, shown_address
from workers.protocol.credentials import credentials_of
from workers.protocol.directory import Directory
from workers.protocol.errors import ConfigurationError
from workers.protocol.meaning import NotSentError, is_failover_error, takes_no_more_clients, was_not_run
from workers.protocol.routing import RoutedClient
from workers.protocol.slots import slot_of
from workers.protocol.wire import ConnectedFirst, Pool, Route, improved

COMMAND_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5.0
BLOCK_MS = 2_000
"""The longest time that a read blocks, and so the time that an idle worker needs to stop.

The worker does not end a read earlier, because CLIENT UNBLOCK crashes servers (Redis issue 14164)."""
READ_PATIENCE_S = 3.0
"""How much longer a worker waits for the answer to a read, because redis-py does not extend its timeout for BLOCK.
After both times, the worker drops the connection to a silent server."""

# Replies that are parsed in `workers.protocol.messages` or by their callers, as they come from the wire.
_RAW_REPLIES = ("XREADGROUP", "XREAD", "XPENDING", "XRANGE", "XREVRANGE", "XCLAIM", "XAUTOCLAIM")


def commands_client(
    url: str, *, key: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S, max_connections: int = 16
) -> "Redis":
    """Return a client for everything that does not block. ``timeout_s`` bounds connect, send and reply.

    In a cluster, the client is for the node that has ``key``. Without it, each command goes to the node of its own key,
    and a command without a key to the node of slot 0. ``max_connections`` is for each node. Raises ConfigurationError.
    """
    source = _Source(url, timeout_s, max_connections)
    pool = source.pool(key or "")
    if source.address.topology is not Topology.CLUSTER or key is not None:
        return _raw(Redis.from_pool(pool))
    return _raw(RoutedClient(pool, source.directory(), source.client_at))


def reader_client(
    url: str, *, key: str = "", block_ms: int = BLOCK_MS, timeout_s: float = COMMAND_TIMEOUT_S
) -> "Redis":
    """Return a client with one connection of its own for reads that block up to ``block_ms``. ``key`` is as above."""
    return commands_client(url, key=key, timeout_s=block_ms / 1000 + timeout_s, max_connections=1)


class _Source:
    """An address, and pools of connections to it. Raises ConfigurationError."""

    def __init__(self, url: str, timeout_s: float, max_connections: int, *, in_threads: bool = False) -> None:
        self.address = read_address(url)
        self._url = url
        self._in_threads = in_threads
        self._pool_kind: Any = redis.BlockingConnectionPool if in_threads else Pool
        self._limits: dict[str, Any] = {"max_connections": max_connections, "timeout": timeout_s}
        if in_threads:
            self._limits["queue_class"] = ConnectedFirst
        with _named(url):
            parsed: Any = parse_url(self.address.node) if in_threads else parse_asyncio_url(self.address.node)
            credentials = credentials_of(url)
        self._class = parsed.pop("connection_class", redis.Connection if in_threads else Connection)
        if credentials:
            parsed = {name: parsed[name] for name in parsed.keys() - {"username", "password"}}
            parsed["credential_provider"] = credentials
        self._options: dict[str, Any] = {
            "socket_timeout": timeout_s,
            "socket_connect_timeout": min(timeout_s, CONNECT_TIMEOUT_S),
            "decode_responses": False,
            "legacy_responses": False,
            "protocol": 2,
            "retry": BlockingRetry(NoBackoff(), 0) if in_threads else Retry(NoBackoff(), 0),
            "retry_on_error": [],
            "driver_info": _driver_info(),
            **parsed,
        }

    def directory(self) -> Directory:
        """Return a directory of the servers that take writes."""
        return Directory(self.address, self._options)

    def pool(self, key: str = "", **server: Any) -> Any:
        """Return a pool for the server, in a cluster for the node that has ``key``. ``server`` is one node of it."""
        route = None
        if self.address.topology is not Topology.SINGLE and not server:
            route = Route(self.directory(), slot_of(key.encode()))
        kind = improved(self._class, route, in_threads=self._in_threads)
        options = self._options | server
        with _named(self._url):
            kind(**options)  # raise here, and not at the first call, if a connection would reject an option
            return self._pool_kind(connection_class=kind, **self._limits, **options)

    def client_at(self, node: Host) -> "Redis":
        """Return a client for one node of a cluster."""
        return _raw(Redis.from_pool(self.pool(host=node[0], port=node[1])))


def _raw(client: "Redis") -> "Redis":
    for command in _RAW_REPLIES:
        client.set_response_callback(command, lambda response, **_options: response)
    return client


_driver_info = cache(DriverInfo)
"""Returns the library for ``CLIENT LIST``. By itself, redis-py reads its version from files at each connect."""


class KeptConnection:
    """One connection of a client, kept for callers that take turns, one call at a time.

    A call costs a third of the CPU time of a call through the pool. Replies are raw, and the client's timeout holds for
    a whole call with its wait for its turn. A failed or cancelled call drops the connection, so no half-read reply
    stays behind, and the next call connects again. Closing the client closes it.
    """

    def __init__(self, client: "Redis") -> None:
        self._pool = client.connection_pool
        self._timeout_s: float = self._pool.connection_kwargs["socket_timeout"]
        self._connection: AbstractConnection | None = None
        self._turn = asyncio.Lock()

    async def execute_command(self, *words: Any) -> Any:
        """Send one command and return its reply. Raises redis-py's errors, and `NotSentError` if it was not sent."""
        [reply] = await self.execute_together([words])
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def execute_together(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands in one pipeline and return their replies, which may be errors. Raises after a lost contact."""
        was_sent = False
        try:
            async with asyncio.timeout(self._timeout_s), self._turn:
                connection = await self._connected()
                packed = [part for words in commands for part in connection.pack_command(*words)]
                was_sent = True
                await connection.send_packed_command(packed, check_health=False)
                replies = [await _reply_of(connection) for _ in commands]
                if any(isinstance(reply, Exception) and is_failover_error(reply) for reply in replies):
                    await connection.disconnect(nowait=True)  # before the next one's turn
                return replies
        except TimeoutError as error:
            what = str(commands[0][0])
            if not was_sent:
                raise NotSentError(f"no connection to send {what} on within {self._timeout_s:g} s") from error
            raise RedisTimeoutError(f"no reply to {what} within {self._timeout_s:g} s") from error
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            if was_sent or was_not_run(error):
                raise
            raise NotSentError(str(error)) from error

    async def _connected(self) -> AbstractConnection:
        if self._connection is None:
            self._connection = await self._pool.get_connection()
            self._connection.socket_timeout = None  # our timeout holds, because one in each call costs a task
        else:
            await self._pool.ensure_connection(self._connection)
        return self._connection


async def _reply_of(connection: AbstractConnection) -> Any:
    """Return the next reply, which may be an error of Redis."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


@asynccontextmanager
async def own_connection(client: "Redis") -> AsyncIterator[AbstractConnection]:
    """Take a connection out of the client's pool while the block runs, for a caller that sends and reads itself.

    It is dropped at the end, because replies may be on their way. Raises redis-py's errors.
    """
    pool = client.connection_pool
    connection = await pool.get_connection()
    try:
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await connection.disconnect(nowait=True)
            await pool.release(connection)


async def drop_idle(client: "Redis", error: Exception) -> None:
    """Make a client connect again, unless the server only rejects further connections, because the open ones work."""
    if not takes_no_more_clients(error):
        await client.connection_pool.disconnect(inuse_connections=False)


def blocking_client(
    url: str, *, key: str = "", timeout_s: float = COMMAND_TIMEOUT_S, max_connections: int = 1
) -> "redis.Redis":
    """Return a client for at most ``max_connections`` threads at a time. A call blocks its thread up to ``timeout_s``.

    In a cluster, it is for the node that has ``key``. Do not close it while a thread uses it.
    """
    return redis.Redis.from_pool(_Source(url, timeout_s, max_connections, in_threads=True).pool(key))


@contextmanager
def _named(url: str) -> Iterator[None]:
    """Raise ConfigurationError if a part of an address cannot work."""
    try:
        yield
    except AddressError as error:
        why = str(error)
    except (ValueError, TypeError, RedisError) as error:  # its text quotes values of options, and is not shown
        options = ", ".join(repr(name) for name, _ in parse_qsl(urlsplit(url).query))
        why = f"redis-py rejects the value of an option ({options}): {type(error).__name__}. Correct the value."
    else:
        return
    source = SHARED_URL if os.environ.get(SHARED_URL) == url else "redis_url"  # other programs may have set the first
    raise ConfigurationError(f"{source} {shown_address(url)!r} cannot be used: {why}")


def read_address(url: str) -> Address:
    """Return the meaning of an address. Raises ConfigurationError, with the correct syntax."""
    with _named(url):
        return parse_address(url)
