"""A cluster of real servers on free ports, quick to fail over, made without any tool."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.exceptions import RedisError

from tests.support.servers import FOLLOWS_AT_ONCE, RedisServer, node_at, started_server, takes_writes
from tests.support.waiting import wait_until, wait_until_here
from workers.protocol.slots import SLOTS, SlotTable, parse_slots, slot_of

NODE_TIMEOUT_MS = 1_500


@dataclass
class Cluster:
    """Masters come first, each with an equal share of the slots. Then their replicas, in the same order."""

    nodes: list[RedisServer]
    login: str = ""

    @property
    def url(self) -> str:
        """The address of all that."""
        return f"redis+cluster://{self.login}" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def table(self) -> SlotTable:
        """Return the owner of each slot, from the first node that answers."""
        for node in self.nodes:
            if node.running:
                return parse_slots(node.command("CLUSTER", "SLOTS"), ("127.0.0.1", node.port))
        raise AssertionError("no node runs")

    def streams(self) -> list[str]:
        """A name of a stream for each master."""
        found: dict[int, str] = {}
        masters = len(self.table().masters)
        for number in itertools.count():
            found.setdefault(self.owner(f"jobs{number}").port, f"jobs{number}")
            if len(found) == masters:
                break
        return list(found.values())

    def owner(self, key: str) -> RedisServer:
        """The node that has ``key``."""
        host = self.table().owner(slot_of(key.encode()))
        return next(node for node in self.nodes if host and node.port == host[1])

    def masters(self) -> list[RedisServer]:
        """The nodes that have slots."""
        hosts = self.table().masters
        return [node for node in self.nodes if ("127.0.0.1", node.port) in hosts]

    def _master_but(self, former: RedisServer, key: str) -> RedisServer | None:
        """Return the node that all but ``former`` name for ``key``, and that takes writes."""
        asked = [node for node in self.nodes if node is not former and node.running]
        if not asked or not all(_is_ok(node) for node in asked):
            return None
        ports = {_port_of(_table(node), key) for node in asked}
        node = node_at(asked, ports.pop()) if len(ports) == 1 else None
        return node if node and takes_writes(node) else None

    async def has_failed_over(self, key: str, from_: RedisServer) -> RedisServer:
        """Wait until all others name another node for ``key`` than ``from_``, and it takes writes. Return it."""
        found = await wait_until(lambda: self._master_but(from_, key), "a replica was promoted")
        assert found
        return found

    def begin_move(self, key: str, to: RedisServer) -> None:
        """Begin to move the slot of ``key`` to ``to``, so that its keys can be moved from now on."""
        slot, from_ = slot_of(key.encode()), self.owner(key)
        to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(from_))
        from_.command("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(to))

    def move_keys(self, key: str, to: RedisServer) -> None:
        """Move all keys that lie in the slot of ``key``."""
        slot, from_ = slot_of(key.encode()), self.owner(key)
        while keys := from_.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            from_.command("MIGRATE", "127.0.0.1", to.port, "", 0, 5_000, "KEYS", *keys)

    def end_move(self, key: str, to: RedisServer) -> None:
        """Give the slot of ``key`` to ``to``. The former owner hears of it first from there, with its last keys."""
        slot, from_ = slot_of(key.encode()), self.owner(key)
        to.command("CLUSTER", "SETSLOT", slot, "NODE", _id(to))
        from_.command("CLUSTER", "SETSLOT", slot, "NODE", _id(to))


def _port_of(table: SlotTable, key: str) -> int:
    host = table.owner(slot_of(key.encode()))
    return host[1] if host else 0


def _id(node: RedisServer) -> str:
    return bytes(node.command("CLUSTER", "MYID")).decode()


def _is_ok(node: RedisServer) -> bool:
    try:
        return b"cluster_state:ok" in _info(node)
    except (RedisError, OSError):
        return False


def _info(node: RedisServer) -> bytes:
    told = node.command("CLUSTER", "INFO")
    return told if isinstance(told, bytes) else str(told).encode()


@contextmanager
def started_cluster(
    binary: Path, *, masters: int = 3, replicas: int = 0, node_timeout_ms: int = NODE_TIMEOUT_MS
) -> Iterator[Cluster]:
    """Run one until the block ends, with so many ``replicas`` of each master.

    The rest of a broken cluster serves its own slots.
    """
    with ExitStack() as servers:
        settings = {
            "cluster_enabled": "yes",
            "cluster_node_timeout": str(node_timeout_ms),
            "cluster_require_full_coverage": "no",
            **FOLLOWS_AT_ONCE,
        }
        nodes = [servers.enter_context(started_server(binary, **settings)) for _ in range(masters * (1 + replicas))]
        for number, node in enumerate(nodes[:masters]):
            node.command(
                "CLUSTER", "ADDSLOTS", *range(SLOTS * number // masters, SLOTS * (number + 1) // masters)
            )  # not as a range, because 6.2 does not know it
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            nodes[0].command("CLUSTER", "MEET", "127.0.0.1", node.port)
        wait_until_here(lambda: all(_knows(node, len(nodes)) for node in nodes), "the nodes know each other")
        for number, node in enumerate(nodes[masters:]):
            node.command("CLUSTER", "REPLICATE", _id(nodes[number % masters]))
        cluster = Cluster(nodes)
        wait_until_here(lambda: _complete(cluster, masters), "the cluster takes writes, and its replicas follow")
        yield cluster


def _knows(node: RedisServer, number: int) -> bool:
    return f"cluster_known_nodes:{number}\r\n".encode() in _info(node)


def _complete(cluster: Cluster, masters: int) -> bool:
    if not all(_is_ok(node) for node in cluster.nodes):
        return False
    if not all(node.follows() for node in cluster.nodes[masters:]):
        return False
    return all(len(_table(node).masters) == masters for node in cluster.nodes)


def _table(node: RedisServer) -> SlotTable:
    return parse_slots(node.command("CLUSTER", "SLOTS"), ("127.0.0.1", node.port))
