"""The three factories for Redis clients. No other module builds one. `KeptConnection` is a short cut for hot paths.

All switch redis-py's own retries off. A command with a lost *reply* would be sent twice, which makes a duplicate job of
an ``XADD``, and loses a batch that ``XREADGROUP`` has read. Idempotent scripts are retried by
`workers.protocol.scripts` instead. Replies stay raw bytes, because a value that is not UTF-8 would raise only after the
server has put its entry into the pending entries list.

Every new connection first asks for the server's role (`workers.protocol.nodes`), so no command reaches a replica, a
Sentinel or a part of a cluster that an address was not meant for. If Sentinels know the server,
`workers.protocol.sentinels` finds it. If the keys are shared among nodes, `workers.protocol.cluster` does. A client is
for one ``key`` (and all keys of its slot), or finds the node anew for each command.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from queue import Empty, LifoQueue
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import anyio
import redis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.driver_info import DriverInfo
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry as BlockingRetry

from workers.protocol.address import SHARED_URL, Address, AddressError, Host, Topology, parse_address, shown_address
from workers.protocol.cluster import LookingSlotPool, NodePool, SlotPool, SlotTables
from workers.protocol.credentials import credentials_of
from workers.protocol.errors import ConfigurationError
from workers.protocol.meaning import (
    AllInUseError,
    Meaning,
    NotSentError,
    is_failover_error,
    meaning_of,
    takes_no_more_clients,
    was_not_run,
)
from workers.protocol.routing import RoutedClient
from workers.protocol.sentinels import LookingPool, WatchedPool
from workers.protocol.slots import slot_of
from workers.protocol.wire import asking, improved

logger = logging.getLogger(__name__)

COMMAND_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5.0
BLOCK_MS = 2_000
"""How long a read blocks that finds nothing: an idle worker reads again this often, and needs up to so long to stop.

Nothing ends a read earlier: CLIENT UNBLOCK crashes servers (Redis issue 14164)."""
READ_PATIENCE_S = 3.0
"""How long a worker waits for the answer to a read beyond that (redis-py does not extend a socket's timeout for BLOCK).
Together they say how soon it gives up a server that is silent."""

# Replies that are parsed in `workers.protocol.messages` or by their callers, as they come from the wire.
_RAW_REPLIES = ("XREADGROUP", "XREAD", "XPENDING", "XRANGE", "XREVRANGE", "XCLAIM", "XAUTOCLAIM")


def commands_client(
    url: str, *, key: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S, max_connections: int = 16
) -> "Redis":
    """Return a client for everything that does not block. ``timeout_s`` bounds connect, send and reply.

    In a cluster, ``key`` names the slot whose node it is for. Without it, each command goes to the node of its own key,
    and a command without a key to that of slot 0. ``max_connections`` is for each node.
    """
    return _client(url, key, timeout_s, max_connections)


def reader_client(
    url: str, *, key: str = "", block_ms: int = BLOCK_MS, timeout_s: float = COMMAND_TIMEOUT_S
) -> "Redis":
    """Return a client with one connection of its own for reads that block up to ``block_ms``. ``key`` is as above."""
    return _client(url, key, block_ms / 1000 + timeout_s, 1)


class _Pool(BlockingConnectionPool):
    """Tells an exhausted pool from a server that does not answer, and gives out connected connections first.

    The last returned connection is next. A connection that could not connect would fail again and again while connected
    ones are idle, above all if the server accepts no more clients.
    """

    async def release(self, connection: AbstractConnection) -> None:
        await super().release(connection)
        if not connection.is_connected and connection in self._available_connections:
            self._available_connections.remove(connection)
            self._available_connections.insert(0, connection)

    async def get_connection(self, *words: Any, **options: Any) -> AbstractConnection:
        try:
            connection = await super().get_connection(*words, **options)  # type: ignore[no-untyped-call]
        except RedisConnectionError as error:
            # It has waited for a connection, and not for an answer. An answer would be the system's error, with a
            # number.
            if isinstance(error.__cause__, TimeoutError) and error.__cause__.errno is None:
                raise AllInUseError(
                    f"all {self.max_connections} connections to Redis were in use for {self.timeout} s"
                ) from error
            raise
        return cast("AbstractConnection", connection)


class _ManagedPool(WatchedPool, _Pool):
    """The same for a server that Sentinels know."""


class _ClusteredPool(SlotPool, _Pool):
    """The same for the node that has a slot."""


class _PoolOfNode(NodePool, _Pool):
    """The same for one node of a cluster."""


def _client(url: str, key: str | None, timeout_s: float, max_connections: int) -> "Redis":
    options = {"retry": Retry(NoBackoff(), 0), **_pool_options(timeout_s, max_connections)}
    with _named(url):
        address = parse_address(url)
        if address.topology is Topology.SENTINEL:
            pool: _Pool = _ManagedPool(address, **options, **_node_options(address))
        elif address.topology is Topology.CLUSTER:
            options |= _node_options(address)
            pool = _ClusteredPool(address, slot=slot_of((key or "").encode()), **options)
        else:
            pool = _Pool.from_url(address.node, **options)
        _complete(pool, url)
    pool.connection_class = improved(pool.connection_class, address.topology)
    if address.topology is not Topology.CLUSTER or key is not None:
        return _raw(Redis.from_pool(pool))

    def client_of(tables: SlotTables, node: Host) -> Redis:
        own = _PoolOfNode(address, tables=tables, node=node, **options)
        _complete(own, url)
        own.connection_class = improved(own.connection_class, address.topology)
        return _raw(Redis.from_pool(own))

    return _raw(RoutedClient(pool, SlotTables(address, lambda: pool.connection_kwargs), client_of))


def _raw(client: "Redis") -> "Redis":
    for command in _RAW_REPLIES:
        client.set_response_callback(command, _as_it_comes)
    return client


def _pool_options(timeout_s: float, max_connections: int) -> dict[str, Any]:
    """Return the common arguments of all clients. redis-py's retries are a class of their own for each kind."""
    return {
        "max_connections": max_connections,
        "timeout": timeout_s,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(timeout_s, CONNECT_TIMEOUT_S),
        "decode_responses": False,
        "legacy_responses": False,
        "protocol": 2,
        "retry_on_error": [],
        "driver_info": _driver_info(),
    }


@cache
def _driver_info() -> DriverInfo:
    """Return what ``CLIENT LIST`` shows of us. redis-py's own finds its version anew, in files, at each connection."""
    return DriverInfo()


class KeptConnection:
    """One connection of a client, kept for callers that take turns, one call at a time.

    A call costs a third of the CPU time of a call through the pool, because the pool checks connections in and out,
    counts and times each call, and sends it in a task. The rest is the same. No call is sent twice, replies are raw,
    and the client's timeout holds for a whole call with its wait for its turn. A failed or cancelled call leaves no
    half-read reply behind, because the connection is dropped, and the next call connects again. Closing the client
    closes it.
    """

    def __init__(self, client: "Redis") -> None:
        self._pool = client.connection_pool
        self._timeout_s: float = self._pool.connection_kwargs["socket_timeout"]
        self._connection: AbstractConnection | None = None
        self._turn = asyncio.Lock()

    async def execute_command(self, *words: Any) -> Any:
        """Send one command and return its reply. Raises what redis-py raises, `NotSentError` where it was not sent."""
        was_sent = False
        try:
            async with asyncio.timeout(self._timeout_s), self._turn:
                connection = await self._connected()
                packed, was_sent = connection.pack_command(*words), True
                await connection.send_packed_command(packed, check_health=False)
                try:
                    return await connection.read_response()
                except ResponseError as error:
                    if is_failover_error(error):
                        await self._drop()  # before the next one's turn
                    raise
        except TimeoutError as error:
            if not was_sent:
                raise NotSentError(f"no connection to send {words[0]} on within {self._timeout_s:g} s") from error
            raise RedisTimeoutError(f"no reply to {words[0]} within {self._timeout_s:g} s") from error
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            if was_sent or was_not_run(error) or meaning_of(error) is not Meaning.AWAY:
                raise
            raise NotSentError(str(error)) from error

    async def _connected(self) -> AbstractConnection:
        if self._connection is None:
            self._connection = await self._pool.get_connection()
            self._connection.socket_timeout = None  # our timeout holds, because one in each call costs a task
        else:
            await self._pool.ensure_connection(self._connection)
        return self._connection

    async def _drop(self) -> None:
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)


@asynccontextmanager
async def connection_of_ones_own(client: "Redis") -> AsyncIterator[AbstractConnection]:
    """Take a connection out of the client's pool while the block runs, for a caller that sends and reads itself.

    It is dropped at the end, because replies may be on their way. Raises what redis-py raises.
    """
    pool = client.connection_pool
    connection = await pool.get_connection()
    try:
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await connection.disconnect(nowait=True)
            await pool.release(connection)


class _ConnectedFirst(LifoQueue[Any]):
    """The idle connections, in the order of `_Pool`. None stands for a connection that was not made yet."""

    def _put(self, item: Any) -> None:
        if item is None:
            self.queue.insert(0, item)
        elif item.is_connected:
            self.queue.append(item)
        else:
            self.queue.insert(self.queue.count(None), item)


class _BlockingPool(redis.BlockingConnectionPool):
    """As `_Pool`, for threads. Idle connections can be dropped while other threads use the rest."""

    def get_connection(self, *words: Any, **options: Any) -> Any:
        try:
            return super().get_connection(*words, **options)  # type: ignore[no-untyped-call]
        except RedisConnectionError as error:
            if isinstance(error.__context__, Empty):
                raise AllInUseError(
                    f"all {self.max_connections} connections to Redis were in use for {self.timeout} s"
                ) from error
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


async def drop_idle(client: "Redis", error: Exception) -> None:
    """Have a client connect anew where ``error`` may mean that the server was away, or is another one now.

    Not after a mere rejection of one more connection, because the connected ones work, and could not be made again.
    """
    if not takes_no_more_clients(error):
        await client.connection_pool.disconnect(inuse_connections=False)


def drop_idle_blocking(client: "redis.Redis", error: Exception) -> None:
    """Do the same with a blocking client of ours. Others look after their connections."""
    if isinstance(client.connection_pool, _BlockingPool) and not takes_no_more_clients(error):
        client.connection_pool.drop_idle()


def blocking_client(
    url: str, *, key: str = "", timeout_s: float = COMMAND_TIMEOUT_S, max_connections: int = 1
) -> "redis.Redis":
    """Return a client for as many threads at a time as it has connections. It blocks them, up to ``timeout_s`` a call.

    In a cluster, ``key`` names the slot whose node it is for. It must not be in use while `close` is called.
    """
    with _named(url):
        address = parse_address(url)
        options = {"retry": BlockingRetry(NoBackoff(), 0), **_pool_options(timeout_s, max_connections)}
        options["queue_class"] = _ConnectedFirst
        if address.topology is Topology.SENTINEL:
            pool: _BlockingPool = _ManagedBlockingPool(address, **options, **_node_options(address))
        elif address.topology is Topology.CLUSTER:
            options |= _node_options(address)
            pool = _ClusteredBlockingPool(address, slot=slot_of(key.encode()), **options)
        else:
            pool = _BlockingPool.from_url(address.node, **options)
        _complete(pool, url)
    pool.connection_class = asking(pool.connection_class, address.topology)
    return redis.Redis.from_pool(pool)


class _ManagedBlockingPool(LookingPool, _BlockingPool):
    """Its connections lead to the master that Sentinels name."""


class _ClusteredBlockingPool(LookingSlotPool, _BlockingPool):
    """Its connections lead to the node that has a slot."""


@contextmanager
def _named(url: str) -> Iterator[None]:
    """Raise ConfigurationError where something in an address cannot work."""
    try:
        yield
    except AddressError as error:
        raise ConfigurationError(f"{_source_of(url)} {shown_address(url)!r} cannot be used: {error}") from None
    except (ValueError, TypeError, RedisError) as error:  # its text quotes values of options, and is not shown
        options = ", ".join(repr(name) for name, _ in parse_qsl(urlsplit(url).query))
        raise ConfigurationError(
            f"{_source_of(url)} {shown_address(url)!r} cannot be used: redis-py does not take the value of an option "
            f"({options}): {type(error).__name__}. Correct it."
        ) from None


def _source_of(url: str) -> str:
    """Return the place to correct, which is the setting, or a variable that other programs may have set."""
    return SHARED_URL if os.environ.get(SHARED_URL) == url else "redis_url"


def read_address(url: str) -> Address:
    """Return what an address says. Raises ConfigurationError, which says how one is written."""
    with _named(url):
        return parse_address(url)


def _node_options(address: Address) -> dict[str, Any]:
    """Return how the server is spoken to that others name."""
    whose = ("host", "port", "connection_class")
    return {name: value for name, value in parse_url(address.node).items() if name not in whose}


def _complete(pool: BlockingConnectionPool | redis.BlockingConnectionPool, url: str) -> None:
    """Have connections ask the file that ``url`` was read from for their credentials, if it was read from one.

    Raises what redis-py raises if a connection rejects the address, so that the error comes here, not at the first
    call.
    """
    credentials = credentials_of(url)
    if credentials:
        for name in ("username", "password"):
            pool.connection_kwargs.pop(name, None)
        pool.connection_kwargs["credential_provider"] = credentials
    pool.connection_class(**pool.connection_kwargs)


def _as_it_comes(response: Any, **_options: Any) -> Any:
    return response
