"""A master, two replicas and three Sentinels of the drill's own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from reaper.drill.nodes import FOLLOWS_AT_ONCE, HOST, Node, Setup, ended_at_last, node_at, start, takes_writes, until

NAME = "drill"
REPLICAS, SENTINELS = 2, 3
DOWN_AFTER_MS = 1_500
"""Half as long again as usual in tests: on a busy machine nobody is to fail over by himself."""
FAILOVER_TIMEOUT_MS = 4_000
"""A second failover may come so long, twice, after the first one at the earliest."""


class SentinelServer(Node):
    """One Sentinel. Its settings are in a file, which it writes itself."""

    def _launch(self, port: int) -> None:
        file = self.folder / "sentinel.conf"
        lines = [f"{name} {value}" for name, value in self.config.items()]
        file.write_text("\n".join([f"port {port}", f"bind {HOST}", f'dir "{self.folder}"', *lines, ""]))
        self._start([str(self.binary), str(file), "--sentinel"])

    def _answers(self, port: int) -> bool:
        with suppress(RedisError, OSError), self._client(port) as client:  # its INFO tells nothing of loading
            told: Any = client.info()
            return bool(told["process_id"] == self.pid)
        return False

    def named(self) -> int:
        """Return the port of the master that it names. Raises what redis-py raises."""
        return int(self.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])

    def sees(self, others: int, replicas: int) -> bool:
        """Tell whether it knows so many other Sentinels, and so many replicas that have what the master has."""
        state = _facts(self.command("SENTINEL", "MASTER", NAME))
        if (int(state[b"num-other-sentinels"]), int(state[b"num-slaves"])) != (others, replicas):
            return False
        rows = self.command("SENTINEL", "REPLICAS", NAME)
        return all(_facts(row)[b"master-link-status"] == b"ok" for row in rows)


def _facts(told: list[Any]) -> dict[bytes, bytes]:
    return dict(zip(told[::2], told[1::2], strict=True))


@dataclass
class SentinelSetup(Setup):
    """Nodes, and who watches them."""

    sentinels: list[SentinelServer] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The address of all that."""
        return f"redis+sentinel://{','.join(f'{HOST}:{one.port}' for one in self.sentinels)}/{NAME}/0"

    @property
    def description(self) -> str:
        """For people."""
        return f"a master, {len(self.nodes) - 1} replicas and {len(self.sentinels)} Sentinels"

    def servers(self) -> list[Node]:
        """Return the Sentinels first: they are not to promote anybody while the nodes end."""
        return [*self.sentinels, *self.nodes]

    def master_of(self, key: str, *, but: Node | None = None) -> Node | None:
        """Return who takes writes; all keys are his."""
        del key
        for sentinel in self.sentinels:
            with suppress(RedisError, OSError):
                node = node_at(self.nodes, sentinel.named())
                if node and node is not but and takes_writes(node):
                    return node
        return None

    def rejoin(self, node: Node, master: Node) -> None:
        """Have it follow. It began as a master without data, which nobody is told of: Sentinels name the other."""
        node.command("REPLICAOF", HOST, master.port)


@asynccontextmanager
async def sentinel_setup(binary: Path, folder: Path) -> AsyncIterator[SentinelSetup]:
    """Run one until the block ends. Raises NoServerError."""
    setup = SentinelSetup()
    async with ended_at_last(setup):
        for number in range(1 + REPLICAS):
            node = Node(binary, _folder(folder, f"node{number}"), dict(FOLLOWS_AT_ONCE))
            setup.nodes.append(node)
            await start(node)
        master, *replicas = setup.nodes
        for replica in replicas:
            replica.command("REPLICAOF", HOST, master.port)
        # Sentinels ask seldom how a replica is: what they see first, they believe for ten seconds.
        await until(lambda: len(setup.replicas_of(master)) == REPLICAS, "replicas have what the master has")
        for number in range(SENTINELS):
            sentinel = SentinelServer(binary, _folder(folder, f"sentinel{number}"), _watching(master))
            setup.sentinels.append(sentinel)
            await start(sentinel)
        await until(
            lambda: all(one.sees(SENTINELS - 1, REPLICAS) for one in setup.sentinels),
            "Sentinels know each other, and the replicas",
        )
        yield setup


def _folder(folder: Path, name: str) -> Path:
    own = folder / name
    own.mkdir()
    return own


def _watching(master: Node) -> dict[str, str]:
    """Return a Sentinel's settings. Lines that begin alike are one here, with the rest behind line breaks."""
    lines = (
        f"monitor {NAME} {HOST} {master.port} {SENTINELS // 2 + 1}",
        f"down-after-milliseconds {NAME} {DOWN_AFTER_MS}",
        f"failover-timeout {NAME} {FAILOVER_TIMEOUT_MS}",
        f"parallel-syncs {NAME} {REPLICAS}",
    )
    return {"sentinel": "\nsentinel ".join(lines)}
