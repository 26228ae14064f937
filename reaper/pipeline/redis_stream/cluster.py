"""A link to a cluster: each command goes to the node that has its key, and streams are looked for at every master.

Who has which slot is asked of any node, once a second while the link is used, and again where a node says that it is
not the one. While a slot is half moved, what lies there is waited for: `ASKING` is not sent, since states and entries
that are read together would be served at neither end.
"""

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from reaper.pipeline.redis_stream.connecting import (
    LOOK_S,
    address_of,
    ask_slots,
    connect,
    is_not_ready,
    not_ready,
    reply_of,
)
from reaper.pipeline.redis_stream.errors import RedisStreamError
from reaper.pipeline.redis_stream.link import Link, Patience, accepted, contact_lost, name_of, scan
from workers.protocol import slots
from workers.protocol.address import Host, Topology
from workers.protocol.slots import SlotTable, slot_of

MOST_ROUNDS = 5
"""So many times streams are looked for again where slots have moved meanwhile."""


def open_link(url: str, retry_s: float) -> Link:
    """Return a link to what ``url`` means. Raises RedisStreamError."""
    return (ClusterLink if address_of(url).topology is Topology.CLUSTER else Link)(url, retry_s)


class ClusterLink(Link):
    """One connection to each node that was needed."""

    def __init__(self, url: str, retry_s: float) -> None:
        super().__init__(url, retry_s)
        self._nodes = frozenset(address_of(url).hosts)
        self._connections: dict[Host, Any] = {}
        self._table = SlotTable()
        self._asked_at: float | None = None

    def find_keys(self, pattern: str) -> set[str]:
        """Return the names of the streams that match, at every master; looks again where slots have moved meanwhile."""
        found: set[str] = set()
        patience, rounds = Patience(self._url, self._retry_s), 0
        while rounds < MOST_ROUNDS:
            try:
                before = self._slots()
                for host in before.masters:
                    found |= self._scan(host, pattern)
                self._asked_at = None
                if self._slots().ranges == before.ranges:
                    break
                rounds += 1
            except contact_lost() as error:
                self._drop()
                patience.wait(error)
        patience.end()
        return found

    def _scan(self, host: Host, pattern: str) -> set[str]:
        """Look at one master. Raises redis.ConnectionError where it is none now."""
        found: set[str] = set()
        cursor = b"0"
        while True:
            connection, command = self._at(host), scan(cursor, pattern)
            connection.send_command(*command)
            reply = reply_of(connection)
            if is_not_ready(reply):
                raise not_ready(reply)
            cursor, keys = accepted(reply, command)
            found.update(map(name_of, keys))
            if cursor == b"0":
                return found

    def write(self, packed: Sequence[bytes]) -> None:
        """Send packed commands to where their keys are, and those again that were not answered: they may run twice.

        Raises RedisStreamError on the first that Redis refuses, UnreachableError.
        """
        patience = Patience(self._url, self._retry_s)
        left = list(packed)
        while left:
            left, error = self._write_some(left)
            if error is not None:
                self._drop()
                patience.wait(error)
        patience.end()

    def _write_some(self, packed: Sequence[bytes]) -> tuple[list[bytes], Exception | None]:
        """Return the commands that have to be sent again, and why."""
        left: list[bytes] = []
        why: Exception | None = None
        try:
            places = self._by_node([key_of_packed(command) for command in packed])
        except contact_lost() as error:
            return list(packed), error
        for host, at in places.items():
            done = 0
            try:
                connection = self._at(host)
                connection.send_packed_command([b"".join(packed[place] for place in at)])
                for place in at:
                    reply = reply_of(connection)
                    done += 1
                    if is_not_ready(reply):
                        left.append(packed[place])
                        why = reply
                    elif isinstance(reply, Exception):
                        self._drop()
                        raise RedisStreamError(f"Redis refused an XADD: {reply}")
            except contact_lost() as error:
                left += [packed[place] for place in at[done:]]
                why = error
        return left, why

    def _exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        replies: list[Any] = [None] * len(commands)
        for host, at in self._by_node([slots.key_of(words) for words in commands]).items():
            connection = self._at(host)
            connection.send_packed_command(connection.pack_commands([commands[place] for place in at]))
            for place in at:
                replies[place] = reply_of(connection)
        return replies

    def _connected_for(self, command: Sequence[Any]) -> Any:
        (host,) = self._by_node([slots.key_of(command)])
        return self._at(host)

    def _by_node(self, keys: Sequence[bytes | None]) -> Mapping[Host, list[int]]:
        """Return the places of commands by the node that has their keys; those without one are with the first key.

        Raises redis.ConnectionError where nobody is known to have a slot.
        """
        table = self._slots()
        first = next((key for key in keys if key is not None), b"")
        together = None in keys  # a transaction
        places: dict[Host, list[int]] = {}
        for place, key in enumerate(keys):
            slot = slot_of(first if together or key is None else key)
            owner = table.owner(slot)
            if owner is None:
                self._asked_at = None
                raise contact_lost()[0](f"nobody has slot {slot} of the cluster now")
            places.setdefault(owner, []).append(place)
        return places

    def _slots(self) -> SlotTable:
        """Return who has which slot. Raises redis.ConnectionError where no node tells."""
        if self._asked_at is None or time.monotonic() - self._asked_at >= LOOK_S:
            self._table = self._ask_somebody()
            self._asked_at = time.monotonic()
            self._nodes |= self._table.nodes
            for host in set(self._connections) - self._table.masters:
                self._hang_up(host)
        return self._table

    def _ask_somebody(self) -> SlotTable:
        """Ask one node after the other, in an order that changes: one that is cut off tells old news."""
        said: list[str] = []
        for host in random.sample(sorted(self._nodes), len(self._nodes)):
            try:
                table = ask_slots(self._url, host)
            except contact_lost() as error:
                said.append(str(error))
            else:
                if table.ranges:
                    return table
                said.append(f"{host[0]}:{host[1]} knows nobody with slots")
        raise contact_lost()[0](f"no node tells who has which slot: {'; '.join(dict.fromkeys(said))}")

    def _at(self, host: Host) -> Any:
        if host not in self._connections:
            self._connections[host] = connect(self._url, host)
        return self._connections[host]

    def _hang_up(self, host: Host) -> None:
        connection = self._connections.pop(host)
        if connection is self._works:
            self._works = None
        with suppress(Exception):
            connection.disconnect()

    def _drop(self) -> None:
        self._works = self._asked_at = None
        for host in list(self._connections):
            self._hang_up(host)


def key_of_packed(command: bytes) -> bytes:
    """Return the first key of an ``XADD`` or an ``EVAL`` as it goes over the wire."""
    start = command.index(b"\r\n") + 2
    words: list[bytes] = []
    while len(words) < (4 if words[:1] == [b"EVAL"] else 2):
        end = command.index(b"\r\n", start)
        begin, length = end + 2, int(command[start + 1 : end])
        words.append(command[begin : begin + length])
        start = begin + length + 2
    return words[-1]
