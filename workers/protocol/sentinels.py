"""Redis behind Sentinels. They are asked for the master whenever a connection is made, and while any lasts.

redis-py does the first. It leaves older connections alone. One to a master that hangs, or is cut off, waits for its
timeout, and one to a demoted master goes on until a write is rejected. So a pool here looks after its connections. It
asks twice a second, and drops connections to other servers. A caller on such a connection sees a lost contact, as after
the end of a server.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import anyio
import redis
import redis.sentinel
from redis.asyncio import sentinel as asyncio_sentinel
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry as BlockingRetry

from workers.protocol.address import Address, Host
from workers.protocol.log_fields import fields
from workers.protocol.meaning import NobodyYetError, NoMasterError, is_failover_error
from workers.protocol.unshared import unshared

logger = logging.getLogger(__name__)

ANSWER_S = 1.0
"""How long a Sentinel may take to answer before the next one is asked."""
LOOK_S = 0.5
"""How often a pool asks whether its connections still lead to the master."""

_ABOUT_NODES = frozenset({"host", "port", "db", "username", "password", "connection_class"})


class Finder(Protocol):
    """The sources for the server that takes writes. To be closed."""

    async def discover_master(self, service_name: str) -> Host:
        """Return where the master is. Raises NoMasterError."""

    async def aclose(self) -> None:
        """Close what was opened to ask."""


class BlockingFinder(Protocol):
    """The same for threads that may block."""

    def discover_master(self, service_name: str) -> Host:
        """Return where the master is. Raises NoMasterError."""


class Sentinels(asyncio_sentinel.Sentinel):
    """Those of an address. Close it at the end. Connections are made when they are needed."""

    def __init__(self, address: Address) -> None:
        options = _options(address, Retry(NoBackoff(), 0))
        super().__init__(address.hosts, sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        for sentinel in self.sentinels:
            pool = sentinel.connection_pool
            pool.connection_class = unshared(pool.connection_class)
        self._address = address

    async def discover_master(self, service_name: str) -> Host:
        """Return where the master is. Raises NoMasterError with the answer of each Sentinel."""
        said: list[str] = []
        is_known = False
        for number, sentinel in enumerate(self.sentinels):
            try:
                masters: Any = await sentinel.sentinel_masters()
            except (RedisError, OSError) as error:
                said.append(str(error))
                continue
            state = masters.get(service_name)
            if state and self.check_master_state(state, service_name):
                self.sentinels.insert(0, self.sentinels.pop(number))  # a source that answers is asked first next time
                return state["ip"], state["port"]
            is_known = is_known or bool(state)
            said.append(f"{service_name!r} is down" if state else f"no master is called {service_name!r}")
        raise _no_master(self._address, said, NobodyYetError if is_known else NoMasterError)


class BlockingSentinels:
    """The same for threads that may block. There is no resource to close."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def discover_master(self, service_name: str) -> Host:
        """Return where the master is. Raises NoMasterError."""
        found = redis.sentinel.Sentinel(
            self._address.hosts, sentinel_kwargs=_options(self._address, BlockingRetry(NoBackoff(), 0))
        )
        try:
            host, port = found.discover_master(service_name)
        except redis.sentinel.MasterNotFoundError:  # its text is a page long
            raise _no_master(self._address, ()) from None
        except ResponseError as error:
            raise _no_master(self._address, (str(error),)) from error
        finally:
            for sentinel in found.sentinels:
                sentinel.close()
        return host, port


def _options(address: Address, retry: Any) -> dict[str, Any]:
    """Return the connection settings for Sentinels, with the nodes' TLS and a login of their own."""
    nodes = {name: value for name, value in parse_url(address.node).items() if name not in _ABOUT_NODES}
    ours = {"protocol": 2, "socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S, "retry": retry}
    return {**nodes, **({"ssl": True} if address.tls else {}), **address.sentinel_login, **ours}


def _no_master(address: Address, said: Sequence[str], kind: type[NoMasterError] = NoMasterError) -> NoMasterError:
    why = f": {'; '.join(dict.fromkeys(said))}" if said else ""
    return kind(f"the Sentinels at {address.shown_hosts} name no master {address.master!r} that is up{why}")


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


class WatchedPool(asyncio_sentinel.SentinelConnectionPool):
    """Looks after its connections from the first one on, until it is closed."""

    def __init__(self, address: Address, **options: Any) -> None:
        kind = ManagedTLSConnection if address.tls else ManagedConnection
        self._address = address
        self._watching: asyncio.Task[None] | None = None
        super().__init__(address.master, None, connection_class=kind, **options)  # type: ignore[no-untyped-call]

    async def get_master_address(self) -> Host:
        """Return the master's address. Connections to other servers are dropped. Raises NoMasterError."""
        async with self._asking() as finder:
            found = await finder.discover_master(self._address.master)
        await self._leave_others(found)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name=f"watching {self._watched}")
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

    _who = "the Sentinels"
    """Who is asked, as people are told."""

    @property
    def _watched(self) -> str:
        """The wanted server, in words for people."""
        return f"the master {self._address.master}"

    def _finder(self) -> Finder:
        """Return who can tell, for one conversation."""
        return Sentinels(self._address)

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[Finder]:
        finder = self._finder()
        try:
            yield finder
        finally:
            with anyio.CancelScope(shield=True):
                await finder.aclose()

    async def _watch(self) -> None:
        async with self._asking() as finder:
            while self._watching is asyncio.current_task():  # a cancellation alone may be lost inside redis-py
                await asyncio.sleep(LOOK_S)
                with suppress(
                    RedisError, OSError
                ):  # a failover is under way, or they are out of reach, so the master is unknown
                    await self._leave_others(await finder.discover_master(self._address.master))

    async def _leave_others(self, master: Host) -> None:
        """Drop connections that lead to another server than ``master``, those in use included."""
        if self.master_address is not None and self.master_address != master:
            host, port = master
            logger.info("primary changed: %s", fields(name=self._watched, address=f"{host}:{port}", source=self._who))
        self.master_address = master
        for connection in [*self._available_connections, *self._in_use_connections]:
            if connection.is_connected and _leads_to(connection) != master:
                await connection.disconnect(nowait=True)


class LookingPool(redis.sentinel.SentinelConnectionPool):
    """Asks whether a connection still leads to the master before it is used, twice a second at most."""

    def __init__(self, address: Address, **options: Any) -> None:
        self._looked: float | None = None
        self._address = address
        super().__init__(  # type: ignore[no-untyped-call]
            address.master, self._finder(), **({"ssl": True} if address.tls else {}), **options
        )

    def _finder(self) -> BlockingFinder:
        """Return who can tell."""
        return BlockingSentinels(self._address)

    def get_connection(self, *words: Any, **options: Any) -> redis.Connection:
        """Return a connection to the master. Raises what redis-py raises."""
        connection: redis.Connection = super().get_connection(*words, **options)
        try:
            self._leave_others(connection)
        except BaseException:
            self.release(connection)
            raise
        return connection

    def _leave_others(self, connection: redis.Connection) -> None:
        now = time.monotonic()
        if self._looked is None or now - self._looked > LOOK_S:
            self._looked = now
            with suppress(RedisError, OSError):
                self.get_master_address()  # type: ignore[no-untyped-call]
        if _leads_to(connection) != self.master_address:
            connection.disconnect()
            connection.connect()


def _leads_to(connection: AbstractConnection | redis.Connection) -> tuple[object, object]:
    return getattr(connection, "host", None), getattr(connection, "port", None)
