"""A master, its replicas and the Sentinels that watch them: real servers on free ports, quick to fail over."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from tests.support.servers import RedisServer, started_server
from tests.support.waiting import wait_until, wait_until_here

NAME = "mymaster"
DOWN_AFTER_MS = 1_000
FAILOVER_TIMEOUT_MS = 5_000


class SentinelServer(RedisServer):
    """One Sentinel. Its settings are in a file, which it writes itself."""

    def _launch(self, port: int) -> None:
        file = self.folder / "sentinel.conf"
        lines = [f"{name} {value}" for name, value in self.config.items()]
        file.write_text("\n".join([f"port {port}", "bind 127.0.0.1", f"dir {self.folder}", *lines, ""]))
        self._start([str(self.binary), str(file), "--sentinel"])

    def _answers(self, port: int) -> bool:
        try:  # its INFO tells nothing of loading
            with self._client(port) as client:
                return bool(client.info()["process_id"] == self.pid)
        except (RedisError, OSError):
            return False


@dataclass
class Setup:
    """Nodes, of which the first was the master at first, and who watches them."""

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
            try:
                port = _named_by(sentinel)
            except (RedisError, OSError):
                continue
            return next(node for node in self.nodes if node.port == port)
        raise AssertionError("no Sentinel answers")

    async def has_failed_over(self, from_: RedisServer) -> RedisServer:
        """Wait until a Sentinel names another master than ``from_``, and that one takes writes; return it."""

        def promoted() -> RedisServer | None:
            named = {_named_by(sentinel) for sentinel in self.sentinels} - {from_.port}
            node = next((node for node in self.nodes if node.port in named), None)
            return node if node and node.command("ROLE")[0] == b"master" else None

        found = await wait_until(promoted, "the Sentinels have promoted a replica")
        assert found
        return found

    async def is_replica(self, node: RedisServer) -> None:
        """Wait until ``node`` follows another one, and has all that one has."""
        await wait_until(partial(_follows, node), "it is a replica")


def _follows(node: RedisServer) -> bool:
    role = node.command("ROLE")
    return bool(role[0] == b"slave" and role[3] == b"connected")


def _named_by(sentinel: SentinelServer) -> int:
    return int(sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])


@contextmanager
def started_setup(binary: Path, *, replicas: int = 2, sentinels: int = 3, **config: str) -> Iterator[Setup]:
    """Run one until the block ends. ``config`` are settings of the nodes, as for `started_server`."""
    with ExitStack() as servers:
        quick = {"repl_ping_replica_period": "1", "repl_diskless_sync": "yes", "repl_diskless_sync_delay": "0"}
        nodes = [servers.enter_context(started_server(binary, **quick, **config))]
        master = nodes[0]
        for _ in range(replicas):
            replica = servers.enter_context(started_server(binary, **quick, **config))
            replica.command("REPLICAOF", "127.0.0.1", master.port)
            nodes.append(replica)
            # Sentinels ask seldom how a replica is: what they see first, they believe for ten seconds.
            wait_until_here(partial(_follows, replica), "the replica has what the master has")
        watching = [
            servers.enter_context(SentinelServer.started(binary, **_watching(master, sentinels, config)))
            for _ in range(sentinels)
        ]
        setup = Setup(nodes, watching)
        wait_until_here(lambda: _complete(setup, master), "the Sentinels know each other, and the replicas")
        yield setup


def _watching(master: RedisServer, sentinels: int, config: Mapping[str, str]) -> dict[str, str]:
    """Return a Sentinel's settings. Lines that begin alike are one here, with the rest behind line breaks."""
    monitor = [
        f"monitor {NAME} 127.0.0.1 {master.port} {sentinels // 2 + 1}",
        f"down-after-milliseconds {NAME} {DOWN_AFTER_MS}",
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
    return all(node.command("ROLE")[0] == (b"master" if node is master else b"slave") for node in setup.nodes)
