"""Asks the Sentinels or the nodes of a cluster which server takes writes.

The questions block, because threads need them, too. Event loops ask in a thread (`asked_in_thread`).
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, TypeVar

import redis
from anyio import CapacityLimiter, to_thread
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from workers.protocol.address import Address, Host, Topology
from workers.protocol.meaning import NobodyYetError, NoMasterError
from workers.protocol.slots import SlotTable, parse_slots
from workers.protocol.wire import unshared

ANSWER_S = 1.0
"""How long a server may take to answer before the next one is asked."""
LOOK_S = 0.5
"""How often clients ask whether their connections still lead to the right server."""

_LOGIN = frozenset({"db", "username", "password", "credential_provider"})
AnswerT = TypeVar("AnswerT")


async def asked_in_thread(question: Callable[[], AnswerT]) -> AnswerT:
    """Ask in a thread. A cancelled caller does not wait for the answer."""
    return await to_thread.run_sync(question, abandon_on_cancel=True, limiter=CapacityLimiter(1))


class Directory:
    """Those that can tell, for one client. A server that answered is asked again, until `close`."""

    def __init__(self, address: Address, options: Mapping[str, Any], slot: int = 0) -> None:
        """``options`` are those of connections to the nodes. ``slot`` is the one whose owner is looked for."""
        is_sentinel = address.topology is Topology.SENTINEL
        ours = {"socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S, "retry": Retry(NoBackoff(), 0)}
        own = {name: value for name, value in options.items() if not (is_sentinel and name in _LOGIN)}
        self._options: dict[str, Any] = {**own, **address.sentinel_login, **ours}
        self._address = address
        self._slot = slot
        self._kind = unshared(redis.SSLConnection if address.tls else redis.Connection)
        self._heard_of: frozenset[Host] = frozenset()
        self._silent: set[Host] = set()
        self._connection: redis.Connection | None = None
        self._closed = 0
        self._turn = Lock()

    @property
    def wanted(self) -> str:
        """The server that is looked for, for people."""
        of_cluster = self._address.topology is Topology.CLUSTER
        return f"the owner of slot {self._slot}" if of_cluster else f"the master {self._address.master}"

    def discover_master(self, _service_name: str = "") -> Host:
        """Return where the wanted server is. Raises NoMasterError with the answer of each that was asked."""
        if self._address.topology is Topology.SENTINEL:
            who = f"the Sentinels at {self._address.shown_hosts} name no master {self._address.master!r} that is up"
            return self._ask(("SENTINEL", "MASTERS"), self._read_master, who)
        return owner_in(self.slots(), self._slot)

    def slots(self) -> SlotTable:
        """Return which node has which slot. Raises NoMasterError."""
        who = f"no node of the cluster at {self._address.shown_hosts} tells who has which slot"
        return self._ask(("CLUSTER", "SLOTS"), self._read_slots, who)

    def close(self) -> None:
        """Hang up. The next question goes to any of them, because one that is cut off gives old answers."""
        self._closed += 1
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _ask(self, question: Sequence[str], read: Callable[[Any, Host], AnswerT], who: str) -> AnswerT:
        said: list[Exception] = []
        with self._turn:
            closed = self._closed
            for connection in self._connections():
                host = (connection.host, int(connection.port))
                try:
                    connection.connect()  # no effect on one that is connected
                    connection.send_command(*question)
                    found = read(connection.read_response(), host)
                except (RedisError, OSError) as error:
                    said.append(error)
                    self._silent.add(host)
                    connection.disconnect()
                    continue
                self._silent.discard(host)
                if self._closed == closed:
                    self._connection = connection
                else:
                    connection.disconnect()
                return found
        kind = NobodyYetError if any(isinstance(one, NobodyYetError) for one in said) else NoMasterError
        raise kind(f"{who}: {'; '.join(dict.fromkeys(map(str, said)))}")

    def _connections(self) -> Iterator[redis.Connection]:
        """Yield the connection that is open, and new ones, to those last that did not answer when asked last."""
        connection, self._connection = self._connection, None
        if connection is not None:
            yield connection
        hosts = [*{*self._address.hosts, *self._heard_of}]
        random.shuffle(hosts)
        for host, port in sorted(hosts, key=self._silent.__contains__):
            yield self._kind(host=host, port=port, **self._options)

    def _read_master(self, reply: Any, _asked: Host) -> Host:
        name = self._address.master
        for flat in reply:
            told = dict(zip(flat[::2], flat[1::2], strict=False))
            if told[b"name"].decode("utf-8", "replace") == name:
                flags = told[b"flags"].split(b",")
                if b"master" not in flags or b"s_down" in flags or b"o_down" in flags:
                    raise NobodyYetError(f"{name!r} is down")
                return told[b"ip"].decode(), int(told[b"port"])
        raise NoMasterError(f"no master is called {name!r}")

    def _read_slots(self, reply: Any, asked: Host) -> SlotTable:
        table = parse_slots(reply, asked)
        self._heard_of = table.nodes
        if not table.ranges:
            raise NobodyYetError(f"{asked[0]}:{asked[1]} reports no node with slots")
        return table


def owner_in(table: SlotTable, slot: int) -> Host:
    """Return the owner of ``slot``. Raises NobodyYetError."""
    owner = table.owner(slot)
    if owner is None:
        raise NobodyYetError(f"no node of the cluster serves slot {slot} now")
    return owner
