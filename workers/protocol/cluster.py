"""Redis Cluster. Nodes are asked for the owner of a slot, whenever a connection is made and while any lasts.

A slot's node is for a client what the Sentinels' master is, so the pools are those of `workers.protocol.sentinels`.
Only the question differs. redis-py's own cluster client repeats calls that may have had an effect, and has no
connection that can be kept.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry as BlockingRetry

from workers.protocol.address import Address, Host
from workers.protocol.meaning import NobodyYetError, NoMasterError
from workers.protocol.sentinels import ANSWER_S, LOOK_S, BlockingFinder, Finder, LookingPool, WatchedPool
from workers.protocol.slots import SlotTable, parse_slots
from workers.protocol.unshared import unshared

_QUESTION = ("CLUSTER", "SLOTS")
_ABOUT_POOLS = frozenset({"connection_pool", "host", "port", "retry"})


class Nodes:
    """All nodes that were heard of, for one client.

    The first node to ask changes, because a node that is cut off gives old answers.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._heard_of: frozenset[Host] = frozenset()
        self._silent: set[Host] = set()

    def in_some_order(self) -> list[Host]:
        """Return them, those last that did not answer when they were asked last."""
        nodes = [*{*self._address.hosts, *self._heard_of}]
        random.shuffle(nodes)
        return sorted(nodes, key=self._silent.__contains__)

    def did_not_answer(self, node: Host) -> None:
        """Note it."""
        self._silent.add(node)

    def read(self, reply: Any, asked: Host) -> SlotTable:
        """Return what one has replied, and remember whom it named."""
        table = parse_slots(reply, asked)
        self._silent.discard(asked)
        self._heard_of = table.nodes
        return table

    def silent(self, said: Sequence[Exception]) -> NoMasterError:
        """Return the error to raise if no node answered."""
        why = f": {'; '.join(dict.fromkeys(map(str, said)))}" if said else ""
        kind = NobodyYetError if any(isinstance(one, NobodyYetError) for one in said) else NoMasterError
        return kind(f"no node of the cluster at {self._address.shown_hosts} tells who has which slot{why}")


def _options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for asking nodes, which are the connection's, with a short timeout."""
    options = {name: value for name, value in kwargs.items() if name not in _ABOUT_POOLS}
    return {**options, "socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S}


class SlotAsker:
    """One conversation. A node that answered is asked again. To be closed."""

    def __init__(self, address: Address, nodes: Nodes, kwargs: Mapping[str, Any]) -> None:
        """``kwargs`` are those of a connection to a node."""
        self._kind = unshared(SSLConnection if address.tls else Connection)
        self._nodes = nodes
        self._kwargs = kwargs
        self._connection: Connection | None = None

    async def ask(self) -> SlotTable:
        """Return who has which slot. Raises NoMasterError with the answer of each node."""
        said: list[Exception] = []
        if self._connection is not None:
            with suppress(RedisError, OSError):
                return await self._answer(self._connection)
            await self.aclose()
        for host, port in self._nodes.in_some_order():
            options = {**_options(self._kwargs), "retry": Retry(NoBackoff(), 0)}
            self._connection = self._kind(host=host, port=port, **options)
            try:
                return await self._answer(self._connection)
            except (RedisError, OSError) as error:
                said.append(error)
                self._nodes.did_not_answer((host, port))
                await self.aclose()
        raise self._nodes.silent(said)

    async def _answer(self, connection: Connection) -> SlotTable:
        if not connection.is_connected:
            await connection.connect()
        await connection.send_command(*_QUESTION)
        table = self._nodes.read(await connection.read_response(), (connection.host, int(connection.port)))
        if not table.ranges:
            raise NobodyYetError(f"{connection.host}:{connection.port} reports no node with slots")
        return table

    async def aclose(self) -> None:
        """Hang up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


def _owner(table: SlotTable, slot: int) -> Host:
    owner = table.owner(slot)
    if owner is None:
        raise NobodyYetError(f"no node of the cluster serves slot {slot} now")
    return owner


class _SlotFinder:
    def __init__(self, asker: SlotAsker, slot: int) -> None:
        self._asker, self._slot = asker, slot

    async def discover_master(self, _service_name: str) -> Host:
        return _owner(await self._asker.ask(), self._slot)

    async def aclose(self) -> None:
        await self._asker.aclose()


class SlotPool(WatchedPool):
    """Leads to the node that has a slot."""

    def __init__(self, address: Address, *, slot: int, **options: Any) -> None:
        self._slot = slot
        self._nodes = Nodes(address)
        super().__init__(address, **options)

    _who = "the cluster's nodes"

    @property
    def _watched(self) -> str:
        return f"the owner of slot {self._slot}"

    def _finder(self) -> Finder:
        return _SlotFinder(SlotAsker(self._address, self._nodes, self.connection_kwargs), self._slot)


class SlotTables:
    """The slot table of a client that talks to several nodes, asked again where it is older than the looks of a pool.

    Each question is a conversation of its own, so `close` has no work.
    """

    def __init__(self, address: Address, kwargs: Callable[[], Mapping[str, Any]]) -> None:
        self._address = address
        self._kwargs = kwargs
        self._nodes = Nodes(address)
        self._asked_at: float | None = None
        self._is_asking = False
        self.latest = SlotTable()
        """What was told last; empty before."""

    async def current(self) -> SlotTable:
        """Return who has which slot. While one task asks, the others go by the latest table. Raises NoMasterError."""
        is_old = self._asked_at is None or time.monotonic() - self._asked_at > LOOK_S * 0.9
        if is_old and not (self._is_asking and self.latest.ranges):
            asker, self._is_asking = SlotAsker(self._address, self._nodes, self._kwargs()), True
            try:
                self.latest = await asker.ask()
                self._asked_at = time.monotonic()
            finally:
                self._is_asking = False
                await asker.aclose()
        return self.latest

    async def owner(self, slot: int) -> Host:
        """Return who has ``slot``. Raises NoMasterError."""
        return _owner(await self.current(), slot)

    def is_outdated(self) -> None:
        """Note that a node has said so."""
        self._asked_at = None


class _NodeFinder:
    def __init__(self, tables: SlotTables, node: Host) -> None:
        self._tables, self._node = tables, node

    async def discover_master(self, _service_name: str) -> Host:
        return self._node if self._node in (await self._tables.current()).masters else _NOWHERE

    async def aclose(self) -> None:
        pass


_NOWHERE: Host = ("", 0)


class NodePool(WatchedPool):
    """Leads to one node, for as long as that has slots."""

    def __init__(self, address: Address, *, tables: SlotTables, node: Host, **options: Any) -> None:
        self._tables = tables
        self._node = node
        super().__init__(address, **options)

    @property
    def _watched(self) -> str:
        return "a node of the cluster, {}:{}".format(*self._node)

    def _finder(self) -> Finder:
        return _NodeFinder(self._tables, self._node)

    async def get_master_address(self) -> Host:
        """Return where the node is. Raises NoMasterError where it has no slots any more."""
        found = await super().get_master_address()
        if found == _NOWHERE:
            raise NoMasterError(f"{self._watched} no longer serves any slot")
        return found


class _BlockingSlotFinder:
    def __init__(self, pool: "LookingSlotPool", slot: int) -> None:
        self._pool, self._slot = pool, slot

    def discover_master(self, _service_name: str) -> Host:
        return _owner(self._pool.ask(), self._slot)


class LookingSlotPool(LookingPool):
    """Leads to the node that has a slot, for threads."""

    def __init__(self, address: Address, *, slot: int, **options: Any) -> None:
        self._slot = slot
        self._nodes = Nodes(address)
        self._kind = redis.SSLConnection if address.tls else redis.Connection
        super().__init__(address, **options)

    def _finder(self) -> BlockingFinder:
        return _BlockingSlotFinder(self, self._slot)

    def ask(self) -> SlotTable:
        """Return who has which slot. Raises NoMasterError."""
        said: list[Exception] = []
        for host, port in self._nodes.in_some_order():
            options = {**_options(self.connection_kwargs), "retry": BlockingRetry(NoBackoff(), 0)}
            connection = self._kind(host=host, port=port, **options)
            try:
                connection.connect()
                connection.send_command(*_QUESTION)
                table = self._nodes.read(connection.read_response(), (host, port))
            except (RedisError, OSError) as error:
                said.append(error)
            else:
                if table.ranges:
                    return table
                said.append(NobodyYetError(f"{host}:{port} reports no node with slots"))
            finally:
                connection.disconnect()
        raise self._nodes.silent(said)
