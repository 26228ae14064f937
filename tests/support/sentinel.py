"""A master, its replicas and their Sentinels, as real servers on free ports with a quick failover."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from tests.support.servers import FOLLOWS_AT_ONCE, RedisServer, node_at, started_server, takes_writes
from tests.support.waiting import wait_until, wait_until_here

NAME = "mymaster"
DOWN_AFTER_MS = 1_000
FAILOVER_TIMEOUT_MS = 5_000


class SentinelServer(RedisServer):
    """One Sentinel. Its settings are in a file, which it writes itself."""

    def _command(self, port: int) -> list[str]:
        file = self.folder / "sentinel.conf"
        lines = [f"{name} {value}" for name, value in self.config.items()]
        file.write_text("\n".join([f"port {port}", "bind 127.0.0.1", f"dir {self.folder}", *lines, ""]))
        return [str(self.binary), str(file), "--sentinel"]

    def _answers(self, port: int) -> bool:
        try:  # its INFO does not report loading
            with self._client(port) as client:
                return bool(client.info()["process_id"] == self.pid)
        except (RedisError, OSError):
            return False


@dataclass
class Setup:
    """The nodes, with the first master in front, and the Sentinels."""

    nodes: list[RedisServer]
    sentinels: list[SentinelServer]
    login: str = ""
    """``user:password@`` of the nodes, for the address."""
    options: str = ""
    """What follows the address, with its question mark."""

    @property
    def url(self) -> str:
        """The address of all that."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{self.login}{hosts}/{NAME}/0{self.options}"

    @property
    def master(self) -> RedisServer:
        """The node that the first Sentinel names that answers."""
        for sentinel in self.sentinels:
            with suppress(RedisError, OSError):
                found = node_at(self.nodes, _named_by(sentinel))
                assert found
                return found
        raise AssertionError("no Sentinel answers")

    def _master_but(self, former: RedisServer) -> RedisServer | None:
        """Return the node that a Sentinel names and that takes writes, if it is not ``former``."""
        for sentinel in self.sentinels:
            with suppress(RedisError, OSError):
                node = node_at(self.nodes, _named_by(sentinel))
                if node and node is not former and takes_writes(node):
                    return node
        return None

    async def has_failed_over(self, from_: RedisServer) -> RedisServer:
        """Wait until a Sentinel names another master than ``from_``, and that one takes writes. Return it."""
        found = await wait_until(lambda: self._master_but(from_), "the Sentinels have promoted a replica")
        assert found
        return found

    async def is_replica(self, node: RedisServer) -> None:
        """Wait until ``node`` follows another one, and has all that one has."""
        await wait_until(node.follows, "it is a replica")


def _named_by(sentinel: SentinelServer) -> int:
    return int(sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])


@contextmanager
def started_setup(
    binary: Path, *, replicas: int = 2, sentinels: int = 3, down_after_ms: int = DOWN_AFTER_MS, **config: str
) -> Iterator[Setup]:
    """Run one until the block ends. ``config`` are settings of the nodes, as for `started_server`."""
    with ExitStack() as servers:
        nodes = [servers.enter_context(started_server(binary, **FOLLOWS_AT_ONCE, **config))]
        master = nodes[0]
        for _ in range(replicas):
            replica = servers.enter_context(started_server(binary, **FOLLOWS_AT_ONCE, **config))
            replica.command("REPLICAOF", "127.0.0.1", master.port)
            nodes.append(replica)
            # Sentinels seldom ask a replica for its state, and keep the first answer for ten seconds.
            wait_until_here(partial(replica.follows, master), "the replica has what the master has")
        watching = [
            servers.enter_context(SentinelServer.started(binary, **_watching(master, sentinels, down_after_ms, config)))
            for _ in range(sentinels)
        ]
        setup = Setup(nodes, watching)
        wait_until_here(lambda: _complete(setup, master), "the Sentinels know each other, and the replicas")
        yield setup


def _watching(master: RedisServer, sentinels: int, down_after_ms: int, config: Mapping[str, str]) -> dict[str, str]:
    """Return a Sentinel's settings. Lines that begin alike are one here, with the rest behind line breaks."""
    monitor = [
        f"monitor {NAME} 127.0.0.1 {master.port} {sentinels // 2 + 1}",
        f"down-after-milliseconds {NAME} {down_after_ms}",
        f"failover-timeout {NAME} {FAILOVER_TIMEOUT_MS}",
        f"parallel-syncs {NAME} 2",
    ]
    if "requirepass" in config:
        monitor.append(f"auth-pass {NAME} {config['requirepass']}")
    return {"sentinel": "\nsentinel ".join(monitor)}


def _complete(setup: Setup, master: RedisServer) -> bool:
    others, replicas = len(setup.sentinels) - 1, len(setup.nodes) - 1
    for sentinel in setup.sentinels:
        told: list[Any] = sentinel.command("SENTINEL", "MASTER", NAME)
        state = dict(zip(told[::2], told[1::2], strict=True))
        if (int(state[b"num-other-sentinels"]), int(state[b"num-slaves"])) != (others, replicas):
            return False
        rows: list[Any] = sentinel.command("SENTINEL", "REPLICAS", NAME)
        if any(dict(zip(row[::2], row[1::2], strict=True))[b"master-link-status"] != b"ok" for row in rows):
            return False
    return takes_writes(master) and all(node.follows(master) for node in setup.nodes if node is not master)
