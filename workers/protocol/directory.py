"""Asks the Sentinels or the nodes of a cluster which server takes writes.

redis-py's own clients ask only when they connect, and repeat calls that may have had an effect. A connection to a
demoted master would go on until a write is rejected. So connections ask before they send, at most twice a second, and
event loops ask in a thread.
"""

import logging
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import inf
from threading import Lock
from typing import Any
from weakref import finalize

import redis
from anyio import CapacityLimiter, to_thread
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from workers.protocol.address import Address, Host, Topology
from workers.protocol.log_fields import fields
from workers.protocol.meaning import NoMasterError, NoMasterYetError
from workers.protocol.slots import SLOTS, SlotTable, parse_slots

logger = logging.getLogger(__name__)

ANSWER_S = 1.0
"""How long a server may take to answer before the next one is asked."""
LOOK_S, OPEN_S = 0.5, 0.2
"""How long an answer is used, and how long an open connection waits for one. Heartbeats can have as little as 0.5 s."""

_LOGIN = frozenset({"db", "username", "password", "credential_provider"})


class Directory:
    """The owners of slots, for one client. A server that answered is asked again, until there is `doubt`."""

    def __init__(self, address: Address, options: Mapping[str, Any]) -> None:
        """``options`` are those of connections to the nodes."""
        self._address = address
        self._is_sentinel = address.topology is Topology.SENTINEL
        ours = {"socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S, "retry": Retry(NoBackoff(), 0)}
        own = {name: value for name, value in options.items() if not (self._is_sentinel and name in _LOGIN)}
        self._options: dict[str, Any] = {**own, **address.sentinel_login, **ours}
        self._kind = redis.SSLConnection if address.tls else redis.Connection
        self._silent: set[Host] = set()
        self._open: list[redis.Connection] = []
        """The connection to the server that answered last. Closed before the garbage collector finds its socket."""
        finalize(self, _close, self._open)
        self._turn = Lock()
        self._is_doubted = False
        self._asked_at = -inf
        self._failure: NoMasterError | None = None
        """The reason if the latest question had no answer."""
        self.table = SlotTable()
        """The latest answer. Empty if there was none yet."""

    async def owner(self, slot: int) -> Host:
        """Return the server that takes writes to ``slot`` now. Raises NoMasterError."""
        await self.look()
        return self._owner(slot)

    def owner_blocking(self, slot: int) -> Host:
        """Do the same in a thread that may block."""
        if self._is_old():
            self._ask()
        return self._owner(slot)

    async def look(self) -> None:
        """Ask if the answer is old. While a thread asks, others use the latest answer. Raises NoMasterError."""
        if self._is_old() and not (self._turn.locked() and self.table.ranges):
            await to_thread.run_sync(self._ask, abandon_on_cancel=True, limiter=CapacityLimiter(1))

    def doubt(self) -> None:
        """Ask another server for the next answer, because one that is cut off gives old answers."""
        self._is_doubted = True

    def _is_old(self) -> bool:
        return self._is_doubted or time.monotonic() - self._asked_at > LOOK_S

    def _owner(self, slot: int) -> Host:
        owner = self.table.owner(slot)
        if owner is None:
            raise NoMasterYetError(f"no node of the cluster serves slot {slot} now")
        return owner

    def _ask(self) -> None:
        """Ask, unless another caller asked while this one waited. Raises NoMasterError."""
        with self._turn:
            if self._is_old():
                try:
                    table = self._answer()
                    if self._is_sentinel and self.table.masters - table.masters:
                        name, address = self._address.master, "{}:{}".format(*next(iter(table.masters)))
                        logger.info("master changed: %s", fields(name=name, address=address))
                    self.table, self._failure = table, None
                except NoMasterError as error:
                    self._failure = error
                self._asked_at = time.monotonic()
            failure = self._failure
        if failure is not None:
            raise type(failure)(*failure.args)  # each caller needs an exception of its own

    def _answer(self) -> SlotTable:
        """Ask one server after the other. Raises NoMasterError with the answer of each."""
        question = ("SENTINEL", "MASTERS") if self._is_sentinel else ("CLUSTER", "SLOTS")
        answers: list[Exception] = []
        for connection in self._connections():
            host = (connection.host, int(connection.port))
            try:
                connection.connect()  # no effect on one that is connected
                connection.send_command(*question)
                reply = connection.read_response()
                table = self._master(reply) if self._is_sentinel else parse_slots(reply, host)
                if not table.ranges:
                    raise NoMasterYetError(f"{host[0]}:{host[1]} reports no node with slots")
            except (RedisError, OSError) as error:
                answers.append(error)
                self._silent.add(host)
                connection.disconnect()
                continue
            self._silent.discard(host)
            self._open.append(connection)
            return table
        kind = NoMasterYetError if any(isinstance(one, NoMasterYetError) for one in answers) else NoMasterError
        name, hosts = self._address.master, ", ".join(f"{host}:{port}" for host, port in self._address.hosts)
        missing = (
            f"the Sentinels at {hosts} name no master {name!r} that is up"
            if self._is_sentinel
            else f"no node of the cluster at {hosts} reports its slots"
        )
        raise kind(f"{missing}: {'; '.join(dict.fromkeys(map(str, answers)))}")

    def _connections(self) -> Iterator[redis.Connection]:
        """Yield the connection that is open, and new ones. Servers that did not answer the last time come last."""
        is_doubted, self._is_doubted = self._is_doubted, False
        if is_doubted:
            _close(self._open)
        while self._open:
            yield self._open.pop()
        hosts = [*{*self._address.hosts, *self.table.nodes}]
        random.shuffle(hosts)
        for host, port in sorted(hosts, key=self._silent.__contains__):
            yield self._kind(**self._options | {"host": host, "port": port})

    def _master(self, reply: Any) -> SlotTable:
        for flat in reply:
            row = dict(zip(flat[::2], flat[1::2], strict=False))
            if row[b"name"].decode("utf-8", "replace") == self._address.master:
                flags = row[b"flags"].split(b",")
                # While a Sentinel leads a failover, it names the former master, which may still take writes.
                if b"master" not in flags or not {b"s_down", b"o_down", b"failover_in_progress"}.isdisjoint(flags):
                    raise NoMasterYetError(f"{self._address.master!r} is down")
                return SlotTable(((0, SLOTS - 1, (row[b"ip"].decode(), int(row[b"port"]))),))
        raise NoMasterError(f"no master is called {self._address.master!r}")


def _close(connections: list[redis.Connection]) -> None:
    while connections:
        with suppress(RedisError, OSError):
            connections.pop().disconnect()
