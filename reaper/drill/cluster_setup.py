"""Three masters and three replicas of the drill's own that share the slots of a cluster, made without any tool."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.exceptions import RedisError

from reaper.drill.nodes import FOLLOWS_AT_ONCE, HOST, Node, Setup, ended_at_last, node_at, start, takes_writes, until
from workers.protocol.messages import text
from workers.protocol.slots import SLOTS, SlotTable, parse_slots, slot_of
from workers.testing.server import free_port

MASTERS = 3
NODE_TIMEOUT_MS = 2_000
_KEYS_AT_A_TIME, _MIGRATE_MS = 100, 5_000


class ClusterNode(Node):
    """One node. The nodes talk to each other on a port of its own, which may lie anywhere (Redis 7.0)."""

    def _launch(self, port: int) -> None:
        if not self.port:  # else it is known by it, and stays there
            self.config["cluster-port"] = str(free_port())
        super()._launch(port)

    def table(self) -> SlotTable:
        """Return who has which slot, as it sees it. Raises what redis-py raises."""
        return parse_slots(self.command("CLUSTER", "SLOTS"), (HOST, self.port))

    def info(self) -> str:
        """Return what it says of the cluster. Raises what redis-py raises."""
        return text(self.command("CLUSTER", "INFO"))

    @property
    def id(self) -> str:
        """What the others call it. Raises what redis-py raises."""
        return text(self.command("CLUSTER", "MYID"))


@dataclass
class ClusterSetup(Setup):
    """Masters first, each with an equal share of the slots; then a replica of each, in the same order."""

    @property
    def url(self) -> str:
        """The address of all that."""
        return f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in self.nodes)}"

    @property
    def description(self) -> str:
        """For people."""
        return f"a cluster of {MASTERS} masters and as many replicas"

    def servers(self) -> Sequence[Node]:
        """Return the nodes."""
        return self.nodes

    def master_of(self, key: str, *, but: Node | None = None) -> Node | None:
        """Return the node that all others that run have for the slot of ``key``."""
        asked = [node for node in self._cluster if node is not but and node.running]
        try:
            owners = {node.table().owner(slot_of(key.encode())) for node in asked if "cluster_state:ok" in node.info()}
        except (RedisError, OSError):
            return None
        owner = owners.pop() if len(owners) == 1 else None
        node = node_at(self.nodes, owner[1]) if owner else None
        return node if node and node is not but and takes_writes(node) else None

    def rejoin(self, node: Node, master: Node) -> None:
        """Do nothing: it hears from the others that its slots are another's, and follows that one."""

    def begin_move(self, key: str, from_: Node, to: Node) -> None:
        """Have the slot of ``key`` begin to move: its keys can be moved from now on."""
        slot = slot_of(key.encode())
        to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", _cluster_node(from_).id)
        from_.command("CLUSTER", "SETSLOT", slot, "MIGRATING", _cluster_node(to).id)

    def end_move(self, key: str, from_: Node, to: Node) -> None:
        """Move all keys of the slot, and then the slot. Who had it hears of it first from there, with its last keys."""
        slot = slot_of(key.encode())
        while keys := from_.command("CLUSTER", "GETKEYSINSLOT", slot, _KEYS_AT_A_TIME):
            from_.command("MIGRATE", HOST, to.port, "", 0, _MIGRATE_MS, "KEYS", *keys)
        for node in (to, from_):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", _cluster_node(to).id)

    def masters(self) -> list[Node]:
        """Return the nodes that have slots, as the first one says that runs. Raises what redis-py raises."""
        table = next(node for node in self._cluster if node.running).table()
        return [node for node in self.nodes if (HOST, node.port) in table.masters]

    @property
    def _cluster(self) -> Iterator[ClusterNode]:
        return map(_cluster_node, self.nodes)


def _cluster_node(node: Node) -> ClusterNode:
    assert isinstance(node, ClusterNode)
    return node


def share_of(key: str) -> int:
    """Return which of the masters has ``key`` at first, from 0."""
    return slot_of(key.encode()) * MASTERS // SLOTS


@asynccontextmanager
async def cluster_setup(binary: Path, folder: Path) -> AsyncIterator[ClusterSetup]:
    """Run one until the block ends. Raises NoServerError."""
    setup = ClusterSetup()
    async with ended_at_last(setup):
        for number in range(2 * MASTERS):
            own = folder / f"node{number}"
            own.mkdir()
            settings = {
                "cluster-enabled": "yes",
                "cluster-node-timeout": str(NODE_TIMEOUT_MS),
                "cluster-require-full-coverage": "no",  # what is left of it serves its own slots
            }
            node = ClusterNode(binary, own, settings | FOLLOWS_AT_ONCE)
            setup.nodes.append(node)
            await start(node)
        nodes = [_cluster_node(node) for node in setup.nodes]
        for number, node in enumerate(nodes[:MASTERS]):
            first, end = -(-SLOTS * number // MASTERS), -(-SLOTS * (number + 1) // MASTERS)
            node.command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            nodes[0].command("CLUSTER", "MEET", HOST, node.port, node.config["cluster-port"])
        knows = f"cluster_known_nodes:{len(nodes)}\r\n"
        await until(lambda: all(knows in node.info() for node in nodes), "the nodes know each other")
        for master, replica in zip(nodes[:MASTERS], nodes[MASTERS:], strict=True):
            replica.command("CLUSTER", "REPLICATE", master.id)
        await until(lambda: _is_complete(nodes), "the cluster takes writes, and its replicas follow")
        yield setup


def _is_complete(nodes: Sequence[ClusterNode]) -> bool:
    if not all("cluster_state:ok" in node.info() and len(node.table().masters) == MASTERS for node in nodes):
        return False
    pairs = zip(nodes[:MASTERS], nodes[MASTERS:], strict=True)
    return all(replica.follows(master) for master, replica in pairs)
